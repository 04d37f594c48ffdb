"""Recordings as files: decoding with clear errors, and writing WAV."""

from __future__ import annotations

import wave
from dataclasses import dataclass
from pathlib import Path

import av
import numpy as np
import numpy.typing as npt

from voicebot.audio.frames import Pcm, audible, channels_of
from voicebot.audio.resample import resampled

TRUNCATION_TOLERANCE_S = 0.5
"""Encoders' padding and rounding make a file's stated length differ from its samples by less."""
MAX_HOURS = 4.0


class RecordingError(Exception):
    """The file cannot be replayed; the message names the file and what is wrong with it."""


@dataclass(frozen=True)
class Recording:
    pcm: Pcm
    rate: int
    channels: int
    """Of the file; `pcm` is the one chosen."""

    @property
    def seconds(self) -> float:
        return len(self.pcm) / self.rate

    def at(self, rate: int) -> Pcm:
        """The same audio at so many samples per second."""
        return resampled(self.pcm, self.rate, rate)


def read_recording(path: Path, channel: int = 0) -> Recording:
    """Decodes wav, flac, mp3, ogg and what else FFmpeg knows to int16 at the file's own rate.

    `channel` counts from 0 and must exist. Raises RecordingError for a file that is missing, empty,
    not audio, truncated, silent, too long, or without that channel.
    """
    if not path.exists():
        raise RecordingError(f"{path}: no such file")
    if path.is_dir():
        raise RecordingError(f"{path}: a folder, not a recording")
    if path.stat().st_size == 0:
        raise RecordingError(f"{path}: the file is empty (0 bytes)")
    try:
        samples, rate, stated = _decode(path)
    except (av.FFmpegError, OSError) as error:
        raise RecordingError(f"{path}: not audio that can be decoded ({error.strerror})") from None
    if (missing := _missing_end(path)) is not None:
        raise RecordingError(f"{path}: truncated: {missing}")
    channels = samples.shape[0]
    if not samples.shape[1]:
        raise RecordingError(f"{path}: holds no audio samples")
    if channel >= channels:
        plural = "one channel" if channels == 1 else f"{channels} channels"
        raise RecordingError(f"{path}: has {plural}, so there is no channel {channel} (they count from 0)")
    seconds = samples.shape[1] / rate
    if stated is not None and seconds < stated - TRUNCATION_TOLERANCE_S:
        raise RecordingError(f"{path}: truncated: {seconds:.1f} s of the {stated:.1f} s it says it holds")
    pcm = np.ascontiguousarray(samples[channel])
    if not audible(pcm):
        raise RecordingError(f"{path}: silent{f' on channel {channel}' if channels > 1 else ''}")
    return Recording(pcm, rate, channels)


def _decode(path: Path) -> tuple[npt.NDArray[np.int16], int, float | None]:
    """(samples of shape (channels, n), samples per second, stated length in s or None)."""
    with av.open(str(path)) as container:
        if not container.streams.audio:
            raise RecordingError(f"{path}: holds no audio stream")
        stream = container.streams.audio[0]
        stated = None
        if stream.duration is not None and stream.time_base is not None:
            stated = float(stream.duration * stream.time_base)
        if stated is not None and stated > MAX_HOURS * 3600:
            raise RecordingError(f"{path}: {stated / 3600:.1f} hours long; at most {MAX_HOURS:g}")
        rate = stream.rate
        # Planar 16 bit keeps the channels apart; the rate stays the file's.
        resampler = av.AudioResampler("s16p", None, rate)
        parts: list[npt.NDArray[np.int16]] = []
        try:
            for frame in container.decode(stream):
                parts += [channels_of(out) for out in resampler.resample(frame)]
        except av.FFmpegError as error:
            if not parts:
                raise
            at = sum(part.shape[1] for part in parts) / rate
            raise RecordingError(
                f"{path}: damaged or truncated after {at:.1f} s ({error.strerror})"
            ) from None
        parts += [channels_of(out) for out in resampler.resample(None)] if parts else []
    samples = np.concatenate(parts, axis=1) if parts else np.zeros((1, 0), np.int16)
    return samples, rate, stated


def _missing_end(path: Path) -> str | None:
    """What the container says is missing, where FFmpeg takes what is there for the whole.

    RIFF states its size at offset 4 (0 and 2**32-1 mean "streamed, unknown"); an Ogg stream's last
    page carries the end-of-stream flag (RFC 3533, section 6).
    """
    data = path.read_bytes()
    if data.startswith(b"RIFF") and data[8:12] == b"WAVE":
        stated = int.from_bytes(data[4:8], "little") + 8
        if len(data) < stated < 0xFFFFFFFF:
            return f"{len(data)} of the {stated} bytes that its header states"
    if data.startswith(b"OggS"):
        last = data.rfind(b"OggS")
        if not (last + 5 < len(data) and data[last + 5] & 4):
            return "the Ogg stream has no last page"
    return None


def write_wav(path: Path, channels: list[Pcm], rate: int) -> None:
    """Writes 16-bit WAV with one channel per array, shorter ones padded with silence."""
    length = max((len(channel) for channel in channels), default=0)
    mixed = np.zeros((length, len(channels)), "<i2")
    for i, channel in enumerate(channels):
        mixed[: len(channel), i] = channel
    with wave.open(str(path), "wb") as out:
        out.setnchannels(len(channels))
        out.setsampwidth(2)
        out.setframerate(rate)
        out.writeframes(mixed.tobytes())
