"""Words before the end: passes while the caller speaks, answers to what they read, and who goes first."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.test_call import LONG, TONES, Brain, Ears, Line, Voice, call, settings_of, slowly
from tests.test_speculation import SPECULATIVE, at, one_question
from voicebot.audio.frames import SPEECH_RATE, Pcm
from voicebot.engines import EngineError
from voicebot.load import Load
from voicebot.turns.reading import SHARE, STEP_S, Reading


class Growing(Ears):
    """Reads more the more it hears; `spare` as long as one pass runs at a time."""

    spare = True

    def __init__(self, text_at: Callable[[float], str], delay: float = 0.1) -> None:
        super().__init__(delay=delay)
        self.text_at = text_at
        self.running = self.most = 0

    async def transcribe(self, pcm: Pcm) -> str:
        self.heard.append(pcm)
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await asyncio.sleep(self.delay)
        finally:
            self.running -= 1
        return self.text_at(len(pcm) / SPEECH_RATE - 0.32)  # without the pre-roll


def test_an_answer_begun_on_a_guess_is_kept_when_the_whole_reads_the_same() -> None:
    ears = Growing(lambda heard_s: "what time is it" if heard_s < 0.79 else "What time is it?")
    brain = Brain([(0.15, "Alpha alpha.")])
    out = call(one_question, ears, brain, Voice(delay=0.1), config=SPECULATIVE)
    [record] = out.records
    assert record["user_text"] == "What time is it?"
    assert [prompt[-1].content for prompt in brain.prompts] == ["what time is it"]
    assert record["speculation"]["kept"] and record["speculation"]["guessed"]
    assert (record["speculation"]["started"], record["speculation"]["dropped"]) == (1, 0)
    assert record["marks_ms"]["first_token"] < record["marks_ms"]["commit"]
    assert out.line.finals("user") == ["What time is it?"]
    assert ears.most == 1
    assert len(ears.heard) <= 0.8 / STEP_S + 2


def test_a_wrong_guess_is_dropped_and_only_the_answer_to_the_whole_is_heard() -> None:
    ears = Growing(lambda heard_s: "What time" if heard_s < 0.79 else "What time is it?")
    brain = Brain(slowly(f"Alpha. {LONG}", 0.01), slowly("Bravo."))
    out = call(one_question, ears, brain, config=SPECULATIVE)
    [record] = out.records
    assert [prompt[-1].content for prompt in brain.prompts] == ["What time", "What time is it?"]
    assert brain.prompts[0][:-1] == brain.prompts[1][:-1]
    assert brain.ended == ["closed early", "complete"]
    assert (record["bot_text"], out.line.heard_s(TONES["alpha"])) == ("Bravo.", 0)
    assert record["speculation"] == {**record["speculation"], "started": 2, "dropped": 1, "guessed": False}
    times = [record["marks_ms"][mark] for mark in ("transcript", "first_token", "first_chunk", "first_audio")]
    assert times == sorted(times), "the marks are those of the second answer"


def test_a_guess_is_never_heard_while_the_whole_is_not_read() -> None:
    """The last pass takes longer than the wait for the turn's end."""
    ears = Growing(lambda _: "What time is it?", delay=0.1)
    brain = Brain(slowly("Alpha alpha.", 0.01))

    async def caller(line: Line) -> float:
        await line.hear_out()
        await line.say(0.7)
        ears.delay = 1.5  # the passes from here on
        await line.say(0.1)
        end = line.loop.time()
        await line.hear_out()
        line.hang_up()
        return end

    out = call(caller, ears, brain, config=SPECULATIVE)
    [record] = out.records
    marks = record["marks_ms"]
    assert marks["commit"] < marks["transcript"] <= marks["first_packet"]
    assert not out.line.heard_s(TONES["alpha"], 0.0, at(record, out, "transcript"))
    assert record["speculation"]["guessed"]
    stages = [stage for stage in record["stages_ms"].values() if stage is not None]
    assert sum(stages) == pytest.approx(record["mouth_to_ear_ms"], abs=1e-6)


