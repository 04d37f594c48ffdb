"""The call on the virtual clock, with engines of known speed and a caller that is a script."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from voicebot import clock
from voicebot.audio.frames import FRAME_S, Frame, Pcm, audible
from voicebot.call import Call, Phrases
from voicebot.config import AgentConfig, Config, load_config
from voicebot.engines import EngineDead, EngineError, Engines, Message, Speech

RATE = 16_000
ROOT = Path(__file__).parent.parent
WORD_S = 0.3
TONES = {"alpha": 400, "bravo": 900, "delta": 1700}
PHRASE_HZ = 2600


class Ears:
    """Gives the scripted transcripts in turn, one for each pass that is waited for."""

    spare = False

    def __init__(self, *texts: str | EngineError, delay: float = 0.1) -> None:
        self.texts, self.delay = list(texts), delay
        self.heard: list[Pcm] = []

    async def transcribe(self, pcm: Pcm) -> str:
        self.heard.append(pcm)
        text = self.texts[min(len(self.heard), len(self.texts)) - 1]
        await asyncio.sleep(self.delay)
        if isinstance(text, EngineError):
            raise text
        return text


Delta = tuple[float, str | EngineError]


def slowly(text: str, pause: float = 0.05) -> list[Delta]:
    """Word by word."""
    words = text.split(" ")
    return [(pause, word if i == len(words) - 1 else word + " ") for i, word in enumerate(words)]


class Brain:
    """Gives the scripted answers in turn: (seconds, delta) each."""

    def __init__(self, *answers: list[Delta]) -> None:
        self.answers = list(answers)
        self.prompts: list[list[Message]] = []
        self.prepared: list[list[Message]] = []
        self.ended: list[str] = []
        self.open = 0

    async def prepare(self, messages: Sequence[Message], *, call_id: str = "") -> None:
        self.prepared.append(list(messages))

    async def stream(self, messages: Sequence[Message], *, call_id: str = "") -> AsyncGenerator[str, None]:
        self.prompts.append(list(messages))
        answer = self.answers[min(len(self.prompts), len(self.answers)) - 1]
        how = "closed early"
        self.open += 1
        try:
            for pause, delta in answer:
                await asyncio.sleep(pause)
                if isinstance(delta, EngineError):
                    how = "failed"
                    raise type(delta)(*delta.args)
                yield delta
            how = "complete"
        finally:
            self.open -= 1
            self.ended.append(how)


class Voice:
    """A tone per answer, WORD_S for each word, in parts of one word."""

    rate = RATE

    def __init__(self, delay: float = 0.02) -> None:
        self.delay = delay
        self.live = False
        self.made_s = 0.0
        self.fail_on: dict[str, EngineError] = {}
        self.texts: list[str] = []
        self.open = 0

    async def stream(self, text: str) -> AsyncGenerator[Speech, None]:
        self.open += 1
        try:
            hz = next((tone for word, tone in TONES.items() if word in text.lower()), PHRASE_HZ)
            if self.live:
                self.texts.append(text)
            for word in text.split():
                if self.live:
                    await asyncio.sleep(self.delay)
                    if fault := self.fail_on.get(word.strip(".,")):
                        raise fault
                    self.made_s += WORD_S
                yield Speech(tone(hz, WORD_S), (WORD_S,))
        finally:
            self.open -= 1


def tone(hz: float, seconds: float) -> Pcm:
    t = np.arange(round(seconds * RATE)) / RATE
    edge = np.minimum(1.0, np.minimum(t, seconds - t) / 0.004)
    return (8000 * edge * np.sin(2 * np.pi * hz * t + 0.1)).astype(np.int16)


class Line:
    """A transport whose caller is told when to speak."""

    rate = RATE

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.sent: list[tuple[float, Pcm]] = []
        self.events: list[dict[str, Any]] = []
        self.loud = False
        self.muted = False
        self.over = False
        self.noise = np.random.default_rng(5)
        self.on_send: Callable[[], None] = lambda: None

    # What the call sees.

    async def frames(self) -> AsyncGenerator[Frame, None]:
        due = self.loop.time()
        while not self.over:
            due += FRAME_S
            await asyncio.sleep(due - self.loop.time())
            if self.over:
                return
            size = round(RATE * FRAME_S)
            pcm = self.noise.integers(-9000, 9000, size) if self.loud else np.zeros(size)
            if not self.muted:
                yield Frame(pcm.astype(np.int16), RATE, due)

    async def send(self, pcm: Pcm) -> None:
        assert len(pcm) == RATE * FRAME_S
        self.sent.append((self.loop.time(), pcm))
        self.on_send()

    def emit(self, event: dict[str, Any]) -> None:
        json.dumps(event)
        self.events.append(event)

    # What the caller does.

    async def wait(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def say(self, seconds: float) -> float:
        """Speaks, and tells since when."""
        start = self.loop.time()
        self.loud = True
        await asyncio.sleep(seconds)
        self.loud = False
        return start

    async def until(self, state: str) -> None:
        """Waits until the bot is in that state."""
        while self.state != state:
            await asyncio.sleep(0.005)

    async def hear_out(self, patience: float = 30.0) -> None:
        """Listens until the bot has spoken and is silent."""
        async with asyncio.timeout(patience):
            await self.until("speaking")
            await self.until("listening")

    def hang_up(self) -> None:
        self.over = True

    # What came of it.

    @property
    def state(self) -> str:
        return next((e["state"] for e in reversed(self.events) if e["type"] == "state"), "")

    def finals(self, role: str = "assistant") -> list[str]:
        return [
            e["text"] for e in self.events if e["type"] == "transcript" and e["role"] == role and e["final"]
        ]

    def audio(self, since: float = 0.0, until: float = 1e9) -> Pcm:
        # A mark is a whole microsecond, a sending time is not.
        parts = [pcm for at, pcm in self.sent if since - 1e-6 <= at < until - 1e-6]
        return np.concatenate([np.zeros(0, np.int16), *parts])

    def heard_s(self, hz: float, since: float = 0.0, until: float = 1e9) -> float:
        """For how long a tone was heard, in frames that it dominates."""
        count = 0
        for at, pcm in self.sent:
            if since - 1e-6 <= at < until - 1e-6 and audible(pcm):
                spectrum = np.abs(np.fft.rfft(pcm.astype(float) * np.hanning(len(pcm))))
                count += abs(int(spectrum.argmax()) * RATE / len(pcm) - hz) < 100
        return count * FRAME_S


@dataclass
class Outcome:
    reason: str
    call: Call
    line: Line
    left: list[str]
    start: float
    result: Any = None
    records: list[dict[str, Any]] = field(default_factory=list)


Script = Callable[[Line], Awaitable[Any]]


def interrupting(after_s: float, for_s: float, *, greeting: bool = False) -> Script:
    """A caller who speaks over the answer to a question, or over the greeting, and listens to what follows; gives
    the moment at which that speech began."""

    async def caller(line: Line) -> float:
        if not greeting:
            await line.hear_out()
            await line.say(0.6)
        await line.until("speaking")
        await line.wait(after_s)
        onset = await line.say(for_s)
        await line.hear_out()
        line.hang_up()
        return onset

    return caller


def settings_of(**changes: dict[str, Any]) -> Config:
    config = load_config(ROOT / "configs" / "embedded.yaml")
    changes["turns"] = {"speculation": False, **changes.get("turns", {})}
    parts = {name: getattr(config, name).model_copy(update=values) for name, values in changes.items()}
    return config.model_copy(update=parts)


AGENT = AgentConfig(
    name="Test",
    system_prompt="You are a test.",
    greeting="Hello there.",
    idle_question="Still there?",
    goodbye="Goodbye then.",
    apology="So sorry.",
    apology_hangup="Please call again.",
)


def call(
    script: Script,
    ears: Ears,
    brain: Brain,
    voice: Voice | None = None,
    agent: AgentConfig = AGENT,
    config: Config | None = None,
) -> Outcome:
    """Runs a call to its end; it must end, and leave nothing behind."""

    async def main() -> Outcome:
        speaker = voice or Voice()
        engines = Engines(ears, brain, speaker)
        phrases = await Phrases.make(engines, agent)
        speaker.live = True
        line = Line()
        made = Call("c1", config or settings_of(), agent, engines, phrases, line, vad=loudness)
        caller = asyncio.create_task(script(line))  # type: ignore[arg-type]
        start = line.loop.time()
        async with asyncio.timeout(400):
            reason = await made.run()
        if not caller.done():
            caller.cancel()
        result = (await asyncio.gather(caller, return_exceptions=True))[0]
        if isinstance(result, BaseException) and not isinstance(result, asyncio.CancelledError):
            raise result
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        left = [task.get_name() for task in tasks]
        assert left == [], "tasks outlive the call"
        assert (brain.open, speaker.open) == (0, 0), "an engine still works for a call that is over"
        records = [record.as_json() for record in made.records]
        assert [e for e in line.events if e["type"] == "turn"] == [{"type": "turn", **r} for r in records]
        for record in records:
            if record["mouth_to_ear_ms"] is not None:
                stages = [value for value in record["stages_ms"].values() if value is not None]
                assert sum(stages) == pytest.approx(record["mouth_to_ear_ms"], abs=1e-6)
        turns = [record["turn"] for record in records]
        assert turns == sorted(set(turns)), "a turn has two records"
        return Outcome(reason, made, line, left, start, result, records)

    return clock.run(main(), virtual=True)


def loudness(window: Pcm) -> float:
    return 0.95 if int(np.abs(window).max()) > 1000 else 0.02


def words(text: str) -> list[str]:
    return text.split()


ALPHA = " ".join(["Alpha"] * 6) + "."
LONG = " ".join([ALPHA] * 6)  # 36 words: 10.8 s


# A turn.


def test_greeting_then_a_turn_with_a_complete_record() -> None:
    async def caller(line: Line) -> float:
        await line.hear_out()
        said = await line.say(1.0)
        await line.hear_out()
        await line.wait(0.5)
        line.hang_up()
        return said

    ears, brain = (
        Ears("What time is it?", delay=0.1),
        Brain([(0.2, "Alpha al"), (0.25, "pha alpha. "), (0.0, "Bravo.")]),
    )
    out = call(caller, ears, brain, Voice(delay=0.15))
    assert out.reason == "hangup"
    assert out.line.finals() == ["Hello there.", "Alpha alpha alpha. Bravo."]
    assert out.line.finals("user") == ["What time is it?"]
    [record] = out.records
    assert record["call_id"] == "c1" and record["turn"] == 1
    assert record["user_text"] == "What time is it?"
    assert record["bot_text"] == "Alpha alpha alpha. Bravo."
    assert record["interrupted"] is False and record["error"] is None
    stages = record["stages_ms"]
    assert 0 <= stages["ingress"] <= 20  # the window's last sample lies inside a frame
    assert 608 <= stages["endpointing"] <= 608 + 32 + 20
    assert stages["asr"] == pytest.approx(100, abs=0.01)
    assert stages["llm"] == pytest.approx(200, abs=0.01)
    assert stages["chunking"] == pytest.approx(250, abs=0.01)
    assert stages["tts"] == pytest.approx(150, abs=0.01)
    assert 0 <= stages["egress"] <= 20 + 0.01
    assert record["over_budget"] == ["asr", "llm", "chunking", "tts"] or "llm" in record["over_budget"]
    # speech_end is where the caller's speech ended, first_packet where the bot's audio begins.
    end = (out.result + 1.0 - out.start) * 1000
    assert abs(record["marks_ms"]["speech_end"] - end) <= 32
    packet = out.start + record["marks_ms"]["first_packet"] / 1000
    assert audible(out.line.audio(packet, packet + FRAME_S))
    assert not audible(out.line.audio(out.result + FRAME_S, packet))
    assert brain.prompts == [
        [
            Message("system", "You are a test."),
            Message("assistant", "Hello there."),
            Message("user", "What time is it?"),
        ]
    ]
    assert brain.ended == ["complete"]
    [heard] = (
        ears.heard
    )  # the utterance with its pre-roll and the settling after it, not the endpointing silence
    assert 1.0 + 0.32 <= len(heard) / 16_000 <= 1.0 + 0.32 + 0.2 + 0.1
    assert [e["state"] for e in out.line.events if e["type"] == "state"] == [
        "listening", "speaking", "listening", "thinking", "speaking", "listening", "ended",
    ]  # fmt: skip
    assert out.line.events[-1] == {"type": "state", "state": "ended", "reason": "hangup"}


def test_the_second_prompt_continues_the_first() -> None:
    async def caller(line: Line) -> None:
        await line.hear_out()
        for _ in range(2):
            await line.say(0.6)
            await line.hear_out()
        line.hang_up()

    brain = Brain(slowly("Alpha."), slowly("Bravo."))
    out = call(caller, Ears("One?", "Two?"), brain)
    assert [r["turn"] for r in out.records] == [1, 2]
    assert brain.prompts[1] == [*brain.prompts[0], Message("assistant", "Alpha."), Message("user", "Two?")]


def test_the_conversation_so_far_is_read_while_the_caller_speaks() -> None:
    async def caller(line: Line) -> None:
        await line.hear_out()
        for _ in range(2):
            await line.say(0.6)
            await line.hear_out()
        line.hang_up()

    brain = Brain(slowly("Alpha."), slowly("Bravo."))
    call(caller, Ears("One?", "Two?"), brain)
    assert len(brain.prepared) == len(brain.prompts) == 2
    for read, asked in zip(brain.prepared, brain.prompts, strict=True):
        assert read == asked[:-1]  # all but the caller's words


# Barge-in.


@pytest.mark.parametrize("at", [0.0, 0.02, 0.2, 0.5, 1.003, 2.011, 3.019, 4.0271])
def test_an_interruption_silences_the_bot_and_keeps_only_what_was_heard(at: float) -> None:
    brain = Brain(slowly(LONG, 0.2), slowly("Bravo."))
    out = call(interrupting(at, 1.0), Ears("First?", "Second?"), brain)
    onset = out.result
    first, second = out.records
    assert not audible(out.line.audio(onset + 0.3, out.start + second["marks_ms"]["first_packet"] / 1000))
    assert out.line.heard_s(TONES["alpha"], onset + 0.3) == 0
    assert first["interrupted"] is True and second["interrupted"] is False
    assert (second["user_text"], second["bot_text"]) == ("Second?", "Bravo.")
    played = out.line.heard_s(TONES["alpha"])
    heard = words(first["bot_text"])
    assert heard == words(LONG)[: len(heard)]
    assert len(heard) * WORD_S <= played + 0.06  # frames at a word's edge may be counted to neither
    assert len(heard) * WORD_S >= played - WORD_S - 0.06
    assert brain.ended == ["closed early", "complete"]
    assert brain.prompts[1][2:] == [
        Message("user", "First?"),
        *([Message("assistant", first["bot_text"])] if heard else []),
        Message("user", "Second?"),
    ] or (not heard and brain.prompts[1][2:] == [Message("user", "First? Second?")])
    assert {
        "type": "transcript",
        "role": "assistant",
        "text": first["bot_text"],
        "final": True,
        "turn": 1,
        "interrupted": True,
    } in out.line.events


def test_a_barge_in_at_the_first_packet_stores_no_word() -> None:
    text = "Alpha " * 5  # words of 0.3 s, interrupted after some 0.28 s
    out = call(interrupting(0.0, 0.6), Ears("First?", "Second?"), Brain(slowly(text), slowly("Bravo.")))
    assert out.records[0]["bot_text"] == ""
    assert out.records[0]["interrupted"] is True


@pytest.mark.parametrize("greeting", [True, False])
def test_of_a_number_that_was_interrupted_nothing_is_heard(greeting: bool) -> None:
    """Written as one word, spoken as six: 1.8 s. Without its spoken form two more words would be taken for heard."""
    text = "Alpha 777777 alpha alpha alpha."

    agent = AGENT.model_copy(update={"greeting": text}) if greeting else AGENT
    caller = interrupting(1.0, 0.8, greeting=greeting)
    out = call(caller, Ears("What?", "What?"), Brain(slowly(text), slowly("Bravo.")), agent=agent)
    assert out.line.finals()[0 if greeting else 1] == "Alpha"


@pytest.mark.parametrize("sound", [" ... ", "Uh-huh.", "Mm-hmm, right."])
def test_a_wordless_barge_in_resumes_and_nothing_is_lost(sound: str) -> None:
    def script(interrupts: bool) -> Script:
        async def caller(line: Line) -> float:
            await line.hear_out()
            await line.say(0.6)
            await line.until("speaking")
            await line.wait(1.507)
            onset = await line.say(0.4) if interrupts else 0.0
            await line.wait(2.0)
            await line.until("listening")
            line.hang_up()
            return onset

        return caller

    plain = call(script(False), Ears("First?"), Brain(slowly(ALPHA + " " + ALPHA)))
    brain = Brain(slowly(ALPHA + " " + ALPHA))
    out = call(script(True), Ears("First?", sound), brain)
    [record] = out.records
    assert len(brain.prompts) == 1
    assert record["bot_text"] == f"{ALPHA} {ALPHA}"
    assert record["interrupted"] is False
    onset = out.result
    # Held, then going on within 1.5 s of the interruption's end.
    held = [at for at, pcm in out.line.sent if onset + 0.3 < at < onset + 2.0 and not audible(pcm)]
    assert 0.5 < len(held) * FRAME_S < 1.5
    # The same samples, but for the two fades of 5 ms.
    voiced, whole = (np.abs(o.line.audio(o.start + 2.0)) > 0 for o in (out, plain))
    assert abs(int(voiced.sum()) - int(whole.sum())) < RATE * 0.002
    a, b = (o.line.audio(o.start + 1.5).astype(float) for o in (out, plain))
    a, b = a[a != 0], b[b != 0]
    assert abs(float((a**2).sum()) / float((b**2).sum()) - 1) < 0.01


@pytest.mark.parametrize("words_", ["Uh-huh, but wait.", "No.", "Yes."])
def test_words_that_mean_something_over_the_bot_stop_it(words_: str) -> None:
    out = call(interrupting(1.5, 0.4), Ears("First?", words_), Brain(slowly(ALPHA), slowly("Bravo.")))
    assert [(r["interrupted"], r["user_text"]) for r in out.records] == [(True, "First?"), (False, words_)]


def test_a_backchannel_into_the_silence_is_a_turn() -> None:
    async def caller(line: Line) -> None:
        await line.hear_out()
        await line.say(0.4)
        await line.hear_out()
        line.hang_up()

    [record] = call(caller, Ears("Yeah."), Brain(slowly("Alpha."))).records
    assert (record["user_text"], record["bot_text"]) == ("Yeah.", "Alpha.")


def test_a_cough_over_the_bot_changes_nothing() -> None:
    async def caller(line: Line) -> None:
        await line.hear_out()
        await line.say(0.6)
        await line.until("speaking")
        await line.wait(0.8)
        await line.say(0.15)
        await line.until("listening")
        line.hang_up()

    ears = Ears("First?", "never asked")
    out = call(caller, ears, Brain(slowly(ALPHA)))
    [record] = out.records
    assert record["bot_text"] == ALPHA and not record["interrupted"]
    assert len(ears.heard) == 1


def test_the_bot_is_silent_200_ms_after_the_caller_speaks() -> None:
    """At the wire, on the virtual clock: what the detector needs, three windows, and a frame."""

    async def caller(line: Line) -> float:
        await line.hear_out()
        await line.say(0.6)
        await line.until("speaking")
        await line.wait(0.8)
        onset = await line.say(0.4)
        await line.until("listening")
        line.hang_up()
        return onset

    out = call(caller, Ears("First?", "Stop."), Brain(slowly(ALPHA), slowly("Bravo.")))
    after = [(at, audible(pcm)) for at, pcm in out.line.sent if at >= out.result]
    silent = next(at for at, sound in after if not sound)
    assert silent <= out.result + 0.2
    assert not any(sound for at, sound in after if silent < at < out.result + 0.4)


def test_late_audio_of_a_cancelled_answer_is_never_heard() -> None:
    """The voice is slow: when the caller interrupts, most of the first answer's audio is still being made."""

    async def caller(line: Line) -> None:
        await line.hear_out()
        for _ in range(3):
            await line.say(0.6)
            await line.until("speaking")
            await line.wait(0.7)
        await line.until("listening")
        line.hang_up()

    answers = [slowly(" ".join([word] * 8) + ". " + " ".join([word] * 8) + ".", 0.01) for word in TONES]
    out = call(caller, Ears("One?", "Two?", "Three?", delay=0.0), Brain(*answers), Voice(delay=0.29))
    one, two, three = (out.start + r["marks_ms"]["first_packet"] / 1000 for r in out.records)
    for (name, hz), since, until in zip(TONES.items(), (one, two, three), (two, three, 1e9), strict=True):
        assert out.line.heard_s(hz) > 0.5, name
        assert out.line.heard_s(hz) == out.line.heard_s(hz, since - 1e-9, until - 1e-9), name
    assert [r["interrupted"] for r in out.records] == [True, True, False]


