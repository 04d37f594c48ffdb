"""The unit in which audio travels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Pcm = npt.NDArray[np.int16]
"""Mono samples, shape (n,), full scale +/- 32767."""

FRAME_S = 0.020
"""What a transport sends at a time."""

SPEECH_RATE = 16_000
"""Samples per second of everything that listens: VAD, turn-taking and recognizer."""

AUDIBLE = 100
"""Peak (of 32767, -50 dBFS) from which a frame counts as audible: below lies resampling and dither noise."""


@dataclass(frozen=True, slots=True)
class Frame:
    """A stretch of the caller's audio as a transport received it, of any length."""

    pcm: Pcm
    rate: int
    """Samples per second of `pcm`."""
    arrival: float
    """When its last sample arrived, on the loop's clock, in seconds."""


def audible(pcm: Pcm) -> bool:
    return bool(pcm.size) and int(np.abs(pcm.astype(np.int32)).max()) > AUDIBLE


def silence(samples: int) -> Pcm:
    return np.zeros(samples, np.int16)