def test_a_pass_that_fails_before_the_hint_of_a_pause_is_apologized_for() -> None:
    out = call(
        one_question, Ears(EngineError("deaf"), delay=0.01), Brain(slowly("Alpha.")), config=SPECULATIVE
    )
    [record] = out.records
    assert record["error"] == "deaf"
    assert out.line.finals() == ["Hello there.", "So sorry."]


def test_a_pass_that_fails_while_the_caller_speaks_costs_nothing() -> None:
    class Stumbling(Growing):
        async def transcribe(self, pcm: Pcm) -> str:
            text = await super().transcribe(pcm)
            if len(self.heard) == 1:
                raise EngineError("deaf")
            return text

    out = call(one_question, Stumbling(lambda _: "What?"), Brain(slowly("Alpha.")), config=SPECULATIVE)
    [record] = out.records
    assert (record["error"], record["user_text"], record["bot_text"]) == (None, "What?", "Alpha.")


def test_without_speculation_the_recognizer_is_asked_once_and_after_the_commit() -> None:
    ears = Growing(lambda _: "What time is it?")
    out = call(one_question, ears, Brain(slowly("Alpha.")), config=settings_of(turns={"speculation": False}))
    [record] = out.records
    assert len(ears.heard) == 1
    assert record["marks_ms"]["transcript"] > record["marks_ms"]["commit"]
    assert not record["speculation"]["kept"]


def test_passes_are_few_when_they_are_slow_or_others_need_the_recognizer() -> None:
    reading = Reading(0.0)
    assert not reading.due(STEP_S / 2, STEP_S / 2, paused=False, spare=True)
    assert reading.due(STEP_S, STEP_S, paused=False, spare=True)
    assert not reading.due(STEP_S, STEP_S, paused=False, spare=False)
    reading.done(1.0, "a b", took_s=1.0)
    assert not reading.due(1.0 + STEP_S, 1.0 + STEP_S, paused=False, spare=True)
    assert reading.due(1.0 + 1.0 / SHARE, 3.0, paused=False, spare=True)
    assert reading.due(1.5, 1.4, paused=True, spare=False), "whoever pauses waits: at once"
    assert not reading.due(1.5, 1.0, paused=True, spare=True), "all was heard"


def test_a_guess_is_recent() -> None:
    reading = Reading(0.0)
    reading.done(1.0, "I want a", 0.1)
    assert reading.guess(1.2) == "I want a"
    assert reading.guess(1.5) is None


def test_speculation_gives_way_to_callers_who_wait() -> None:
    shed: list[str] = []
    load = Load(1)
    assert load.may_speculate("a")
    load.update("a", waiting=False, shed=lambda: shed.append("a"))
    assert load.may_speculate("a")
    assert not load.may_speculate("b")
    load.update("b", waiting=True, shed=None)
    assert shed == ["a"]
    assert load.others_wait("a") and not load.others_wait("b")
    load.update("a", waiting=False, shed=None)
    assert not load.may_speculate("a")
    load.update("a", waiting=True, shed=None)  # committed work is never refused, and sheds no one twice
    load.update("b", waiting=False, shed=None)
    load.update("a", waiting=False, shed=None)
    assert shed == ["a"]
    assert load.may_speculate("b")


@given(
    st.integers(0, 3),
    st.lists(st.tuples(st.sampled_from("abcd"), st.booleans(), st.booleans()), max_size=40),
)
def test_no_more_than_the_limit_is_made_in_advance_while_someone_waits(
    most: int, updates: list[tuple[str, bool, bool]]
) -> None:
    load = Load(most)
    speculating: set[str] = set()
    waiting: set[str] = set()
    for name, waits, wishes in updates:
        begins = wishes and not waits and (name in speculating or load.may_speculate(name))
        speculating.discard(name)
        if begins:
            speculating.add(name)
        (waiting.add if waits else waiting.discard)(name)
        load.update(name, waiting=waits, shed=(lambda n=name: speculating.discard(n)) if begins else None)
        assert len(speculating) <= max(0, most)
        if waiting and speculating:
            assert len(waiting) + len(speculating) <= most
    for name in "abcd":
        load.update(name, waiting=False, shed=None)
    assert load.may_speculate("a") == (most > 0)
