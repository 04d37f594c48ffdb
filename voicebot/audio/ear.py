"""The caller's audio on its way to the turn-taking core: 16 kHz windows, and the utterance so far."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

import numpy as np

from voicebot.audio.frames import SPEECH_RATE, Frame, Pcm
from voicebot.audio.resample import Resampler
from voicebot.turns.vad import WINDOW, WINDOW_S

KEPT_S = 2.0
"""Audio kept while nobody speaks: more than the pre-roll and the speech needed for a barge-in."""


class Ear:
    """Cuts frames of any length and rate into VAD windows and remembers them."""

    def __init__(self, clean: Callable[[Pcm], Pcm] = lambda pcm: pcm) -> None:
        """`clean` changes what is heard, at 16 kHz, before anybody hears it."""
        self._clean = clean
        self._resampler: Resampler | None = None
        self._rest: Pcm = np.zeros(0, np.int16)
        self._windows: deque[tuple[float, Pcm]] = deque()
        self.newest = 0.0
        """Arrival of the last sample of the last whole window."""
        self.keep_from: float | None = None
        """Arrival time from which audio must be kept (an utterance is being heard), or None."""

    def windows(self, frame: Frame) -> Iterator[tuple[Pcm, float]]:
        """(512 samples at 16 kHz, arrival of the last one) for each window that `frame` completes.

        The arrival of a sample within a frame is counted back from the frame's end.
        """
        if self._resampler is None or self._resampler.source != frame.rate:
            self._resampler = Resampler(frame.rate, SPEECH_RATE)  # first frame, or a new codec
        pcm = np.concatenate([self._rest, self._clean(self._resampler(frame.pcm))])
        for start in range(0, len(pcm) - WINDOW + 1, WINDOW):
            window = pcm[start : start + WINDOW]
            arrival = frame.arrival - (len(pcm) - start - WINDOW) / SPEECH_RATE
            self._windows.append((arrival, window))
            self.newest = arrival
            yield window, arrival
        self._rest = pcm[len(pcm) - len(pcm) % WINDOW :]
        oldest = frame.arrival - KEPT_S if self.keep_from is None else self.keep_from
        while self._windows and self._windows[0][0] < oldest:
            self._windows.popleft()

    def utterance(self, since: float, until: float) -> Pcm:
        """The audio that arrived between two times, as far as it was kept."""
        parts = [pcm for at, pcm in self._windows if since < at and at - WINDOW_S <= until]
        return np.concatenate(parts) if parts else np.zeros(0, np.int16)
