"""The turn-taking core: every rule at the top of turns/core.py, then generated calls on a virtual clock."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from voicebot.config import CallConfig, TurnsConfig
from voicebot.turns.core import (
    GAP_S,
    LATE_S,
    BargeIn,
    Bot,
    Caller,
    Commit,
    Dip,
    Dropped,
    Event,
    IdleHangup,
    IdleQuestion,
    Pause,
    Resume,
    Resumed,
    Retract,
    SpeechStarted,
    TurnCore,
)
from voicebot.turns.vad import WINDOW_S

QUIET = {"idle_question_s": 0.0}
MIN, DIP, BARGE, ENDPOINT = 0.096, 0.096, 0.256, 0.608  # the defaults in seconds


def turns_of(events: list[Event]) -> list[Event]:
    """Without the hints of a pause, which have tests of their own."""
    return [event for event in events if not isinstance(event, Pause | Resumed)]


class Bench:
    """A core fed by hand: 32 ms windows on a grid, time in `now`."""

    def __init__(self, turns: dict[str, float] | None = None, call: dict[str, float] | None = None) -> None:
        self.turns = TurnsConfig(**(turns or {}))  # type: ignore[arg-type]
        self.core = TurnCore(self.turns, CallConfig(**(call or QUIET)), 0.0)  # type: ignore[arg-type]
        self.now = 0.0
        self.log: list[Event] = []

    def windows(self, count: int, probability: float) -> list[Event]:
        out: list[Event] = []
        for _ in range(count):
            self.now += WINDOW_S
            out += self.core.vad(self.now, probability, self.now)
        self.log += out
        return turns_of(out)

    def speak(self, seconds: float) -> list[Event]:
        return self.windows(math.ceil(seconds / WINDOW_S - 1e-9), 0.95)

    def hush(self, seconds: float) -> list[Event]:
        return self.windows(math.ceil(seconds / WINDOW_S - 1e-9), 0.02)

    def wait(self, seconds: float) -> list[Event]:
        """No audio at all: only the timers."""
        until, out = self.now + seconds, []
        while (at := self.core.get_timer()) is not None and at <= until:
            self.now = max(self.now, at)
            out += self.core.handle_timer(self.now)
        self.now = until
        self.log += out
        return turns_of(out)

    def commit(self, seconds: float = 0.5) -> Commit:
        """One whole utterance, committed."""
        self.speak(seconds)
        [commit] = self.hush(ENDPOINT + WINDOW_S)
        assert isinstance(commit, Commit)
        return commit

    def audible(self, *, interruptible: bool = True) -> list[Event]:
        return self.core.audible(self.now, interruptible=interruptible)

    def recognized(self, *, words: bool, turn: int | None = None) -> list[Event]:
        return self.core.recognized(self.now, self.core.turn if turn is None else turn, words=words)

    def answering(self) -> None:
        """The bot is audible with the answer to a first turn."""
        self.commit()
        assert self.recognized(words=True) == []
        assert self.audible() == []


# Rule 1: what a speech window is.


def test_between_the_thresholds_the_last_decision_holds() -> None:
    bench = Bench()
    assert bench.windows(10, 0.4) == []  # below vad_start, never speech
    assert bench.core.caller is Caller.SILENT
    assert bench.windows(1, 0.5) == []  # at vad_start
    [started] = bench.windows(2, 0.4)  # at or above vad_stop: still speech
    assert isinstance(started, SpeechStarted)
    bench.windows(5, 0.35)
    assert bench.core.caller is Caller.SPEAKING
    bench.windows(1, 0.34)
    assert bench.core.caller is Caller.PAUSE
    bench.windows(1, 0.4)  # and now it holds as silence
    assert bench.core.caller is Caller.PAUSE


# Rule 2: clicks, short words, coughs, barge-in.


@pytest.mark.parametrize("windows", [1, 2])
def test_a_click_starts_nothing(windows: int) -> None:
    bench = Bench()
    bench.windows(windows, 0.95)
    assert bench.hush(1.0) == [Dropped()]
    assert bench.core.turn == 0
    assert bench.core.since is None


def test_a_short_no_is_a_turn() -> None:
    bench = Bench()
    start = bench.now
    assert bench.speak(MIN) == [SpeechStarted(1, pytest.approx(start))]
    assert [type(event) for event in bench.hush(ENDPOINT + WINDOW_S)] == [Commit]


def test_clicks_with_gaps_between_do_not_add_up_but_a_word_with_a_stop_consonant_does() -> None:
    bench = Bench()
    for _ in range(5):
        bench.windows(1, 0.95)
        assert bench.hush(GAP_S + WINDOW_S) == [Dropped()]
    bench.windows(2, 0.95)
    bench.hush(GAP_S - 2 * WINDOW_S)
    [started] = bench.windows(1, 0.95)
    assert isinstance(started, SpeechStarted)


def test_since_is_the_start_of_the_first_speech_window() -> None:
    bench = Bench()
    bench.hush(1.0)
    start = bench.now
    [started] = bench.speak(0.5)
    assert started == SpeechStarted(1, pytest.approx(start))
    assert bench.core.since == pytest.approx(start)


def test_a_cough_over_the_bot_is_dropped() -> None:
    bench = Bench()
    bench.answering()
    assert bench.speak(DIP - WINDOW_S) == []
    assert bench.hush(1.0) == [Dropped()]
    assert (bench.core.turn, bench.core.bot) == (1, Bot.AUDIBLE)


def test_after_a_longer_cough_the_bot_goes_on() -> None:
    bench = Bench()
    bench.answering()
    assert bench.speak(DIP) == [Dip()]
    assert bench.speak(BARGE - DIP - WINDOW_S) == []
    assert bench.hush(GAP_S - WINDOW_S) == []
    assert bench.hush(2 * WINDOW_S) == [Resume(), Dropped()]
    assert (bench.core.turn, bench.core.bot) == (1, Bot.AUDIBLE)


def test_nothing_silences_what_may_not_be_interrupted() -> None:
    bench = Bench()
    bench.audible(interruptible=False)
    assert bench.speak(BARGE - WINDOW_S) == []
    assert bench.hush(1.0) == [Dropped()]


def test_another_reply_that_begins_during_a_dip_is_silenced_too() -> None:
    bench = Bench()
    bench.answering()
    assert bench.speak(DIP) == [Dip()]
    assert bench.audible() == [Dip()]
    assert bench.hush(1.0) == [Resume(), Dropped()]


def test_barge_in_needs_barge_in_ms() -> None:
    bench = Bench()
    bench.answering()
    start = bench.now
    assert bench.speak(BARGE - WINDOW_S) == [Dip()]
    assert bench.windows(1, 0.95) == [BargeIn(2, pytest.approx(start))]
    assert bench.core.bot is Bot.HELD
    [commit] = bench.hush(ENDPOINT + WINDOW_S)
    assert isinstance(commit, Commit) and commit.turn == 2


def test_two_coughs_over_the_bot_do_not_add_up() -> None:
    bench = Bench()
    bench.answering()
    for _ in range(4):
        bench.speak(BARGE - WINDOW_S)
        assert bench.hush(GAP_S + WINDOW_S) == [Resume(), Dropped()]


def test_late_words_of_the_turn_are_judged_as_over_the_bot_once_it_is_audible() -> None:
    """Three windows would have retracted the answer; two came before its first packet."""
    bench = Bench()
    bench.commit()
    bench.recognized(words=True)
    bench.windows(2, 0.95)
    assert bench.audible() == []
    assert bench.windows(2, 0.95) == [Dip()]
    assert bench.hush(1.0) == [Resume(), Dropped()]


# Rule 3: the end of a turn.


def test_commit_after_the_endpoint_silence_with_speech_end_dated_back() -> None:
    bench = Bench()
    bench.speak(0.5)
    end = bench.now
    events = []
    while not events:
        events = bench.windows(1, 0.0)
    assert events == [Commit(1, pytest.approx(end), pytest.approx(end))]
    assert ENDPOINT <= bench.now - end + 1e-9 < ENDPOINT + WINDOW_S
    assert bench.hush(5.0) == []


def test_speech_end_and_ingested_are_of_the_last_speech_window() -> None:
    bench = Bench()
    for i in range(5):
        bench.core.vad(1.0 + i * WINDOW_S, 0.9, 0.96 + i * WINDOW_S)  # 40 ms under way
    [commit] = turns_of(bench.core.handle_timer(3.0))
    last = 4 * WINDOW_S
    assert commit == Commit(1, pytest.approx(0.96 + last), pytest.approx(1.0 + last))


def test_a_pause_shorter_than_the_endpoint_does_not_end_the_turn() -> None:
    bench = Bench()
    bench.speak(0.5)
    assert bench.hush(ENDPOINT - WINDOW_S) == []
    assert bench.speak(0.3) == []
    [commit] = bench.hush(2.0)
    assert isinstance(commit, Commit) and commit.turn == 1


def test_missing_audio_counts_as_silence_on_the_timer() -> None:
    bench = Bench()
    bench.speak(0.5)
    end = bench.now
    assert turns_of(bench.core.handle_timer(end + ENDPOINT - 0.001)) == []
    assert bench.core.get_timer() == pytest.approx(end + ENDPOINT)
    assert bench.core.caller is Caller.PAUSE
    assert bench.wait(1.0) == [Commit(1, pytest.approx(end), pytest.approx(end))]
    assert bench.core.get_timer() is None
    assert bench.wait(100.0) == []
    bench.recognized(words=False)
    [started] = bench.speak(0.2)  # a later packet starts a new turn
    assert isinstance(started, SpeechStarted) and started.turn == 2


def test_missing_audio_after_a_click_drops_it() -> None:
    bench = Bench()
    bench.windows(2, 0.95)
    assert bench.core.get_timer() == pytest.approx(bench.now + GAP_S)
    assert bench.wait(1.0) == [Dropped()]


def test_a_turn_of_max_turn_s_is_sealed_and_what_follows_is_a_turn_of_its_own() -> None:
    bench = Bench({"max_turn_s": 2.0})
    start = bench.now
    events = bench.speak(2.0 + WINDOW_S)
    assert [type(event) for event in events] == [SpeechStarted, Commit]
    assert events[1].turn == 1
    assert bench.now - start < 2.0 + 2 * WINDOW_S
    assert bench.speak(3.0) == []  # no Retract of a sealed turn, however long they go on
    assert bench.hush(2.0) == []  # nor is it dropped
    assert bench.recognized(words=True) == []
    since = start + 2.0
    [barge] = bench.audible()
    assert isinstance(barge, BargeIn) and barge.turn == 2
    assert since - 1e-9 <= barge.since <= since + 3 * WINDOW_S
    [commit] = bench.wait(1.0)
    assert isinstance(commit, Commit) and commit.turn == 2


def test_after_a_sealed_turn_without_words_the_rest_is_a_turn_at_once() -> None:
    bench = Bench({"max_turn_s": 2.0})
    bench.speak(2.0 + WINDOW_S)
    bench.speak(0.5)
    [started] = bench.recognized(words=False)
    assert isinstance(started, SpeechStarted) and started.turn == 2


def test_short_remains_of_a_sealed_turn_are_dropped() -> None:
    bench = Bench({"max_turn_s": 2.0})
    bench.speak(2.0)
    bench.windows(2, 0.95)
    assert Dropped() in [*bench.log, *bench.hush(1.0)]


# Rule 4: the caller goes on before the answer is audible.


@pytest.mark.parametrize("recognized", [False, True])
def test_going_on_before_the_answer_is_audible_retracts_it(recognized: bool) -> None:
    bench = Bench()
    first = bench.commit()
    since = bench.core.since
    if recognized:
        bench.recognized(words=True)
    assert bench.core.bot is Bot.PENDING
    assert bench.speak(MIN) == [Retract(1)]
    assert bench.core.bot is Bot.QUIET
    assert bench.core.since == since  # the audio of the first part is still needed
    assert bench.recognized(words=True) == []  # late: changes nothing
    assert bench.core.bot is Bot.QUIET
    second = bench.commit()
    assert second.turn == 1
    assert second.speech_end > first.speech_end
    assert bench.log[-1] == second


def test_a_click_does_not_retract() -> None:
    bench = Bench()
    bench.commit()
    bench.windows(2, 0.95)
    assert bench.hush(1.0) == [Dropped()]
    assert bench.core.bot is Bot.PENDING


def test_after_the_answer_is_audible_the_next_speech_is_a_new_turn() -> None:
    bench = Bench()
    bench.answering()
    assert bench.core.finished(bench.now) == []
    [started] = bench.speak(0.2)
    assert isinstance(started, SpeechStarted) and started.turn == 2


def test_a_result_of_an_older_turn_changes_nothing() -> None:
    bench = Bench()
    bench.answering()
    bench.core.finished(bench.now)
    bench.commit()
    assert bench.recognized(words=False, turn=1) == []
    assert bench.core.bot is Bot.PENDING


# Rule 5: what may not be interrupted.


def test_speech_over_an_uninterruptible_phrase_is_kept_and_committed_after_it() -> None:
    bench = Bench()
    assert bench.audible(interruptible=False) == []
    bench.hush(0.5)
    start = bench.now
    assert bench.speak(0.6) == []
    end = bench.now
    assert bench.core.since == pytest.approx(start)
    assert bench.core.get_timer() is None
    assert bench.hush(3.0) == []
    assert bench.core.finished(bench.now) == [SpeechStarted(1, pytest.approx(start))]
    assert bench.wait(0.1) == [Commit(1, pytest.approx(end), pytest.approx(end))]


def test_speech_still_going_when_the_uninterruptible_phrase_ends_is_one_turn() -> None:
    bench = Bench()
    bench.audible(interruptible=False)
    start = bench.now
    bench.speak(1.0)
    [started] = bench.core.finished(bench.now)
    assert started == SpeechStarted(1, pytest.approx(start))
    assert bench.speak(0.5) == []
    [commit] = bench.hush(1.0)
    assert isinstance(commit, Commit) and commit.turn == 1


def test_a_cough_over_an_uninterruptible_phrase_is_dropped() -> None:
    bench = Bench()
    bench.audible(interruptible=False)
    bench.speak(0.1)
    assert bench.hush(1.0) == [Dropped()]
    assert bench.core.finished(bench.now) == []


# Rule 6: wordless turns.


def test_resume_when_the_interruption_had_no_words() -> None:
    bench = Bench()
    bench.answering()
    bench.speak(0.4)
    bench.hush(1.0)
    assert bench.core.bot is Bot.HELD
    assert bench.recognized(words=False) == [Resume()]
    assert bench.core.bot is Bot.AUDIBLE
    bench.speak(0.4)  # and it can be interrupted again
    kinds = [type(event) for event in turns_of(bench.log)]
    assert kinds == [SpeechStarted, Commit, Dip, BargeIn, Commit, Dip, BargeIn]


def test_words_end_a_held_reply() -> None:
    bench = Bench()
    bench.answering()
    bench.speak(0.4)
    bench.hush(1.0)
    assert bench.recognized(words=True) == []
    assert bench.core.bot is Bot.PENDING


def test_a_wordless_turn_over_a_quiet_bot_leaves_both_silent() -> None:
    bench = Bench()
    bench.commit()
    assert bench.recognized(words=False) == []
    assert (bench.core.caller, bench.core.bot) == (Caller.SILENT, Bot.QUIET)
    assert bench.core.since is None
    assert bench.commit().turn == 2


def test_going_on_while_the_bot_is_held_retracts_and_keeps_it_held() -> None:
    bench = Bench()
    bench.answering()
    bench.speak(0.4)
    bench.hush(1.0)
    assert bench.speak(MIN) == [Retract(2)]
    assert bench.core.bot is Bot.HELD
    assert bench.commit(0.1).turn == 2
    assert bench.recognized(words=False) == [Resume()]


# Rule 7: idle.

IDLE = {"idle_question_s": 12.0, "idle_hangup_s": 10.0}


def test_idle_question_then_hangup() -> None:
    bench = Bench(call=IDLE)
    bench.audible()
    bench.now = 3.0
    bench.core.finished(bench.now)
    assert bench.core.get_timer() == pytest.approx(15.0)
    assert bench.wait(11.9) == []
    assert bench.wait(0.2) == [IdleQuestion()]
    bench.audible()
    bench.now += 4.0
    assert bench.core.get_timer() is None  # while the question is spoken
    bench.core.finished(bench.now)
    assert bench.wait(9.9) == []
    assert bench.wait(0.2) == [IdleHangup()]


def test_noise_does_not_put_the_idle_question_off() -> None:
    bench = Bench(call=IDLE)
    bench.hush(5.0)
    bench.windows(2, 0.95)
    assert bench.hush(1.0) == [Dropped()]
    [question] = bench.hush(12.0 - bench.now + WINDOW_S)
    assert question == IdleQuestion()


def test_a_wordless_turn_does_not_start_the_count_anew_and_one_with_words_does() -> None:
    bench = Bench(call=IDLE)
    assert bench.wait(12.0) == [IdleQuestion()]
    bench.audible()
    bench.core.finished(bench.now)
    bench.commit()
    bench.recognized(words=False)
    assert bench.wait(13.0) == [IdleHangup()]

    bench = Bench(call=IDLE)
    assert bench.wait(12.0) == [IdleQuestion()]
    bench.audible()
    bench.core.finished(bench.now)
    bench.commit()
    bench.recognized(words=True)
    bench.audible()
    bench.core.finished(bench.now)
    assert bench.wait(11.9) == []
    assert bench.wait(0.2) == [IdleQuestion()]


def test_no_idle_while_the_caller_speaks_or_the_bot_works() -> None:
    bench = Bench(call=IDLE)
    bench.speak(20.0)
    bench.hush(1.0)
    assert not {IdleQuestion(), IdleHangup()} & {
        e for e in bench.log if isinstance(e, IdleQuestion | IdleHangup)
    }
    assert bench.wait(60.0) == []  # pending
    bench.recognized(words=True)
    bench.audible()
    assert bench.wait(60.0) == []  # audible


def test_idle_disabled() -> None:
    bench = Bench(call=QUIET)
    assert bench.core.get_timer() is None
    assert bench.wait(10_000.0) == []


# Generated calls. The driver does what call.py does with the events, with engines of random speed.


@dataclass(frozen=True)
class Script:
    """What the world does in one generated call; lists are used up in turn, then repeat."""

    segments: tuple[tuple[str, int], ...]
    """(speech, silence or missing; windows)"""
    asr_s: tuple[float, ...]
    words: tuple[bool, ...]
    answer_s: tuple[float, ...]
    """From the transcript to the first audible packet; negative: the answer fails after that time."""
    spoken_s: tuple[float, ...]
    interruptible: tuple[bool, ...]
    lag_s: tuple[float, ...]
    """From a window's arrival to its being fed."""
    idle: bool
    greeting: bool
    complete: tuple[float | None, ...] = (None,)
    """How complete each pause sounds; None: nobody says."""
    max_turn_s: float = 60.0


