"""Ways for a call to come in. A transport carries frames and events and knows nothing of speech."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any, Protocol

from voicebot.audio.frames import Frame, Pcm


class Transport(Protocol):
    @property
    def rate(self) -> int:
        """Samples per second of what `send` takes."""
        ...

    def frames(self) -> AsyncGenerator[Frame, None]:
        """The caller's audio as it arrives; ends when the caller hangs up or is lost."""
        ...

    async def send(self, pcm: Pcm) -> None:
        """20 ms of the bot's audio. The call paces; this never waits for the peer."""
        ...

    def emit(self, event: dict[str, Any]) -> None:
        """A JSON event for the caller's program (captions, state, records); may be dropped."""
        ...
