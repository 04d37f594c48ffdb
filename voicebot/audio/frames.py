"""The unit in which audio travels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import av
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


def channels_of(frame: av.AudioFrame) -> npt.NDArray[np.int16]:
    """The samples of a 16-bit FFmpeg frame, packed or planar: shape (channels, n)."""
    samples = cast("npt.NDArray[np.int16]", frame.to_ndarray())
    channels = frame.layout.nb_channels
    return samples if samples.shape[0] == channels else samples.reshape(-1, channels).T