# The caller goes on.


@pytest.mark.parametrize("llm_s", [0.05, 0.4, 5.0])
def test_going_on_before_the_answer_is_audible_makes_one_turn(llm_s: float) -> None:
    async def caller(line: Line) -> float:
        await line.hear_out()
        await line.say(0.8)
        await line.wait(0.66)
        await line.say(0.8)
        end = line.loop.time()
        await line.hear_out()
        line.hang_up()
        return end

    ears = Ears("I want", "I want a room.", delay=0.1)
    brain = Brain([(llm_s, "Alpha alpha. ")], slowly("Bravo."))
    voice = Voice(delay=0.3)  # nothing is audible before the second part has begun
    out = call(caller, ears, brain, voice)
    [record] = out.records
    assert (record["turn"], record["user_text"], record["bot_text"]) == (
        1,
        "I want a room.",
        out.line.finals()[-1],
    )
    assert out.line.heard_s(TONES["alpha"], 0.0, out.result) == 0
    assert not audible(out.line.audio(out.start + 2.0, out.result))
    assert len(ears.heard[1]) > len(ears.heard[0]) + 16_000  # the whole utterance again
    assert brain.prompts[-1][-1] == Message("user", "I want a room.")
    assert brain.prompts[-1][:-1] == brain.prompts[0][:-1]  # nothing of the first attempt stays
    if len(brain.prompts) == 2:
        assert brain.ended[0] in ("closed early", "complete")
        assert record["bot_text"] == "Bravo."
        assert out.line.heard_s(TONES["alpha"]) == 0