@dataclass
class Answer:
    turn: int
    """0: a phrase."""
    at: float | None
    """When the step that it waits for happens; None while held."""
    step: str
    left_s: float = 0.0
    interruptible: bool = True


@dataclass
class Driver:
    script: Script
    core: TurnCore = field(init=False)
    log: list[tuple[float, Event | str]] = field(default_factory=list)
    making: Answer | None = None
    playing: Answer | None = None
    answered: list[int] = field(default_factory=list)
    commits: dict[int, Commit] = field(default_factory=dict)
    since: dict[int, float] = field(default_factory=dict)
    counters: dict[str, int] = field(default_factory=dict)
    paused: Pause | None = None
    over: bool = False
    now: float = 0.0

    def __post_init__(self) -> None:
        call = CallConfig(**({"idle_question_s": 12.0, "idle_hangup_s": 10.0} if self.script.idle else QUIET))
        turns = TurnsConfig(max_turn_s=self.script.max_turn_s)
        self.turns = turns
        self.core = TurnCore(turns, call, 0.0)
        if self.script.greeting:
            self.say(interruptible=self.take("interruptible"))

    def take(self, name: str):  # type: ignore[no-untyped-def]
        values = getattr(self.script, name)
        at = self.counters[name] = self.counters.get(name, -1) + 1
        return values[at % len(values)]

    def say(self, *, interruptible: bool = True, turn: int = 0, delay: float = 0.01) -> None:
        """A phrase is in the playout: the next tick sends its first packet."""
        self.playing = Answer(turn, self.now + delay, "audible", interruptible=interruptible)

    # Time.

    def run(self) -> Driver:
        at = 0.0
        for kind, count in self.script.segments:
            for _ in range(count):
                at += WINDOW_S
                if kind != "missing":
                    now = max(self.now, at + self.take("lag_s"))
                    self.advance(now)
                    if self.over:
                        return self
                    self.act(self.core.vad(self.now, 0.95 if kind == "speech" else 0.02, at))
        self.advance(at)
        self.end = self.now
        # Whatever is going on, it ends: engines take 3 s at most, speech 5 s, idle 22 s and a few phrases.
        self.advance(self.now + 120.0)
        return self

    def advance(self, until: float) -> None:
        steps = 0
        while not self.over:
            steps += 1
            assert steps < 10_000, "the core asks for the timer again and again"
            timer = self.core.get_timer()
            waits = [a.at for a in (self.making, self.playing) if a and a.at is not None]
            at = min([*waits, math.inf if timer is None else timer])
            if at > until:
                break
            self.now = max(self.now, at)
            due = next(
                (a for a in (self.playing, self.making) if a and a.at is not None and a.at <= self.now), None
            )
            if due:
                self.step(due)
            else:
                self.act(self.core.handle_timer(self.now))
                after = self.core.get_timer()
                assert after is None or after > self.now, "the timer is still due after handle_timer"
        self.now = max(self.now, until)

    def step(self, answer: Answer) -> None:
        match answer.step:
            case "recognize":
                words = self.take("words")
                held = self.playing
                if not words:
                    self.making = None
                self.act(self.core.recognized(self.now, answer.turn, words=words))
                if not words:
                    return
                if held:
                    self.playing = None
                answer.step, wait = "compose", self.take("answer_s")
                answer.at = self.now + abs(wait)
                answer.interruptible = wait >= 0
            case "compose":
                self.making = None
                if answer.interruptible:
                    self.answered.append(answer.turn)
                    self.playing = answer
                    self.sound(answer)
                else:
                    self.say()  # the apology
            case "audible":
                self.sound(answer)
            case "finish":
                self.playing = None
                self.log.append((self.now, "finished"))
                self.act(self.core.finished(self.now))

    def sound(self, answer: Answer) -> None:
        if answer.turn:
            assert answer.turn in self.commits, "an answer is heard before its turn is committed"
        self.log.append((self.now, f"audible {answer.turn}"))
        answer.step, answer.at = "finish", self.now + self.take("spoken_s")
        self.act(self.core.audible(self.now, interruptible=answer.interruptible))

    # Events.

    def hold(self) -> None:
        assert self.playing and self.playing.step == "finish"
        assert self.playing.interruptible, "what may not be interrupted was"
        if self.playing.at is not None:
            self.playing.left_s, self.playing.at = self.playing.at - self.now, None

    def act(self, events: list[Event]) -> None:
        for event in events:
            self.log.append((self.now, event))
            match event:
                case SpeechStarted() | BargeIn():
                    assert event.turn == len(self.since) + 1, "turns are counted one by one"
                    assert self.making is None, "an answer in the making survives the caller's next turn"
                    assert event.since <= self.now
                    self.since[event.turn] = event.since
                    if isinstance(event, BargeIn):
                        self.hold()
                    else:
                        assert not (self.playing and self.playing.step == "finish"), (
                            "it is over the bot: a barge-in"
                        )
                case Dip():
                    assert self.playing and self.playing.at is not None, "nothing is heard, or it is held"
                    self.hold()
                case Pause():
                    assert self.paused is None, "a second pause without a word in between"
                    assert self.making is None, "work begins beside an open answer"
                    self.paused = event
                    if (sounds := self.take("complete")) is not None:
                        self.act(self.core.completeness(self.now, event.turn, event.speech_end, sounds))
                case Resumed():
                    assert self.paused and self.paused.turn == event.turn
                    self.paused = None
                case Commit():
                    assert self.paused == Pause(event.turn, event.speech_end, event.ingested) or (
                        self.paused is None and self.now >= self.since[event.turn] + self.script.max_turn_s
                    ), "committed without a pause"
                    self.paused = None
                    assert self.making is None, "two open answers"
                    assert event.turn == len(self.since)
                    assert event.turn not in self.answered
                    assert self.since[event.turn] < event.speech_end <= event.ingested <= self.now
                    if self.playing and self.playing.at is not None and self.playing.step == "finish":
                        assert self.playing.interruptible, "committed during an uninterruptible phrase"
                    self.commits[event.turn] = event
                    self.making = Answer(event.turn, self.now + self.take("asr_s"), "recognize")
                case Retract():
                    assert event.turn not in self.answered
                    if self.making:
                        assert self.making.turn == event.turn
                        self.making = None
                    else:  # the answer has failed, the apology was not yet sent
                        assert self.playing and not self.playing.turn and self.playing.step == "audible"
                    del self.commits[event.turn]
                case Resume():
                    assert self.playing and self.playing.at is None, "nothing is held"
                    self.playing.at = self.now + self.playing.left_s
                case IdleQuestion():
                    assert self.script.idle and not self.making and not self.playing
                    self.say()
                case IdleHangup():
                    assert self.script.idle and not self.making and not self.playing
                    self.over = True


