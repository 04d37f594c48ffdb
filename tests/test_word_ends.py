"""Where words end in the voice's speech (voicebot/tts/word_ends.py), without a voice."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from voicebot.tts.word_ends import sound_ends, voice_words, with_durations, word_sounds

IDS = {"^": [1], "_": [0], "$": [2], " ": [3], ",": [4], "a": [5], "b": [6], "ˈ": [7]}


def field(number: int, content: bytes) -> bytes:
    assert len(content) < 128
    return bytes([number << 3 | 2, len(content)]) + content


def node(kind: str, output: str) -> bytes:
    """A node as PyTorch writes it: input, output, name, type."""
    parts = field(1, b"in") + field(2, output.encode()) + field(3, b"/x") + field(4, kind.encode())
    return field(1, parts)


def model(*nodes: bytes) -> bytes:
    version, producer = bytes([8, 8]), field(2, b"pytorch")
    return version + producer + field(7, b"".join(nodes))


def test_the_rounded_durations_become_an_output() -> None:
    plain = model(node("Exp", "e"), node("Ceil", "w_ceil"), node("Conv", "Ceil"))
    assert with_durations(plain) == plain + field(7, field(12, field(1, b"w_ceil")))


@pytest.mark.parametrize(
    "content",
    [model(node("Exp", "e")), model(node("Ceil", "a"), node("Ceil", "b")), b"not a model", b"", b"\xff" * 9],
    ids=["no durations", "two candidates", "no model", "empty", "garbage"],
)
def test_a_model_without_clear_durations_stays_as_it_is(content: bytes) -> None:
    assert with_durations(content) is None


def test_voice_words_counts_sounds_between_spaces() -> None:
    sentences = [list("wˈʌn, tˈuː "), list(" - "), list("aɪm ɔnðə ɹˈoʊd.")]
    assert voice_words(sentences) == [3, 3, 3, 4, 4]


@pytest.mark.parametrize(
    ("alone", "voice", "ends"),
    [
        ([3, 2, 4], [3, 2, 4], [3, 5, 9]),
        ([4, 2, 2, 5], [4, 4, 5], [4, 6, 8, 13]),  # road of the hotel: ɹoʊd ʌvðə hoʊtɛl
        ([2, 2, 2, 4], [2, 2, 1, 4], [2, 4, 5, 9]),  # "a" alone is its letter's name
        ([3, 2, 2, 2, 5], [3, 4, 2, 6], [3, 5, 7, 9, 15]),
        ([3, 0, 4], [3, 4], [3, 3, 7]),  # a dash that is not spoken
        ([3, 4], [3, 4, 2], [3, 9]),
        ([2, 2], [5], [3, 5]),  # rounded up: late rather than early
        ([3, 3], [], [0, 0]),
        ([], [4], []),
    ],
)
def test_words_alone_are_found_in_what_the_voice_runs_together(
    alone: list[int], voice: list[int], ends: list[int]
) -> None:
    assert word_sounds(alone, voice) == ends


@given(st.lists(st.integers(0, 9), max_size=40), st.lists(st.integers(1, 9), max_size=40))
def test_whatever_the_counts_every_word_ends_and_the_ends_rise(alone: list[int], voice: list[int]) -> None:
    ends = word_sounds(alone, voice)
    assert len(ends) == len(alone)
    assert ends == sorted(ends)
    assert not ends or (ends[-1] == sum(voice) and ends[0] >= 0)


def test_sounds_end_where_the_frames_of_their_ids_and_padding_end() -> None:
    #            ^  _  a  _  ˈ  _  b  _  ␣  _  a  _  ,  _  $
    durations = [1, 2, 3, 1, 1, 1, 2, 2, 4, 1, 5, 1, 9, 1, 1]
    frames = np.array(durations, np.float32)
    assert sound_ends(list("aˈb a,"), IDS, frames, 35 * 256) == [7 * 256, 13 * 256, 24 * 256]


def test_a_phoneme_that_the_voice_does_not_have_takes_no_time() -> None:
    frames = np.array([1, 2, 3, 1, 2, 2, 1], np.float32)
    assert sound_ends(list("aɮb"), IDS, frames, 12 * 256) == [7 * 256, 7 * 256, 11 * 256]


@pytest.mark.parametrize(
    "durations", [None, [1, 2, 3], [1, 2, 3, 1, 2, 2, 2]], ids=["none", "too few", "not the audio's length"]
)
def test_without_usable_durations_all_phonemes_are_equally_long(durations: list[int] | None) -> None:
    frames = None if durations is None else np.array(durations, np.float32)
    assert sound_ends(["a", "b"], IDS, frames, 1000) == [500, 1000]
    assert sound_ends([], IDS, frames, 1000) == []
