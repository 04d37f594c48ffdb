"""What the bot says, frame by frame: nothing lost or doubled, no clicks, and what was heard of it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from voicebot.audio.frames import Pcm
from voicebot.playout import Playout

RATE = 16_000
FRAME = 320


def ramp(samples: int, start: int = 1) -> Pcm:
    """Samples that can be told apart."""
    return ((np.arange(samples) + start) % 30_000 + 1).astype(np.int16)


def playing(*pieces: tuple[str, Pcm], rate: int = RATE) -> Playout:
    playout = Playout(rate, RATE)
    for text, pcm in pieces:
        piece = playout.add(text)
        playout.feed(piece, pcm)
        playout.end_piece(piece)
    playout.end()
    return playout


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, 2000), min_size=1, max_size=6))
def test_every_sample_comes_out_once_and_in_order(lengths: list[int]) -> None:
    starts = np.cumsum([0, *lengths[:-1]])
    parts = [ramp(n, int(start)) for n, start in zip(lengths, starts, strict=True)]
    playout = playing(*(("word ", part) for part in parts))
    frames = []
    while not playout.done:
        frames.append(playout.next_frame())
    assert all(len(frame) == FRAME for frame in frames)
    out = np.concatenate(frames)
    assert np.array_equal(out[: sum(lengths)], np.concatenate(parts))
    assert not out[sum(lengths) :].any()
    assert playout.heard() == "word " * len(lengths)


def test_silence_while_a_piece_is_still_made_and_after_the_end() -> None:
    playout = Playout(RATE, RATE)
    piece = playout.add("Hello.")
    assert not playout.next_frame().any()
    playout.feed(piece, ramp(FRAME))
    assert playout.next_frame().all()
    assert not playout.next_frame().any()
    assert not playout.done
    playout.end_piece(piece)
    playout.end()
    assert playout.done
    assert not playout.next_frame().any()


def test_heard_is_whole_words_rounded_down_and_never_ahead() -> None:
    text = "one two three four five six seven eight nine ten"
    playout = playing((text, ramp(len(text) * FRAME)))  # one character a frame
    assert playout.heard() == ""
    for played in range(1, len(text) + 1):
        playout.next_frame()
        heard = playout.heard()
        assert text.startswith(heard)
        assert len(heard) <= played
        assert heard == text or text[len(heard) :].startswith(" ") or heard == ""
    assert playout.heard() == text


def test_heard_stops_at_the_piece_that_is_playing() -> None:
    playout = playing(
        ("First. ", ramp(FRAME)), ("Second one here. ", ramp(10 * FRAME)), ("Third.", ramp(FRAME))
    )
    for _ in range(3):
        playout.next_frame()
    assert playout.heard() == "First. "
    assert playout.playing == "First. Second one here. "


def test_a_piece_whose_audio_broke_off_is_heard_as_far_as_it_was_made() -> None:
    playout = Playout(RATE, RATE)
    piece = playout.add("one two three four five six seven eight")
    playout.feed(piece, ramp(RATE // 2))
    playout.cut_piece(piece)
    playout.end()
    while not playout.done:
        playout.next_frame()
    assert playout.heard() in ("one", "one two", "one two three")


def test_hold_fades_to_silence_in_one_frame_and_resume_goes_on_at_the_next_sample() -> None:
    loud = np.full(50 * FRAME, 20_000, np.int16)
    playout = playing(("word " * 10, loud))
    before = [playout.next_frame() for _ in range(5)]
    playout.hold()
    held = [playout.next_frame() for _ in range(20)]
    assert not np.concatenate(held[1:]).any()
    assert not held[0][FRAME // 2 :].any()  # 5 ms of fade
    steps = np.abs(np.diff(np.concatenate([*before, *held]).astype(int)))
    assert steps.max() < 1000  # no click
    left = playout.buffered_s
    playout.resume()
    after = playout.next_frame()
    assert abs(int(after[0])) < 1000
    assert after[FRAME // 2 :].all()
    assert playout.buffered_s == pytest.approx(left - 0.02)
    played = 5 * FRAME + round(0.005 * RATE) + FRAME
    assert playout.buffered_s == pytest.approx((len(loud) - played) / RATE)


def test_not_done_while_held() -> None:
    playout = playing(("Hi.", ramp(FRAME)))
    playout.next_frame()
    playout.hold()
    assert not playout.done
    playout.resume()
    assert playout.done


def test_the_voices_rate_becomes_the_transports() -> None:
    t = np.arange(22_050) / 22_050
    tone = (10_000 * np.sin(2 * np.pi * 440 * t)).astype(np.int16)
    playout = playing(("la", tone), rate=22_050)
    out = np.concatenate([playout.next_frame() for _ in range(50)])
    assert playout.done
    spectrum = np.abs(np.fft.rfft(out.astype(float)))
    assert abs(int(spectrum.argmax()) - 440) <= 1