def scripts(
    *, fails: bool = False, missing: bool = True, max_turn: bool = False, lag: float = 0.1
) -> st.SearchStrategy[Script]:
    kinds = ["speech", "silence", *(["missing"] if missing else [])]
    segment = st.tuples(
        st.sampled_from(kinds), st.sampled_from([1, 2, 3, 4, 7, 8, 10, 15, 18, 19, 20, 40, 100])
    )
    delay = st.sampled_from([0.0, 0.01, 0.05, 0.2, 0.5, 1.0, 3.0])
    answer = st.one_of(delay, delay.map(lambda d: -d - 0.001)) if fails else delay
    return st.builds(
        Script,
        segments=st.lists(segment, min_size=1, max_size=25).map(tuple),
        asr_s=st.lists(delay, min_size=1, max_size=4).map(tuple),
        words=st.lists(st.booleans(), min_size=1, max_size=4).map(tuple),
        answer_s=st.lists(answer, min_size=1, max_size=4).map(tuple),
        spoken_s=st.lists(st.sampled_from([0.0, 0.1, 0.5, 2.0, 5.0]), min_size=1, max_size=4).map(tuple),
        interruptible=st.lists(st.booleans(), min_size=1, max_size=2).map(tuple),
        lag_s=st.lists(st.floats(0.0, lag), min_size=1, max_size=5).map(tuple),
        idle=st.booleans(),
        greeting=st.booleans(),
        complete=st.lists(st.sampled_from([None, 0.0, 0.4, 1.0]), min_size=1, max_size=4).map(tuple),
        max_turn_s=st.sampled_from([1.1, 2.0, 4.0]) if max_turn else st.just(60.0),
    )