def test_two_utterances_in_quick_succession_are_two_turns_when_the_first_is_being_answered() -> None:
    async def caller(line: Line) -> None:
        await line.hear_out()
        await line.say(0.5)
        await line.wait(0.75)
        await line.say(0.5)
        await line.hear_out()
        line.hang_up()

    brain = Brain(slowly(LONG, 0.0), slowly("Bravo."))
    out = call(caller, Ears("One?", "Two?", delay=0.0), brain, Voice(delay=0.0))
    assert [(r["turn"], r["user_text"], r["interrupted"]) for r in out.records] == [
        (1, "One?", True),
        (2, "Two?", False),
    ]


def test_an_empty_transcript_gets_no_answer_and_the_call_goes_on() -> None:
    async def caller(line: Line) -> None:
        await line.hear_out()
        await line.say(0.5)
        await line.until("thinking")
        await line.until("listening")
        await line.wait(1.0)
        await line.say(0.5)
        await line.hear_out()
        line.hang_up()

    brain = Brain(slowly("Alpha."))
    out = call(caller, Ears("", "Hello?"), brain)
    assert out.reason == "hangup"
    assert [r["user_text"] for r in out.records] == ["Hello?"]
    assert len(brain.prompts) == 1
    assert out.line.finals() == ["Hello there.", "Alpha."]


