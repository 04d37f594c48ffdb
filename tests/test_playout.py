"""What the bot says, frame by frame: nothing lost or doubled, no clicks, and what was heard of it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from voicebot.audio.frames import Pcm
from voicebot.engines import Speech
from voicebot.playout import Playout, written_words

RATE = 16_000
FRAME = 320


def ramp(samples: int, start: int = 1) -> Pcm:
    """Samples that can be told apart."""
    return ((np.arange(samples) + start) % 30_000 + 1).astype(np.int16)


def evenly(text: str, pcm: Pcm, rate: int = RATE) -> Speech:
    """Speech whose characters are all equally long."""
    ends, at = [], 0
    for word in text.split():
        at = text.index(word, at) + len(word)
        ends.append(at / len(text) * len(pcm) / rate)
    return Speech(pcm, tuple(ends))


def playing(*pieces: tuple[str, Pcm], rate: int = RATE) -> Playout:
    playout = Playout(rate, RATE)
    for text, pcm in pieces:
        piece = playout.add(text)
        playout.feed(piece, evenly(text, pcm, rate))
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
    playout.feed(piece, Speech(ramp(FRAME), (0.02,)))
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
    playout.feed(piece, Speech(ramp(RATE // 2), (0.2, 0.5)))
    playout.next_frame()
    playout.cut_piece(piece)
    playout.end()
    while not playout.done:
        playout.next_frame()
    assert playout.heard() == "one two"


def test_a_piece_that_breaks_off_is_heard_as_before_and_no_further() -> None:
    playout = Playout(RATE, RATE)
    piece = playout.add("10-12 p.m. then", "ten to twelve p m then")
    playout.feed(piece, Speech(ramp(RATE), (0.2, 0.4, 0.6, 0.8)))
    for _ in range(35):
        playout.next_frame()
    assert playout.heard() == "10-12"
    playout.cut_piece(piece)
    assert playout.heard() == "10-12"
    playout.end()
    while not playout.done:
        playout.next_frame()
    assert playout.heard() == "10-12"  # "p" is not "p.m."


@pytest.mark.parametrize(("frames", "most"), [(0, 0), (1, 0), (10, 1)], ids=["0 ms", "20 ms", "200 ms"])
def test_a_barge_in_at_the_beginning_leaves_hardly_a_word(frames: int, most: int) -> None:
    """Short words and long ones, in speech whose first word ends early: the history gets no more."""
    for ends in ((0.15, 0.25, 0.4), (0.2, 0.21, 0.4), (0.206, 0.3, 0.4), (0.026, 0.206, 0.4)):
        playout = Playout(RATE, RATE)
        piece = playout.add("I am incomprehensible.")
        playout.feed(piece, Speech(ramp(RATE), ends))
        for _ in range(frames):
            playout.next_frame()
        playout.hold()
        assert len(playout.heard().split()) == sum(end <= frames * 0.02 for end in ends) <= most
        playout.next_frame()  # 5 ms of fade
        assert len(playout.heard().split()) <= most


def test_a_word_without_sound_is_not_heard_before_the_first_frame() -> None:
    playout = Playout(RATE, RATE)
    piece = playout.add("- Hello.")
    playout.feed(piece, Speech(ramp(RATE), (0.0, 0.4)))
    assert playout.heard() == ""


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.lists(st.integers(40, 900), min_size=1, max_size=5), min_size=1, max_size=5),
    st.integers(0, 400),
    st.sampled_from([8_000, 16_000, 48_000]),
)
def test_at_any_offset_the_words_are_those_played_at_most_one_early(
    parts: list[list[int]], frames: int, rate: int
) -> None:
    """Words of known length in ms, several parts to a piece: the word in the air, or the one before it, is
    the last one heard."""
    playout = Playout(16_000, rate)
    truth, at, names = [], 0.0, []
    piece = None
    for i, lengths in enumerate(parts):
        if i % 2 == 0:
            words = [f"w{len(names) + n}" for n in range(sum(map(len, parts[i : i + 2])))]
            names += words
            piece = playout.add(" ".join(words) + " ")
        assert piece
        ends = np.cumsum(lengths) / 1000
        playout.feed(piece, Speech(ramp(int(ends[-1] * 16_000)), tuple(ends.tolist())))
        truth += [at + float(end) for end in ends]
        at = truth[-1]
        if i % 2 or i == len(parts) - 1:
            playout.end_piece(piece)
    playout.end()
    for _ in range(frames):
        playout.next_frame()
    playout.hold()
    heard = playout.heard().split()
    assert heard == names[: len(heard)]
    finished = sum(end <= frames * 0.02 + 1e-9 for end in truth)
    assert finished - 1 <= len(heard) <= min(len(names), finished + (0 if frames == 0 else 1))
    # Rounding of the resampler's length aside, exactly the finished ones:
    clear = all(abs(end - frames * 0.02) > 0.005 for end in truth)
    assert not clear or len(heard) == finished


@pytest.mark.parametrize(
    ("text", "spoken", "heard"),
    [
        (
            "It is $5 now.",
            "It is five dollars now.",
            ["", "It", "It is", "It is", "It is $5", "It is $5 now."],
        ),
        ("**Sure** - ok!", "Sure, ok!", ["", "**Sure**", "**Sure** - ok!"]),
        (
            "Dr. Who, no. 7",
            "Doctor Who, number seven",
            ["", "Dr.", "Dr. Who,", "Dr. Who, no.", "Dr. Who, no. 7"],
        ),
        ("a b", "A b", ["", "a", "a b"]),
        (
            "10-12 p.m. then",
            "ten to twelve p m then",
            ["", "", "", "10-12", "10-12", "10-12 p.m.", "10-12 p.m. then"],
        ),
    ],
)
def test_words_written_otherwise_than_spoken_count_when_they_have_been_spoken(
    text: str, spoken: str, heard: list[str]
) -> None:
    assert [written_words(text, spoken, count) for count in range(len(spoken.split()) + 1)] == heard


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
