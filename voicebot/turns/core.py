"""Turn-taking: who speaks, when a turn is over, when the bot must stop. A plain state machine.

It reads no clock, awaits nothing and owns no model. It is told what happened and when, and returns
events; the call (call.py) carries them out. The same inputs always give the same events.

The rules:

1. The caller is SILENT, SPEAKING, or in a PAUSE. A window is speech from `vad_start` up, silence below
   `vad_stop`, and between the two what the window before it was.
2. Speech counts once `min_speech_ms` of it came without a gap of GAP_S in between: `SpeechStarted`.
   Over the audible bot, `dip_ms` silence it for a while (`Dip`), and `barge_in_ms` are a `BargeIn`: the
   bot is HELD. Shorter sounds are dropped: a click starts nothing, and after a cough the bot goes on
   where it was (`Resume`).
3. After `pause_ms` of silence: `Pause`, so that work on an answer can begin; `Resumed` if the caller
   then goes on. After a longer wait the turn is over: `Commit`. The wait depends on how complete the
   turn sounds and reads (`completeness`), from `endpoint_min_ms` to `endpoint_max_ms`, and is
   `endpoint_silence_ms` as long as nobody has said. Missing audio counts as silence, on the timer. A
   turn of `max_turn_s` is over too, and sealed: what the caller still says is a turn of its own,
   after the answer has begun.
4. A commit makes the bot PENDING: an answer is being made. If the caller speaks again before any of
   it was audible, the answer is void: `Retract`. What follows belongs to the same turn.
5. Nothing is committed while the bot says something that may not be interrupted; speech meanwhile is
   kept and becomes a turn when the bot is done.
6. After every commit the call reports what was recognized (`recognized`). No words, and the turn is
   void: a bot that was HELD goes on where it was (`Resume`), otherwise both sides are silent again.
   Words, and a HELD reply is over.
7. When nobody has spoken or worked for `idle_question_s`: `IdleQuestion`; when still nobody has for
   `idle_hangup_s` after it was spoken: `IdleHangup`. A turn with words starts the count anew.

Times are seconds on one monotonic clock and never go back. Each turn has a number, counted from 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum, auto

from voicebot.config import CallConfig, TurnsConfig
from voicebot.turns.vad import WINDOW_S

SURE, DOUBTFUL = 0.7, 0.15
"""Completeness at which the wait is shortest and longest. Smart Turn v3.2, heard 64-300 ms after the last
word, gives 79-94 % of finished utterances more than 0.5 and 90-97 % of pauses within a turn less."""
EAGERNESS_SHIFT = 0.6
"""How far an eagerness of 1 or 0 moves these two, half of it each way."""
LATE_S = 0.06
"""By so much a window may be late before its audio counts as missing: three packets of 20 ms."""
GAP_S = 0.2
"""Longer than any silence inside a word (a stop consonant is silent for 50-150 ms)."""


@dataclass(frozen=True, slots=True)
class SpeechStarted:
    """The caller speaks. `since` is when the first speech window began."""

    turn: int
    since: float


@dataclass(frozen=True, slots=True)
class Dip:
    """A sound over the bot that may become speech: hold the bot until `BargeIn` or `Resume` says which."""


@dataclass(frozen=True, slots=True)
class BargeIn:
    """The caller speaks over the bot: hold it."""

    turn: int
    since: float


@dataclass(frozen=True, slots=True)
class Pause:
    """The turn may be over: begin to work on an answer, and do not let it be heard."""

    turn: int
    speech_end: float
    """Arrival of the caller's last speech sample."""
    ingested: float
    """When that sample reached this core."""


@dataclass(frozen=True, slots=True)
class Resumed:
    """It was only a pause: what was begun is void."""

    turn: int


@dataclass(frozen=True, slots=True)
class Retract:
    """The turn goes on although it was committed: drop the answer in the making."""

    turn: int


@dataclass(frozen=True, slots=True)
class Commit:
    """The turn is over: answer it. The times are those of `Pause`."""

    turn: int
    speech_end: float
    ingested: float


@dataclass(frozen=True, slots=True)
class Dropped:
    """The sound was too short to be speech; its audio can go."""


@dataclass(frozen=True, slots=True)
class Resume:
    """The interruption had no words, or was too short: go on speaking where the bot was held."""


@dataclass(frozen=True, slots=True)
class IdleQuestion:
    """Nobody has spoken for long: ask whether the caller is there."""


@dataclass(frozen=True, slots=True)
class IdleHangup:
    """Nor after the question: end the call."""


Event = (
    SpeechStarted
    | Dip
    | BargeIn
    | Pause
    | Resumed
    | Retract
    | Commit
    | Dropped
    | Resume
    | IdleQuestion
    | IdleHangup
)