def test_the_microphone_goes_dead_in_mid_word_and_the_turn_ends_all_the_same() -> None:
    async def caller(line: Line) -> None:
        await line.hear_out()
        line.loud = True
        await line.wait(0.8)
        line.muted = True
        await line.hear_out(patience=5.0)
        line.hang_up()

    out = call(caller, Ears("One?"), Brain(slowly("Alpha.")))
    assert [r["bot_text"] for r in out.records] == ["Alpha."]


def test_a_chopped_turn_of_more_than_the_longest() -> None:
    async def caller(line: Line) -> None:
        await line.hear_out()
        await line.say(7.0)
        await line.hear_out()
        line.hang_up()

    config = settings_of(turns={"max_turn_s": 3.0})
    ears = Ears("One", "Two", "Three")
    out = call(caller, ears, Brain(slowly(LONG, 0.0), slowly(LONG, 0.0), slowly("Delta.")), config=config)
    assert all(len(pcm) / 16_000 < 3.7 for pcm in ears.heard)
    assert out.records[-1]["bot_text"] == "Delta."


# Faults.


def one_turn_after_another(count: int, pause: float = 0.3) -> Script:
    async def caller(line: Line) -> None:
        await line.hear_out()
        for _ in range(count):
            await line.say(0.5)
            await line.hear_out()
            await line.wait(pause)
        line.hang_up()

    return caller