def at_rest(driver: Driver) -> None:
    """Nothing is open, and the timer is there exactly when there is something to wait for."""
    assert driver.making is None and driver.playing is None
    assert driver.core.caller is Caller.SILENT
    assert driver.core.since is None
    if driver.script.idle:
        assert driver.over  # question, hangup
    else:
        assert driver.core.bot is Bot.QUIET
        assert driver.core.get_timer() is None


@settings(max_examples=200, deadline=None)
@given(scripts())
def test_any_call_keeps_the_rules_and_comes_to_rest(script: Script) -> None:
    driver = Driver(script).run()
    at_rest(driver)
    assert len(driver.answered) == len(set(driver.answered)), "a turn was answered twice"
    assert driver.answered == sorted(driver.answered)
    times = [at for at, _ in driver.log]
    assert times == sorted(times)
    assert Driver(script).run().log == driver.log, "the same inputs gave other events"


@settings(max_examples=100, deadline=None)
@given(scripts(max_turn=True))
def test_any_call_with_sealed_turns_keeps_the_rules_and_comes_to_rest(script: Script) -> None:
    driver = Driver(script).run()
    at_rest(driver)
    assert len(driver.answered) == len(set(driver.answered))
    started = {e.turn: at for at, e in driver.log if isinstance(e, SpeechStarted | BargeIn)}
    for at, event in driver.log:
        if isinstance(event, Commit):  # one that had to wait until it could start is committed at once
            longest = max(started[event.turn], driver.since[event.turn] + script.max_turn_s)
            assert at <= longest + 0.1 or event.turn in retracted(driver)