class Caller(Enum):
    SILENT = auto()
    SPEAKING = auto()
    PAUSE = auto()


class Bot(Enum):
    QUIET = auto()
    PENDING = auto()
    AUDIBLE = auto()
    HELD = auto()


class TurnCore:
    def __init__(self, turns: TurnsConfig, call: CallConfig, now: float) -> None:
        self._turns, self._call = turns, call
        self.caller = Caller.SILENT
        self.bot = Bot.QUIET
        self.turn = 0
        """The turn that the caller is in, or was in last."""
        self._confirmed = False  # rule 2: the sound counts as speech
        self._was_speech = False
        self._voiced_s = 0.0
        self._silent_s = 0.0  # rule 3: silence heard since the last speech window
        self._speech_start = now
        self._speech_end = now  # arrival of the last speech sample
        self._ingested = now
        self._paused = False  # rule 3: `Pause` was said of the present silence
        self._complete: float | None = None  # rule 3: of the present silence
        self._turn_start = now
        self._open = False  # rule 4: self.turn is committed, but not yet answered or void
        self._sealed = False  # rule 3: the open turn cannot be retracted
        self._interruptible = True
        self._dipped = False  # rule 2: by the sound being heard
        self._quiet_since = now
        self._questions = 0

    # What happened. Each returns the events that follow from it, in order.

    def vad(self, now: float, probability: float, arrival: float) -> list[Event]:
        """One VAD window (32 ms) was heard; its last sample arrived at `arrival` <= `now`."""
        threshold = self._turns.vad_stop if self._was_speech else self._turns.vad_start
        self._was_speech = probability >= threshold
        if self._was_speech:
            self._silent_s = 0.0
            return self._speech(now, arrival)
        self._silent_s += WINDOW_S
        return self.handle_timer(now)

    def completeness(self, now: float, turn: int, speech_end: float, probability: float) -> list[Event]:
        """How probable it is, 0..1, that the turn ended at `speech_end`. Of an older pause: no effect."""
        if turn == self.turn and speech_end == self._speech_end:
            self._complete = probability
        return self.handle_timer(now)

    def audible(self, now: float, *, interruptible: bool = True) -> list[Event]:
        """The first audible packet of what the bot says was sent."""
        self.bot = Bot.AUDIBLE
        self._interruptible = interruptible
        self._dipped = False  # that was another reply
        return self._close(now)

    def finished(self, now: float) -> list[Event]:
        """What the bot had to say was sent to its end, or failed; nothing is in the making."""
        self.bot = Bot.QUIET
        self._dipped = False
        self._quiet_since = now
        return self._close(now)

    def recognized(self, now: float, turn: int, *, words: bool) -> list[Event]:
        """The recognizer's result for a committed turn. A late one, of an older turn, changes nothing."""
        if turn != self.turn or not self._open:
            return []
        if words:
            self._questions = 0
            self.bot = Bot.PENDING
            return []
        held = self.bot is Bot.HELD
        self.bot = Bot.AUDIBLE if held else Bot.QUIET
        self._quiet_since = now
        resumed: list[Event] = [Resume()] if held else []
        return resumed + self._close(now)

    def handle_timer(self, now: float) -> list[Event]:
        """Time has passed; call it at `get_timer()`, or at any other time."""
        if self.caller is not Caller.SILENT:
            if now > self._ingested:
                self.caller = Caller.PAUSE
            events: list[Event] = []
            if (
                self._confirmed
                and not self._paused
                and not self._withheld()
                and now >= self._pause_deadline()
            ):
                self._paused = True
                events = [Pause(self.turn, self._speech_end, self._ingested)]
            return events + self._end_of_speech(now) if now >= self._turn_deadline() else events
        if self.bot is Bot.QUIET and now >= self._idle_deadline():
            self._quiet_since = now
            self._questions += 1
            return [IdleQuestion() if self._questions == 1 else IdleHangup()]
        return []

    def get_timer(self) -> float | None:
        """When `handle_timer` has something to do if nothing else happens; None for never."""
        if self.caller is not Caller.SILENT:
            waits = self._confirmed and not self._paused and not self._withheld()
            deadline = min(self._turn_deadline(), self._pause_deadline() if waits else math.inf)
        else:
            deadline = self._idle_deadline() if self.bot is Bot.QUIET else math.inf
        return deadline if deadline < math.inf else None

    @property
    def speech_end(self) -> float:
        """Arrival of the caller's last speech sample so far."""
        return self._speech_end

    @property
    def in_turn(self) -> bool:
        """The caller has said something that is not answered yet, or is saying it."""
        return self._confirmed or self._open

    @property
    def since(self) -> float | None:
        """From when on the caller's audio may still be needed; None when it may go."""
        if self.in_turn:
            return self._turn_start
        return None if self.caller is Caller.SILENT else self._speech_start

    # How the rules work.

    def _speech(self, now: float, arrival: float) -> list[Event]:
        if self.caller is Caller.SILENT:
            self._confirmed = False
            self._voiced_s = 0.0
            self._speech_start = arrival - WINDOW_S
        self.caller = Caller.SPEAKING
        self._voiced_s += WINDOW_S
        self._speech_end, self._ingested = arrival, now
        self._complete = None
        events = self._confirm(now)
        if self._paused:
            self._paused = False
            events = [Resumed(self.turn), *events]
        return [*events, *self._end_of_speech(now)] if now >= self._turn_deadline() else events

    def _confirm(self, now: float) -> list[Event]:
        """Rule 2: from here on it is speech, if it may be."""
        if self._confirmed or self._withheld() or self._sealed:
            return []
        if not self._enough():
            return self._dip()
        self._confirmed = True
        if self._open:  # rule 4
            self._open = False
            if self.bot is Bot.PENDING:
                self.bot = Bot.QUIET
            return [Retract(self.turn)]
        self.turn += 1
        self._turn_start = self._speech_start
        if self.bot is Bot.AUDIBLE:
            self.bot = Bot.HELD
            self._dipped = False
            return [BargeIn(self.turn, self._speech_start)]
        return [SpeechStarted(self.turn, self._speech_start)]

    def _enough(self) -> bool:
        """Rule 2: long enough to be speech. Half a window of tolerance, since sums of 32 ms are not exact."""
        over_bot = self.bot is Bot.AUDIBLE
        return self._voiced_for(self._turns.barge_in_ms if over_bot else self._turns.min_speech_ms)

    def _voiced_for(self, needed_ms: int) -> bool:
        return (self._voiced_s + WINDOW_S / 2) * 1000 >= needed_ms

    def _dip(self) -> list[Event]:
        """Rule 2: the bot falls silent before it is sure that somebody speaks."""
        if self.bot is not Bot.AUDIBLE or self._dipped or not self._voiced_for(self._turns.dip_ms):
            return []
        self._dipped = True
        return [Dip()]

    def _end_of_speech(self, now: float) -> list[Event]:
        self.caller = Caller.SILENT
        self._was_speech = False
        if not self._confirmed:  # noise: the idle count goes on
            resumed: list[Event] = [Resume()] if self._dipped else []
            self._dipped = False
            return [*resumed, Dropped()]
        self._confirmed = self._paused = False
        self._open = True
        self._sealed = now >= self._turn_start + self._turns.max_turn_s
        if self.bot is Bot.QUIET:
            self.bot = Bot.PENDING
        return [Commit(self.turn, self._speech_end, self._ingested)]

    def _withheld(self) -> bool:
        """Rule 5."""
        return self.bot is Bot.AUDIBLE and not self._interruptible

    def _close(self, now: float) -> list[Event]:
        """The open turn is answered or void; speech that was kept meanwhile may count now."""
        self._open = self._sealed = False
        return self._confirm(now) if self.caller is not Caller.SILENT else []

    def _turn_deadline(self) -> float:
        """When the sound being heard is dropped (rule 2) or committed (rule 3) if nothing else comes."""
        if self._withheld() and (self._confirmed or self._enough()):
            return math.inf
        if not self._confirmed:
            return math.inf if self._enough() and self._sealed else self._ingested + GAP_S
        silence = self._ingested + self._wait_ms() / 1000
        return min(silence, self._turn_start + self._turns.max_turn_s)

    def _pause_deadline(self) -> float:
        # By what was heard, since windows come at their own times; half a window of tolerance, since sums
        # of 32 ms are not exact. The clock decides only when audio is missing.
        pause_s = self._turns.pause_ms / 1000
        heard = self._silent_s + WINDOW_S / 2 >= pause_s
        return self._ingested if heard else self._ingested + pause_s + LATE_S

    def _wait_ms(self) -> float:
        """Rule 3: from the longest wait at DOUBTFUL down to the shortest at SURE."""
        turns = self._turns
        if self._complete is None:
            return turns.endpoint_silence_ms
        probability = self._complete + (turns.eagerness - 0.5) * EAGERNESS_SHIFT
        doubt = min(1.0, max(0.0, (SURE - probability) / (SURE - DOUBTFUL)))
        return turns.endpoint_min_ms + doubt * (turns.endpoint_max_ms - turns.endpoint_min_ms)

    def _idle_deadline(self) -> float:
        """Rule 7."""
        if not self._call.idle_question_s:
            return math.inf
        wait = self._call.idle_hangup_s if self._questions else self._call.idle_question_s
        return self._quiet_since + wait