BROKEN: list[Delta] = [(0.1, EngineError("no tokens"))]


def test_a_failing_language_model_gets_an_apology_and_the_call_goes_on() -> None:
    brain = Brain(BROKEN, slowly("Bravo."))
    out = call(one_turn_after_another(2), Ears("One?", "Two?"), brain)
    assert out.reason == "hangup"
    assert out.line.finals() == ["Hello there.", "So sorry.", "Bravo."]
    failed, fine = out.records
    assert failed["error"] == "no tokens"
    assert (failed["user_text"], failed["bot_text"], failed["mouth_to_ear_ms"]) == ("One?", "", None)
    assert fine["error"] is None
    assert brain.prompts[1][:-1] == brain.prompts[0][:-1], "the failed turn stays in the history"
    assert brain.prompts[1][-1] == Message("user", "Two?")


def test_a_failing_recognizer_gets_an_apology_and_the_call_goes_on() -> None:
    out = call(one_turn_after_another(2), Ears(EngineError("deaf"), "Two?"), Brain(slowly("Bravo.")))
    assert out.reason == "hangup"
    assert out.line.finals() == ["Hello there.", "So sorry.", "Bravo."]
    assert [r["error"] for r in out.records] == ["deaf", None]


def test_two_failures_in_a_row_end_the_call_with_a_farewell() -> None:
    out = call(one_turn_after_another(5), Ears("One?"), Brain(BROKEN))
    assert out.reason == "engine_failed"
    assert out.line.finals() == ["Hello there.", "So sorry.", "Please call again."]
    assert len(out.records) == 2
    assert out.line.heard_s(PHRASE_HZ) == pytest.approx(7 * WORD_S, abs=0.1)  # to its last word


