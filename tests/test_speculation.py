"""Work begun before the turn is over: hidden time, nothing heard too early, nothing left of what is dropped."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.test_call import (
    AGENT,
    LONG,
    TONES,
    Brain,
    Ears,
    Line,
    Outcome,
    Voice,
    call,
    interrupting,
    loudness,
    settings_of,
    slowly,
)
from voicebot import clock
from voicebot.audio.frames import FRAME_S, Pcm
from voicebot.call import Call, Phrases
from voicebot.engines import EngineError, Engines, Message
from voicebot.turns.words import is_unfinished

SPECULATIVE = settings_of(turns={"speculation": True})


async def one_question(line: Line) -> float:
    await line.hear_out()
    await line.say(0.8)
    end = line.loop.time()
    await line.hear_out()
    line.hang_up()
    return end


def at(event: dict[str, Any], out: Outcome, mark: str) -> float:
    return float(out.start + event["marks_ms"][mark] / 1000)


def test_engine_time_is_hidden_in_the_wait_and_nothing_is_out_before_the_commit() -> None:
    ears, brain = Ears("What time is it?", delay=0.1), Brain([(0.15, "Alpha alpha.")])
    out = call(one_question, ears, brain, Voice(delay=0.1), config=SPECULATIVE)
    [record] = out.records
    commit = at(record, out, "commit")
    assert record["stages_ms"]["endpointing"] == pytest.approx(608, abs=40)
    assert [record["stages_ms"][stage] for stage in ("asr", "llm", "chunking", "tts")] == [0, 0, 0, 0]
    assert record["response_ms"] <= 20
    # From the hint of a pause, 64 ms after the last word, to the first audio; the words were asked for before.
    saved = pytest.approx(335, abs=15)
    assert record["speculation"] == {
        **{"started": 1, "dropped": 0, "kept": True, "guessed": False, "shed": False},
        "saved_ms": saved,
    }
    assert not any(loud for loud in [out.line.heard_s(TONES["alpha"], 0.0, commit)])
    assert out.line.finals("user") == ["What time is it?"]


def test_captions_of_a_speculation_are_not_shown() -> None:
    """The caller pauses, is understood, goes on: no caption of the first half ever appears."""

    async def caller(line: Line) -> None:
        await line.hear_out()
        await line.say(0.8)
        await line.wait(0.45)
        await line.say(0.8)
        await line.hear_out()
        line.hang_up()

    ears = Ears("I want a room", "I want a room with a view.", delay=0.05)
    brain = Brain(slowly(LONG, 0.02), slowly("Bravo."))
    out = call(caller, ears, brain, config=SPECULATIVE)
    [record] = out.records
    assert record["user_text"] == "I want a room with a view."
    assert record["bot_text"] == "Bravo."
    assert record["speculation"]["started"] == 2
    assert record["speculation"]["dropped"] == 1
    texts = {e["text"] for e in out.line.events if e["type"] == "transcript" and e["role"] == "user"}
    assert texts == {"I want a room with a view."}
    assert out.line.heard_s(TONES["alpha"]) == 0
    assert brain.ended == ["closed early", "complete"]  # stopped inside the engine
    assert brain.prompts[1][:-1] == brain.prompts[0][:-1]  # and nothing of it is remembered


def test_a_failed_speculation_is_apologized_for_only_when_the_turn_is_over() -> None:
    brain = Brain([(0.01, EngineError("down"))], slowly("Alpha."))
    out = call(one_question, Ears("Hello?", delay=0.01), brain, config=SPECULATIVE)
    [record] = out.records
    assert record["error"] == "down"
    assert out.line.finals() == ["Hello there.", "So sorry."]
    assert record["mouth_to_ear_ms"] is None
    assert "commit" in record["marks_ms"]


def test_a_failed_speculation_that_is_dropped_costs_nothing() -> None:
    async def caller(line: Line) -> None:
        await line.hear_out()
        await line.say(0.8)
        await line.wait(0.4)
        await line.say(0.8)
        await line.hear_out()
        line.hang_up()

    brain = Brain([(0.01, EngineError("down"))], slowly("Alpha."))
    out = call(caller, Ears("Hel", "Hello?", delay=0.01), brain, config=SPECULATIVE)
    [record] = out.records
    assert (record["error"], record["bot_text"]) == (None, "Alpha.")


def test_an_answer_begun_over_a_held_one_knows_what_of_it_was_heard() -> None:
    brain = Brain(slowly(LONG, 0.05), slowly("Bravo."))
    out = call(interrupting(2.0, 1.0), Ears("First?", "Second?"), brain, config=SPECULATIVE)
    first, second = out.records
    assert first["interrupted"]
    assert first["bot_text"]
    assert brain.prompts[1][2:] == [
        Message("user", "First?"),
        Message("assistant", first["bot_text"]),
        Message("user", "Second?"),
    ]
    assert second["bot_text"] == "Bravo."


class Judge:
    """A turn model whose verdicts are given."""

    def __init__(self, *verdicts: float | EngineError) -> None:
        self.verdicts = list(verdicts)
        self.heard: list[int] = []

    async def completeness(self, pcm: Pcm) -> float:
        self.heard.append(len(pcm))
        verdict = self.verdicts[min(len(self.heard), len(self.verdicts)) - 1]
        if isinstance(verdict, EngineError):
            raise verdict
        return verdict


@pytest.mark.parametrize(
    ("text", "verdicts", "wait_ms"),
    [
        ("That is all", (1.0,), 288),  # sounds complete
        ("I would like", (0.0,), 1600),  # does not
        ("My name is", (1.0,), 1242),  # sounds complete, reads unfinished
        ("Is it open?", (0.0,), 407),  # sounds unfinished, reads as a question
        ("All right.", (1.0,), 765),  # sounds complete, and often is not
        ("Open", (0.0, 1.0), 288),  # with a quarter of a second of silence it sounds complete after all
        ("Open", (EngineError("no"),), 608),  # nobody knows: the fixed silence
    ],
)
def test_the_wait_follows_sound_and_words(
    text: str, verdicts: tuple[float | EngineError, ...], wait_ms: float
) -> None:
    async def main() -> dict[str, Any]:
        voice, line, judge = Voice(), Line(), Judge(*verdicts)
        engines = Engines(Ears(text, delay=0.02), Brain(slowly("Alpha.")), voice, judge)
        phrases = await Phrases.make(engines, AGENT)
        made = Call("c1", SPECULATIVE, AGENT, engines, phrases, line, vad=loudness)
        async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
            tasks.create_task(one_question(line))  # type: ignore[arg-type]
            await made.run()
        [record] = made.records
        return record.as_json()

    record = clock.run(main(), virtual=True)
    assert record["stages_ms"]["endpointing"] == pytest.approx(wait_ms, abs=FRAME_S * 1000 + 33)


@pytest.mark.parametrize(
    ("text", "unfinished"),
    [
        ("My name is", True),
        ("I want a coffee and", True),
        ("I'd like", True),
        ("Um,", True),
        ("So I was...", True),
        ("zero one seven", True),  # a number still short of a phone number
        ("555 123", True),
        ("555 123 4567", False),
        ("zero one seven four four two one", False),
        ("two", False),
        ("in 2018", False),
        ("um I", True),
        ("yes", False),
        ("no", False),
        ("Yes, I do.", False),
        ("What time is check in?", False),
        ("Can I bring my dog?", False),
        ("", False),
        ("?!", False),
    ],
)
def test_words_that_ask_for_more(text: str, unfinished: bool) -> None:
    assert is_unfinished(text) is unfinished
