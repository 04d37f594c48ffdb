"""Short speech kept as audio (voicebot/tts/kept.py)."""

from collections.abc import AsyncGenerator

import numpy as np
import pytest

from voicebot.engines import EngineError, Speech
from voicebot.tts.kept import LONGEST, MOST, KeptSpeech


class Voice:
    """Two parts per text; counts what it is asked for."""

    rate = 16000

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.fails = False

    async def stream(self, text: str) -> AsyncGenerator[Speech, None]:
        self.asked.append(text)
        yield Speech(np.full(3, len(text), np.int16), (0.1, 0.2))
        if self.fails:
            raise EngineError("broken")
        yield Speech(np.full(2, len(self.asked), np.int16), (0.3,))


async def spoken(voice: KeptSpeech, text: str) -> list[tuple[list[int], tuple[float, ...]]]:
    return [(part.pcm.tolist(), part.ends) async for part in voice.stream(text)]


async def test_the_second_time_costs_nothing_and_sounds_the_same() -> None:
    voice = Voice()
    kept = KeptSpeech(voice)
    first = await spoken(kept, "Sure,")
    assert [ends for _, ends in first] == [(0.1, 0.2), (0.3,)]
    assert await spoken(kept, " Sure,") == first
    assert voice.asked == ["Sure,"]
    assert kept.rate == 16000


async def test_learned_openings_are_there_before_the_first_call() -> None:
    voice = Voice()
    kept = KeptSpeech(voice)
    await kept.learn(["Yes,", "No,"])
    await spoken(kept, "No,")
    assert voice.asked == ["Yes,", "No,"]


async def test_long_pieces_are_made_anew() -> None:
    voice = Voice()
    kept = KeptSpeech(voice)
    for _ in range(2):
        await spoken(kept, "x" * (LONGEST + 1))
    assert len(voice.asked) == 2


async def test_speech_that_broke_off_is_not_kept() -> None:
    voice = Voice()
    kept = KeptSpeech(voice)
    voice.fails = True
    with pytest.raises(EngineError):
        await spoken(kept, "Sure,")
    stream = kept.stream("Yes,")
    await anext(stream)
    await stream.aclose()
    voice.fails = False
    await spoken(kept, "Sure,")
    assert len(await spoken(kept, "Yes,")) == 2
    assert voice.asked == ["Sure,", "Yes,", "Sure,", "Yes,"]


async def test_the_one_unused_for_longest_goes_first() -> None:
    voice = Voice()
    kept = KeptSpeech(voice)
    await kept.learn(f"{i}" for i in range(MOST))
    await spoken(kept, "0")
    await spoken(kept, "new")
    asked = len(voice.asked)
    await spoken(kept, "0")
    assert len(voice.asked) == asked
    await spoken(kept, "1")
    assert len(voice.asked) == asked + 1