def test_a_success_between_two_failures_starts_the_count_anew() -> None:
    brain = Brain(BROKEN, slowly("Alpha."), BROKEN, slowly("Bravo."))
    out = call(one_turn_after_another(4), Ears("One?"), brain)
    assert out.reason == "hangup"
    assert out.line.finals()[-1] == "Bravo."


@pytest.mark.parametrize("where", ["recognizer", "language model", "voice"])
def test_a_dead_engine_ends_the_call_at_once(where: str) -> None:
    ears, brain, voice = Ears("One?"), Brain(slowly(ALPHA)), Voice()
    match where:
        case "recognizer":
            ears = Ears(EngineDead("gone"))
        case "language model":
            brain = Brain([(0.1, EngineDead("gone"))])
        case "voice":
            voice.fail_on["Alpha"] = EngineDead("gone")
    out = call(one_turn_after_another(5), ears, brain, voice)
    assert out.reason == "engine_failed"
    assert out.line.finals() == ["Hello there.", "Please call again."]
    assert [r["error"] for r in out.records] == ["gone"]


def test_an_engine_that_dies_in_mid_answer_ends_the_call_and_the_record_holds_what_was_heard() -> None:
    brain = Brain([*slowly(ALPHA, 0.01), (0.0, " "), (3.0, EngineDead("gone"))])
    out = call(one_turn_after_another(5), Ears("One?"), brain)
    assert out.reason == "engine_failed"
    assert out.line.finals() == ["Hello there.", ALPHA, "Please call again."]
    [record] = out.records
    assert (record["error"], record["bot_text"], record["interrupted"]) == ("gone", ALPHA, True)


def test_a_language_model_that_fails_in_mid_answer_is_heard_as_far_as_it_came() -> None:
    brain = Brain([*slowly(ALPHA, 0.01), (0.0, " "), (1.0, EngineError("cut"))], slowly("Bravo."))
    out = call(one_turn_after_another(2), Ears("One?", "Two?"), brain)
    assert out.line.finals() == ["Hello there.", ALPHA, "Bravo."]
    assert [r["error"] for r in out.records] == ["cut", None]


def test_a_voice_that_fails_in_mid_answer_is_heard_as_far_as_it_came_and_the_call_goes_on() -> None:
    voice = Voice()
    voice.fail_on["delta"] = EngineError("hoarse")
    brain = Brain(slowly(f"{ALPHA} Alpha alpha alpha delta alpha alpha. Alpha."), slowly("Bravo."))
    out = call(one_turn_after_another(2), Ears("One?", "Two?"), brain, voice)
    assert out.reason == "hangup"
    first, second = out.records
    assert first["error"] == "hoarse"
    assert first["bot_text"].startswith(ALPHA) and "delta" not in first["bot_text"]
    assert second["bot_text"] == "Bravo."


