"""Where words end in a Piper voice's speech, by the durations that the voice has worked out itself.

A VITS network decides for every phoneme how many frames of audio it lasts; their sum times the frame's
length is the length of the audio. The network's file does not give these numbers out: `with_durations`
adds them to its outputs. `word_sounds` finds which phonemes speak which word of the text.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate

import numpy as np
import numpy.typing as npt
from piper.const import BOS, EOS, PAD

STRESS = "ˈˌ"
STEPS = ((1, 1), (2, 1), (3, 1), (1, 2), (1, 0), (0, 1))
"""Words alone and words in the text that can be the same: to espeak "of the" is one word."""
BAND = 6
"""Words by which the two may be apart."""

_MODEL_GRAPH, _GRAPH_NODE, _GRAPH_OUTPUT, _VALUE_NAME, _NODE_OUTPUT, _NODE_TYPE = 7, 1, 12, 1, 2, 4
"""Numbers of fields in ONNX's files, fixed by its format (onnx.proto)."""


def with_durations(model: bytes) -> bytes | None:
    """A VITS voice (the content of an .onnx file) with its durations as second output; None if it has none.

    They are the only tensor of the graph that is rounded up. In protobuf's format a message that
    comes in two parts is merged, so the second part, a graph with one more output, goes at the end: no
    need to unpack 60 MB, nor for the onnx package.
    """
    found: list[bytes] = []
    try:
        for graph in _parts(memoryview(model), _MODEL_GRAPH):
            for node in _parts(graph, _GRAPH_NODE):
                if b"Ceil" in map(bytes, _parts(node, _NODE_TYPE)):
                    found += map(bytes, _parts(node, _NODE_OUTPUT))
    except (IndexError, KeyError):  # not such a file: whoever loads it says what is wrong with it
        return None
    if len(found) != 1:
        return None
    output = _field(_GRAPH_OUTPUT, _field(_VALUE_NAME, found[0]))
    return model + _field(_MODEL_GRAPH, output)


def _parts(message: memoryview, number: int) -> Iterator[memoryview]:
    """What the fields with that number in a protobuf message contain."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        size = {0: 0, 1: 8, 2: 0, 5: 4}[key & 7]
        if key & 7 == 2:
            size, at = _varint(message, at)
        elif key & 7 == 0:
            size = _varint(message, at)[1] - at
        if key >> 3 == number:
            yield message[at : at + size]
        at += size


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    """A number, and where the next thing begins."""
    value = shift = 0
    while message[at] & 0x80:
        value |= (message[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
    return value | message[at] << shift, at + 1


def _field(number: int, content: bytes) -> bytes:
    size, length = [], len(content)
    while length > 0x7F:
        size.append(length & 0x7F | 0x80)
        length >>= 7
    return bytes([number << 3 | 2, *size, length]) + content


def is_sound(phoneme: str) -> bool:
    """A letter or a mark that belongs to one: no space, punctuation or stress."""
    return unicodedata.category(phoneme[0])[0] in "LM" and phoneme not in STRESS


def voice_words(sentences: Sequence[Sequence[str]]) -> list[int]:
    """How many sounds each word has, as espeak divides them."""
    words = [0]
    for sentence in sentences:
        for phoneme in [*sentence, " "]:
            if is_sound(phoneme):
                words[-1] += 1
            elif phoneme == " " and words[-1]:
                words.append(0)
    return words[:-1]


def word_sounds(alone: Sequence[int], voice: Sequence[int]) -> list[int]:
    """For each word, how many sounds of the whole text have been spoken when it ends.

    `alone` says how many sounds each word has by itself, `voice` how many each of the voice's words has
    in the text. The two are laid side by side so that the numbers differ least; within a word of the voice
    that stands for several, their sounds count in proportion, rounded up: rather late than early.
    """
    text, spoken = [0, *accumulate(alone)], [0, *accumulate(voice)]
    slope = len(voice) // max(1, len(alone))
    costs = {(0, 0): (0.0, (0, 0))}
    for i in range(len(text)):
        near = i * len(voice) // max(1, len(alone))
        for j in range(max(0, near - BAND), min(len(voice), near + BAND + slope) + 1):
            for di, dj in STEPS:
                if before := costs.get((i - di, j - dj)):
                    differ = abs(text[i] - text[i - di] - spoken[j] + spoken[j - dj])
                    cost = before[0] + differ + (0.1 if (di, dj) != (1, 1) else 0.0)
                    if (i, j) not in costs or cost < costs[i, j][0]:
                        costs[i, j] = cost, (i - di, j - dj)
    ends: list[int] = []
    i, j = len(alone), len(voice)
    end = spoken[j]  # what is the voice's alone belongs to the word before it
    while (i, j) != (0, 0):
        i0, j0 = costs[i, j][1]
        for word in range(i, i0, -1):
            share = (text[word] - text[i0]) / max(1, text[i] - text[i0])
            ends.append(end if word == i else spoken[j0] + math.ceil(share * (spoken[j] - spoken[j0])))
        end = spoken[j0] if i0 < i else end
        i, j = i0, j0
    return ends[::-1]


def sound_ends(
    phonemes: Sequence[str],
    ids: Mapping[str, Sequence[int]],
    durations: npt.NDArray[np.float32] | None,
    samples: int,
) -> list[int]:
    """For each sound of a sentence, how many of its audio's `samples` have been played when it ends.

    `durations` are the network's, in frames, one for each phoneme id: each phoneme has its ids (`ids`
    is the voice's map) and those of the padding after it. Without them, or where they do not
    add up, all phonemes are taken to be equally long.
    """
    begin = len(ids.get(BOS, ())) + len(ids.get(PAD, ()))
    known = [len(ids[phoneme]) + len(ids.get(PAD, ())) if phoneme in ids else 0 for phoneme in phonemes]
    after = np.array([*accumulate(known, initial=begin)][1:], np.int64)
    frames = np.cumsum(durations) if durations is not None else np.zeros(0)
    if len(after) and after[-1] + len(ids.get(EOS, ())) == frames.size and samples % frames[-1] == 0:
        ends = frames[after - 1] * (samples / frames[-1])
    else:
        ends = samples * np.arange(1, len(phonemes) + 1) / max(1, len(phonemes))
    return [int(end) for end, phoneme in zip(ends, phonemes, strict=True) if is_sound(phoneme)]