def retracted(driver: Driver) -> set[int]:
    return {event.turn for _, event in driver.log if isinstance(event, Retract)}


@settings(max_examples=150, deadline=None)
@given(scripts(missing=False, lag=0.03))
def test_no_utterance_of_320_ms_is_lost(script: Script) -> None:
    """Not over the bot, not over what may not be interrupted, not while an answer is in the making."""
    driver = Driver(script).run()
    at, utterances = 0.0, []
    for kind, count in script.segments:
        at += count * WINDOW_S
        if kind == "speech" and count >= 10:
            utterances.append((at - count * WINDOW_S, at))
    if driver.over:
        last = driver.log[-1][0]
        utterances = [(a, b) for a, b in utterances if b < last]
    for start, end in utterances:
        assert any(
            driver.since[turn] <= start + 1e-6 and commit.speech_end >= end - 1e-6
            for turn, commit in driver.commits.items()
        ), f"speech from {start:.3f} to {end:.3f} s is in no committed turn"


@settings(max_examples=150, deadline=None)
@given(scripts(fails=True))
def test_failing_answers_leave_no_open_turn(script: Script) -> None:
    driver = Driver(script).run()
    at_rest(driver)


@pytest.mark.parametrize("over_bot", [False, True])
def test_nothing_is_committed_while_an_uninterruptible_phrase_begins_over_the_caller(over_bot: bool) -> None:
    """An engine dies while the caller interrupts the bot: the farewell must not be cut off by their words."""
    bench = Bench()
    if over_bot:
        bench.answering()
    bench.speak(0.4)
    bench.audible(interruptible=False)
    assert bench.hush(2.0) == []
    assert Commit in [type(event) for event in [*bench.core.finished(bench.now), *bench.wait(0.1)]]