def test_a_voice_that_fails_at_once_gets_an_apology() -> None:
    voice = Voice()
    voice.fail_on["Delta"] = EngineError("hoarse")
    out = call(
        one_turn_after_another(2), Ears("One?", "Two?"), Brain(slowly("Delta."), slowly("Bravo.")), voice
    )
    assert out.line.finals() == ["Hello there.", "So sorry.", "Bravo."]


@pytest.mark.parametrize("text", ["", "   ", "👍🏽 🎉", "```\nprint(1)\n```\n", "<think>hm, hm</think>"])
def test_text_that_cannot_be_spoken_gets_an_apology(text: str) -> None:
    out = call(one_turn_after_another(2), Ears("One?", "Two?"), Brain([(0.1, text)], slowly("Bravo.")))
    assert out.line.finals() == ["Hello there.", "So sorry.", "Bravo."]
    assert out.records[0]["error"]


def test_what_is_not_spoken_is_not_in_what_was_heard() -> None:
    async def caller(line: Line) -> None:
        await line.hear_out()
        await line.say(0.5)
        await line.hear_out()
        await line.say(0.5)
        await line.hear_out()
        line.hang_up()

    brain = Brain([(0.1, "<think>secret plan.</think>Alpha alpha, of course. ")], slowly("Bravo."))
    out = call(caller, Ears("One?", "Two?"), brain)
    assert "secret" not in out.records[0]["bot_text"]
    assert not any("secret" in m.content for m in brain.prompts[1])
    assert not any("secret" in e.get("text", "") for e in out.line.events)


# Silence.


def test_a_silent_caller_is_asked_and_then_left() -> None:
    async def caller(line: Line) -> None:
        await line.wait(300)

    out = call(caller, Ears("never"), Brain(slowly("Alpha.")))
    assert out.reason == "silence"
    assert out.line.finals() == ["Hello there.", "Still there?", "Goodbye then."]
    spoken = sum(len(words(text)) for text in out.line.finals()) * WORD_S
    assert out.line.sent[-1][0] - out.start == pytest.approx(12 + 10 + spoken + 0.3, abs=0.2)
    assert out.line.heard_s(PHRASE_HZ, out.line.sent[-1][0] - 1.5) == pytest.approx(2 * WORD_S, abs=0.05)


def test_the_caller_comes_back_after_the_question() -> None:
    async def caller(line: Line) -> None:
        await line.hear_out()
        await line.hear_out()
        await line.say(0.5)
        await line.hear_out()
        await line.hear_out()  # 12 s later the question again, not the farewell
        line.hang_up()

    out = call(caller, Ears("Yes."), Brain(slowly("Alpha.")))
    assert out.reason == "hangup"
    assert out.line.finals() == ["Hello there.", "Still there?", "Alpha.", "Still there?"]


@pytest.mark.parametrize("phrase", ["idle_question", "goodbye", "apology", "apology_hangup"])
def test_an_agent_without_one_of_its_phrases(phrase: str) -> None:
    async def caller(line: Line) -> None:
        if phrase in ("idle_question", "goodbye"):
            await line.wait(300)
        await line.hear_out()
        for _ in range(2):
            await line.say(0.5)
            await line.wait(3.0)
        await line.wait(3.0)

    agent = AGENT.model_copy(update={phrase: ""})
    out = call(caller, Ears("One?"), Brain(BROKEN), agent=agent)
    assert out.reason == ("silence" if phrase in ("idle_question", "goodbye") else "engine_failed")


def test_the_longest_call() -> None:
    async def caller(line: Line) -> None:
        await line.wait(300)

    out = call(caller, Ears("x"), Brain(slowly("Alpha.")), config=settings_of(call={"max_call_s": 5.0}))
    assert out.reason == "too_long"
    assert out.line.sent[-1][0] - out.start == pytest.approx(5.0, abs=0.05)


# Ends.


@pytest.mark.parametrize("at", np.linspace(0.0, 9.9, 20).round(3).tolist())
def test_a_hang_up_at_any_time_ends_everything(at: float) -> None:
    """A greeting, a turn, an interruption and a second turn; `call` checks what is left."""

    async def caller(line: Line) -> None:
        async def talk() -> None:
            await line.hear_out()
            await line.say(0.6)
            await line.until("speaking")
            await line.wait(1.0)
            await line.say(0.8)
            await line.hear_out()

        talking = asyncio.create_task(talk())
        await line.wait(at)
        line.hang_up()
        talking.cancel()
        await asyncio.gather(talking, return_exceptions=True)

    out = call(caller, Ears("One?", "Two?", delay=0.3), Brain(slowly(LONG, 0.2), slowly(LONG, 0.2)))
    assert out.reason == "hangup"
    assert out.line.sent[-1][0] <= out.start + at + 0.05
    for record in out.records:
        assert record["bot_text"] == "" or LONG.startswith(record["bot_text"])


