"""Rate conversion that keeps its state across chunks: one resampler per stream and direction.

FFmpeg's swresample, not soxr: fed 20 ms at a time, soxr 1.1's stream holds back 15-66 ms (its quality
MQ, 48 -> 16 kHz and 8 -> 16 kHz), swresample 1-2 ms at -84 dB THD+N. A caller waits for that.
"""

from __future__ import annotations

import av
import numpy as np

from voicebot.audio.frames import Pcm, channels_of


class Resampler:
    """Converts int16 mono from `source` to `target` samples per second, chunk by chunk.

    A chunk may give a few samples more or fewer than the ratio says; over a stream none is lost once
    `flush` has been called. At equal rates it hands the chunk through.
    """

    def __init__(self, source: int, target: int) -> None:
        self.source, self.target = source, target
        self._av: av.AudioResampler | None = None

    def __call__(self, pcm: Pcm) -> Pcm:
        if self.source == self.target or not pcm.size:
            return pcm
        if self._av is None:
            self._av = av.AudioResampler("s16", "mono", self.target)
        frame = av.AudioFrame.from_ndarray(pcm[np.newaxis], "s16", "mono")
        frame.sample_rate = self.source
        return _joined(self._av.resample(frame))

    def flush(self) -> Pcm:
        """The samples still inside; afterwards the resampler starts afresh."""
        if self._av is None:
            return np.zeros(0, np.int16)
        rest = _joined(self._av.resample(None))
        self._av = None
        return rest


def resampled(pcm: Pcm, source: int, target: int) -> Pcm:
    """Audio that is whole, from its first sample to its last."""
    resampler = Resampler(source, target)
    return np.concatenate([resampler(pcm), resampler.flush()])


def _joined(frames: list[av.AudioFrame]) -> Pcm:
    parts = [channels_of(frame)[0] for frame in frames]
    return parts[0] if len(parts) == 1 else np.concatenate([np.zeros(0, np.int16), *parts])
