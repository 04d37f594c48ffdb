"""Resampling, the ear, and recordings as files with everything that can be wrong with them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import av
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from voicebot.audio.ear import KEPT_S, Ear
from voicebot.audio.frames import SPEECH_RATE, Frame, Pcm
from voicebot.audio.recordings import RecordingError, read_recording, write_wav
from voicebot.audio.resample import Resampler
from voicebot.turns.vad import WINDOW, WINDOW_S

RATES = [(22_050, 48_000), (22_050, 8_000), (48_000, 16_000), (8_000, 16_000), (44_100, 16_000)]


def tone(rate: int, seconds: float, hz: float = 1000.0) -> Pcm:
    return (10_000 * np.sin(2 * np.pi * hz * np.arange(int(rate * seconds)) / rate)).astype(np.int16)


def pieces(pcm: Pcm, sizes: list[int]) -> list[Pcm]:
    out, at = [], 0
    while at < len(pcm):
        size = sizes[len(out) % len(sizes)]
        out.append(pcm[at : at + size])
        at += size
    return out


# Resampling.


@pytest.mark.parametrize(("source", "target"), RATES)
def test_a_tone_in_20_ms_pieces_stays_a_clean_tone(source: int, target: int) -> None:
    resampler = Resampler(source, target)
    parts = [resampler(piece) for piece in pieces(tone(source, 2.0), [source // 50])]
    out = np.concatenate([*parts, resampler.flush()]).astype(float)
    assert abs(len(out) - 2 * target) <= 2  # no sample is lost
    middle = out[target // 10 : -target // 10]
    k = np.arange(len(middle)) / target
    basis = np.stack([np.sin(2 * np.pi * 1000 * k), np.cos(2 * np.pi * 1000 * k)], 1)
    fit, *_ = np.linalg.lstsq(basis, middle, rcond=None)
    rest = middle - basis @ fit
    assert 20 * np.log10(rest.std() / middle.std()) < -60  # THD+N


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(RATES), st.lists(st.integers(1, 2000), min_size=1, max_size=20))
def test_pieces_give_what_one_pass_gives(rates: tuple[int, int], sizes: list[int]) -> None:
    pcm = np.random.default_rng(3).integers(-8000, 8000, 20_000).astype(np.int16)
    in_pieces, at_once = Resampler(*rates), Resampler(*rates)
    parts = [in_pieces(piece) for piece in pieces(pcm, sizes)]
    assert np.array_equal(
        np.concatenate([*parts, in_pieces.flush()]), np.concatenate([at_once(pcm), at_once.flush()])
    )


def test_little_is_held_back() -> None:
    """A caller waits for what a resampler keeps inside."""
    resampler = Resampler(48_000, SPEECH_RATE)
    given = sum(len(resampler(piece)) for piece in pieces(tone(48_000, 1.0), [960]))
    assert SPEECH_RATE - given <= 0.002 * SPEECH_RATE


# The ear.


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 1500), min_size=1, max_size=10))
def test_windows_are_the_input_without_gap_and_arrive_in_order(sizes: list[int]) -> None:
    pcm = np.random.default_rng(4).integers(-8000, 8000, SPEECH_RATE).astype(np.int16)
    ear, windows, at = Ear(), [], 0
    for piece in pieces(pcm, sizes):
        at += len(piece)
        windows += list(ear.windows(Frame(piece, SPEECH_RATE, at / SPEECH_RATE)))
    heard = np.concatenate([np.zeros(0, np.int16), *(window for window, _ in windows)])
    assert np.array_equal(heard, pcm[: len(heard)])
    assert len(pcm) - len(heard) < WINDOW
    for number, (window, arrival) in enumerate(windows, 1):
        assert len(window) == WINDOW
        assert arrival == pytest.approx(number * WINDOW_S)  # of its own last sample, whatever the frame


def test_an_utterance_is_what_arrived_between_two_times() -> None:
    ear = Ear()
    pcm = np.arange(2 * SPEECH_RATE) % 20_000
    for start in range(0, len(pcm), 320):
        frame = Frame(pcm[start : start + 320].astype(np.int16), SPEECH_RATE, (start + 320) / SPEECH_RATE)
        list(ear.windows(frame))
    heard = ear.utterance(0.5, 1.0)
    first = int(np.flatnonzero(pcm == heard[0])[0])
    assert abs(first / SPEECH_RATE - 0.5) <= WINDOW_S
    assert abs(len(heard) / SPEECH_RATE - 0.5) <= 2 * WINDOW_S
    assert ear.utterance(5.0, 6.0).size == 0


def test_memory_is_bounded_while_nobody_speaks_and_kept_while_somebody_does() -> None:
    ear = Ear()
    for number in range(1, 6001):  # two minutes
        list(ear.windows(Frame(np.zeros(320, np.int16), SPEECH_RATE, number * 0.02)))
    assert len(ear.utterance(0.0, 200.0)) <= (KEPT_S + 0.1) * SPEECH_RATE
    ear.keep_from = 119.0
    for number in range(6001, 7001):
        list(ear.windows(Frame(np.zeros(320, np.int16), SPEECH_RATE, number * 0.02)))
    assert len(ear.utterance(0.0, 200.0)) >= 20.5 * SPEECH_RATE


def test_a_codec_that_changes_its_rate_in_the_call_is_heard() -> None:
    ear, count = Ear(), 0
    for number in range(1, 101):
        rate = 48_000 if number <= 50 else 8_000
        frame = Frame(tone(rate, 0.02, 400.0), rate, number * 0.02)
        count += len(list(ear.windows(frame)))
    assert abs(count * WINDOW_S - 2.0) < 0.05


# Recordings.


def encoded(path: Path, codec: str, pcm: Pcm, rate: int, channels: int = 1) -> Path:
    layout = {1: "mono", 2: "stereo", 3: "2.1"}[channels]
    with av.open(str(path), "w") as out:
        stream = out.add_stream(codec, rate=rate, layout=layout)
        resampler = av.AudioResampler(stream.codec_context.format, layout, rate)
        frame = av.AudioFrame.from_ndarray(pcm.reshape(1, -1), "s16", layout)
        frame.sample_rate = rate
        for part in [*resampler.resample(frame), *resampler.resample(None)]:
            part.pts = None
            for packet in stream.encode(part):
                out.mux(packet)
        for packet in stream.encode(None):
            out.mux(packet)
    return path


FORMATS = [
    ("wav", "pcm_s16le", 8000),
    ("flac", "flac", 44_100),
    ("mp3", "mp3", 48_000),
    ("ogg", "libopus", 48_000),
]


@pytest.mark.parametrize(("ending", "codec", "rate"), FORMATS)
def test_formats_are_read_at_their_own_rate_and_length(
    tmp_path: Path, ending: str, codec: str, rate: int
) -> None:
    recording = read_recording(encoded(tmp_path / f"a.{ending}", codec, tone(rate, 3.0), rate))
    assert recording.rate == rate
    assert recording.channels == 1
    assert recording.seconds == pytest.approx(3.0, abs=0.1)
    spectrum = np.abs(np.fft.rfft(recording.pcm.astype(float)))
    assert abs(spectrum.argmax() / recording.seconds - 1000) < 2


@pytest.mark.parametrize(("ending", "codec", "rate"), FORMATS)
def test_a_truncated_file_is_not_taken_for_whole(tmp_path: Path, ending: str, codec: str, rate: int) -> None:
    whole = encoded(tmp_path / f"a.{ending}", codec, tone(rate, 5.0), rate).read_bytes()
    cut = tmp_path / f"cut.{ending}"
    cut.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(RecordingError, match=r"cut\..*truncated"):
        read_recording(cut)


BAD: list[tuple[str, Callable[[Path], object], str]] = [
    ("missing", lambda path: None, "no such file"),
    ("folder", lambda path: path.mkdir(), "a folder"),
    ("empty", lambda path: path.write_bytes(b""), "empty"),
    ("text", lambda path: path.write_text("these are words " * 100), "audio"),
    ("noise", lambda path: path.write_bytes(np.random.default_rng(5).bytes(20_000)), "audio"),
    ("header only", lambda path: path.write_bytes(b"RIFF"), "audio"),
    ("no samples", lambda path: write_wav(path, [np.zeros(0, np.int16)], 8000), "no audio samples"),
    ("silent", lambda path: write_wav(path, [np.zeros(8000, np.int16)], 8000), "silent"),
    ("nearly silent", lambda path: write_wav(path, [np.full(8000, 3, np.int16)], 8000), "silent"),
]


@pytest.mark.parametrize(("make", "reason"), [case[1:] for case in BAD], ids=[case[0] for case in BAD])
def test_bad_files_are_named_with_the_reason(
    tmp_path: Path, make: Callable[[Path], object], reason: str
) -> None:
    path = tmp_path / "call.wav"
    make(path)
    with pytest.raises(RecordingError) as caught:
        read_recording(path)
    assert str(path) in str(caught.value)
    assert reason in str(caught.value)


@pytest.mark.parametrize("channels", [2, 3])
def test_the_channel_that_was_asked_for(tmp_path: Path, channels: int) -> None:
    path = tmp_path / "stereo.wav"
    write_wav(path, [tone(8000, 1.0, 300.0 * (number + 1)) for number in range(channels)], 8000)
    for number in range(channels):
        recording = read_recording(path, number)
        assert recording.channels == channels
        assert abs(np.abs(np.fft.rfft(recording.pcm.astype(float))).argmax() - 300 * (number + 1)) <= 1
    with pytest.raises(RecordingError, match=f"has {channels} channels, so there is no channel {channels}"):
        read_recording(path, channels)


def test_written_wav_is_read_back_padded_to_the_longer_channel(tmp_path: Path) -> None:
    short, long = tone(16_000, 0.5), tone(16_000, 1.0, 500.0)
    write_wav(tmp_path / "a.wav", [short, long], 16_000)
    first = read_recording(tmp_path / "a.wav", 0).pcm
    assert np.array_equal(first[: len(short)], short)
    assert not first[len(short) :].any()
    assert np.array_equal(read_recording(tmp_path / "a.wav", 1).pcm, long)
