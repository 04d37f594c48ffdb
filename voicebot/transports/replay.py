"""A recording as a caller: it speaks at its recorded times, in real time or on the virtual clock."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import numpy as np

from voicebot.audio.frames import FRAME_S, Frame, Pcm, audible, silence
from voicebot.audio.recordings import Recording

SETTLED_S = 2.5
"""The caller hangs up when the recording is over and the bot has listened in silence for this long:
longer than any endpointing."""
LONGEST_ANSWER_S = 60.0
"""And at the latest this long after the end of the recording."""


class ReplayTransport:
    """Keeps both sides on one time line that starts with the first frame."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._loop = asyncio.get_running_loop()
        self._start: float | None = None
        self._bot: list[tuple[float, Pcm]] = []
        self._state = "listening"
        self._busy_until = 0.0
        self.events: list[dict[str, Any]] = []
        self.length_s = recording.seconds
        self.position_s = 0.0

    @property
    def rate(self) -> int:
        return self._recording.rate

    async def frames(self) -> AsyncGenerator[Frame, None]:
        self._start = start = self._loop.time()
        pcm, size = self._recording.pcm, round(self.rate * FRAME_S)
        end = len(pcm) / self.rate
        sent = 0
        while True:
            seconds = sent / self.rate
            now = self._loop.time()
            if self._state != "listening":
                self._busy_until = now
            over = seconds > end and now - max(self._busy_until, start + end) > SETTLED_S
            if over or seconds > end + LONGEST_ANSWER_S:
                return
            part = pcm[sent : sent + size]
            sent += size
            await asyncio.sleep(max(0.0, start + sent / self.rate - now))
            self.position_s = min(self.length_s, sent / self.rate)
            padded = np.concatenate([part, silence(size - len(part))])
            yield Frame(padded, self.rate, start + sent / self.rate)

    async def send(self, pcm: Pcm) -> None:
        now = self._loop.time()
        self._bot.append((now, pcm))
        if audible(pcm):
            self._busy_until = now

    def emit(self, event: dict[str, Any]) -> None:
        self.events.append(event)
        if event["type"] == "state":
            self._state = event["state"]

    def bot_audio(self) -> Pcm:
        """What the bot said, on the recording's time line."""
        start = self._start or 0.0
        size = round(self.rate * FRAME_S)
        # To the grid of 20 ms: frames are sent back to back, whatever the clock's jitter.
        placed: list[tuple[int, Pcm]] = []
        for at, pcm in self._bot:
            index = max(0, round((at - start) / FRAME_S))
            if placed and index <= placed[-1][0]:
                index = placed[-1][0] + 1
            placed.append((index, pcm))
        out = silence((placed[-1][0] + 1) * size if placed else 0)
        for index, pcm in placed:
            out[index * size : index * size + len(pcm)] = pcm
        return out
