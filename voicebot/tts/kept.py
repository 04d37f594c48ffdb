"""Short pieces of speech kept as audio, in front of any synthesizer.

What a bot begins with repeats: "I'm sorry", "Yes," "Check-in is at three". A piece that was spoken before,
by any call, costs nothing the second time; the agent's own `openings` are spoken before the first call.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing

from voicebot.engines import Speech, Synthesizer

LONGEST = 40
"""Characters: about three seconds, the first piece of an answer. Longer ones hardly repeat."""
MOST = 256
"""Pieces kept, those used last: at 22 kHz at most 33 MB."""


class KeptSpeech:
    """A synthesizer that remembers. The audio of a piece does not change while it is kept."""

    def __init__(self, engine: Synthesizer) -> None:
        self._engine = engine
        self._kept: OrderedDict[str, list[Speech]] = OrderedDict()

    @property
    def rate(self) -> int:
        return self._engine.rate

    async def stream(self, text: str) -> AsyncGenerator[Speech, None]:
        """As the engine's own, from memory if it can. Speech that was not made to its end is not kept."""
        key = text.strip()
        if key in self._kept:
            self._kept.move_to_end(key)
            for part in self._kept[key]:
                yield part
            return
        made: list[Speech] = []
        async with aclosing(self._engine.stream(text)) as parts:
            async for part in parts:
                made.append(part)
                yield part
        if len(key) <= LONGEST:
            self._kept[key] = made
            if len(self._kept) > MOST:
                self._kept.popitem(last=False)

    async def learn(self, texts: Iterable[str]) -> None:
        """Speaks texts that are not known yet, for later. Raises EngineError."""
        for text in texts:
            async for _ in self.stream(text):
                pass