def test_a_hang_up_in_mid_answer_leaves_the_record_of_what_was_heard() -> None:
    async def caller(line: Line) -> None:
        await line.hear_out()
        await line.say(0.6)
        await line.until("speaking")
        await line.wait(2.0)
        line.hang_up()

    brain = Brain(slowly(LONG, 0.2))
    out = call(caller, Ears("One?"), brain)
    [record] = out.records
    assert record["interrupted"] is True
    heard = words(record["bot_text"])
    assert heard == words(LONG)[: len(heard)]
    assert 4 <= len(heard) <= 7
    assert record["mouth_to_ear_ms"] is not None
    assert brain.ended == ["closed early"]


def test_a_hang_up_before_the_answer_leaves_a_record_too() -> None:
    async def caller(line: Line) -> None:
        await line.hear_out()
        await line.say(0.6)
        await line.wait(1.5)
        line.hang_up()

    out = call(caller, Ears("One?"), Brain([(5.0, "Alpha.")]))
    [record] = out.records
    assert (record["user_text"], record["bot_text"], record["mouth_to_ear_ms"]) == ("One?", "", None)
    assert record["error"]


def test_a_call_that_is_cancelled_ends_everything() -> None:
    async def main() -> None:
        brain, voice = Brain(slowly(LONG, 0.2)), Voice()
        engines = Engines(Ears("One?"), brain, voice)
        phrases = await Phrases.make(engines, AGENT)
        line = Line()
        task = asyncio.create_task(
            Call("c1", settings_of(), AGENT, engines, phrases, line, vad=loudness).run()
        )
        await line.hear_out()
        await line.say(0.6)
        await line.until("speaking")
        await line.wait(1.0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert (brain.open, voice.open) == (0, 0)
        assert line.events[-1] == {"type": "state", "state": "ended", "reason": "shutdown"}
        [turn] = [e for e in line.events if e["type"] == "turn"]
        assert turn["bot_text"].startswith("Alpha")

    clock.run(main(), virtual=True)


# The greeting.


def test_an_uninterruptible_greeting_is_heard_to_its_end_and_then_the_caller_is_answered() -> None:
    async def caller(line: Line) -> float:
        await line.wait(1.0)
        said = await line.say(0.8)
        await line.until("thinking")
        await line.hear_out()
        line.hang_up()
        return said

    agent = AGENT.model_copy(update={"greeting": "Hello " * 12 + ".", "greeting_interruptible": False})
    ears = Ears("It is Max.")
    out = call(caller, ears, Brain(slowly("Bravo.")), agent=agent)
    assert out.line.heard_s(PHRASE_HZ) == pytest.approx(12 * WORD_S, abs=0.1)
    [record] = out.records
    assert (record["turn"], record["user_text"], record["bot_text"]) == (1, "It is Max.", "Bravo.")
    assert 1.0 <= len(ears.heard[0]) / 16_000 <= 1.5  # the words, not the greeting that followed


def test_an_interruptible_greeting_is_interrupted() -> None:
    async def caller(line: Line) -> None:
        await line.wait(1.0)
        await line.say(0.8)
        await line.hear_out()
        line.hang_up()

    agent = AGENT.model_copy(update={"greeting": "Hello " * 12 + "."})
    brain = Brain(slowly("Bravo."))
    out = call(caller, Ears("It is Max."), brain, agent=agent)
    assert out.line.heard_s(PHRASE_HZ) < 1.4
    assert 1 <= len(words(brain.prompts[0][1].content)) <= 5  # the greeting as far as it was heard


def test_no_greeting() -> None:
    async def caller(line: Line) -> None:
        await line.wait(0.5)
        await line.say(0.5)
        await line.hear_out()
        line.hang_up()

    out = call(caller, Ears("One?"), Brain(slowly("Alpha.")), agent=AGENT.model_copy(update={"greeting": ""}))
    assert out.line.finals() == ["Alpha."]


# Long answers.


def test_speech_is_not_made_too_far_ahead() -> None:
    ahead: list[float] = []
    voice = Voice(delay=0.0)

    async def caller(line: Line) -> None:
        await line.hear_out()
        played = [0]

        def measure() -> None:
            played[0] += audible(line.sent[-1][1])
            ahead.append(voice.made_s - played[0] * FRAME_S)

        line.on_send = measure
        await line.say(0.6)
        await line.hear_out(patience=100)
        line.hang_up()

    out = call(caller, Ears("One?"), Brain(slowly(" ".join([ALPHA] * 20), 0.0)), voice)
    [record] = out.records
    assert record["bot_text"] == " ".join([ALPHA] * 20)
    assert out.line.heard_s(TONES["alpha"]) == pytest.approx(120 * WORD_S, abs=0.2)
    longest_piece = 6 * WORD_S
    assert max(ahead) <= 4.0 + longest_piece + 0.1
    assert max(ahead) > 2.0