# Rule 3: pauses, and how complete they sound.


def paused(bench: Bench) -> Pause:
    """Speaks, then is silent until the hint of a pause."""
    bench.speak(0.5)
    bench.hush(2 * WINDOW_S)
    [pause] = [event for event in bench.log if isinstance(event, Pause)]
    return pause


def test_a_pause_is_told_after_two_silent_windows_and_taken_back_when_the_caller_goes_on() -> None:
    bench = Bench()
    bench.speak(0.5)
    end = bench.now
    bench.hush(WINDOW_S)
    assert not any(isinstance(event, Pause) for event in bench.log)
    bench.hush(WINDOW_S)
    assert bench.log[-1] == Pause(1, end, end)
    bench.hush(3 * WINDOW_S)
    bench.speak(WINDOW_S)
    assert bench.log[-1] == Resumed(1)
    bench.hush(ENDPOINT + WINDOW_S)
    kinds = [type(event) for event in bench.log]
    assert kinds == [SpeechStarted, Pause, Resumed, Pause, Commit]


@pytest.mark.parametrize(
    ("sounds", "eagerness", "wait_ms"),
    [
        (1.0, 0.5, 288),  # complete: the shortest wait
        (0.7, 0.5, 288),
        (0.0, 0.5, 1600),  # unfinished: the longest
        (0.15, 0.5, 1600),
        (0.425, 0.5, 944),  # half way between
        (0.425, 1.0, 288),  # the same, answered eagerly
        (0.425, 0.0, 1600),  # and patiently
    ],
)
def test_the_wait_falls_with_completeness(sounds: float, eagerness: float, wait_ms: float) -> None:
    bench = Bench({"eagerness": eagerness})
    pause = paused(bench)
    assert bench.core.completeness(bench.now, 1, pause.speech_end, sounds) == []
    assert bench.core.get_timer() == pytest.approx(pause.ingested + wait_ms / 1000)
    [commit] = bench.wait(2.0)
    assert commit == Commit(1, pause.speech_end, pause.ingested)


def test_a_late_verdict_commits_at_once_and_one_of_an_older_pause_does_nothing() -> None:
    bench = Bench()
    old = paused(bench)
    bench.speak(0.2)
    bench.hush(0.3)
    assert bench.core.completeness(bench.now, 1, old.speech_end, 1.0) == []
    assert bench.core.completeness(bench.now, 2, bench.core.speech_end, 1.0) == []  # nor of another turn
    [commit] = bench.core.completeness(bench.now, 1, bench.core.speech_end, 1.0)
    assert isinstance(commit, Commit)


def test_a_verdict_is_forgotten_when_the_caller_goes_on() -> None:
    bench = Bench()
    pause = paused(bench)
    bench.core.completeness(bench.now, 1, pause.speech_end, 1.0)
    bench.speak(0.2)
    assert bench.core.get_timer() == pytest.approx(bench.now + 0.064 + LATE_S)  # the next pause, unheard
    bench.hush(2 * WINDOW_S)
    assert bench.core.get_timer() == pytest.approx(bench.core.speech_end + ENDPOINT)
