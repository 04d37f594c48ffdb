"""`voicebot bench turns`: what early endpointing costs in cut-ins, over recordings with marked turn ends.

Each recording is one turn. Its audio goes through the product's own VAD, turn-taking core, Smart Turn and
recognizer on the recording's time line; a model's result reaches the core after the model's median
time, measured in the same run. An answer is heard at the commit, or ANSWER_S after the last word if that is
later; a caller who goes on before that is not cut in, since the core takes the commit back. The
commit of the answer that is heard is a cut-in if it lies before the marked end of the turn; after it, the
distance is the endpointing delay. Strictly, any commit before that end is too early, taken back or not: both
are counted. Model results are kept per pause, so that a curve over eagerness runs the models once.
"""

from __future__ import annotations

import heapq
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from voicebot.audio.ear import Ear
from voicebot.audio.frames import SPEECH_RATE, Frame, Pcm
from voicebot.audio.recordings import read_recording
from voicebot.bench.report import quantile
from voicebot.config import CallConfig, TurnsConfig
from voicebot.engines import Recognizer, TurnModel
from voicebot.turns.core import Commit, Event, Pause, Retract, TurnCore
from voicebot.turns.vad import WINDOW_S, SileroVad
from voicebot.turns.words import SECOND_JUDGEMENT_S, completeness

TOLERANCE_S = 0.1
"""A commit so shortly before the marked end is no cut-in: the marks are exact to 50 ms."""
ANSWER_S = 0.4
"""From the caller's last word to the first sound of an answer that speculation began: the product's goal. The
same is granted to the baselines, so that endpointing alone is compared."""
HUSH_S = 4.0
"""Silence after each turn, more than any setting waits."""
FOLLOWING_S = 2.5
"""Of a call's recording kept after a turn: the room sounds as it did before."""
SHORTEST_S = 0.3
"""Of a call's turn: in less ("Bye.", 0.22 s) the marks' own error is a quarter of what is measured."""
PEER_VAD_STOP_S, PEER_STOP_S, PEER_COMPLETE = 0.2, 3.0, 0.5
"""pipecat 1.14.0's defaults: VAD_STOP_SECS (audio/vad/vad_analyzer.py; 0.8 in older versions), STOP_SECS
(audio/turn/smart_turn/base_smart_turn.py), "probability > 0.5" (local_smart_turn_v3.py, beside it)."""


@dataclass(frozen=True)
class Turn:
    """A recorded turn: 16 kHz audio, and where its speech ends, in seconds."""

    name: str
    kind: str
    pcm: Pcm
    speech_end: float


@dataclass(frozen=True)
class Outcome:
    turn: Turn
    commit: float | None
    """Of the answer that is heard, in seconds from the recording's start; None if the turn was never heard
    or never ended."""
    commits: tuple[float, ...] = ()
    """All of them, also those that were taken back in time."""

    @property
    def early(self) -> bool:
        """Strictly: some commit came before the end."""
        return any(at < self.turn.speech_end - TOLERANCE_S for at in self.commits)

    @property
    def cut_in(self) -> bool:
        return self.commit is not None and self.commit < self.turn.speech_end - TOLERANCE_S

    @property
    def delay_s(self) -> float | None:
        return None if self.commit is None or self.cut_in else self.commit - self.turn.speech_end


@dataclass
class Known:
    """What the models say of a recording, and how long they took."""

    windows: list[tuple[float, float]]
    """(arrival of its last sample, speech probability) of each VAD window."""
    sounds: dict[tuple[float, float], float] = field(default_factory=dict)
    """Completeness by (from, until) of the audio judged, in seconds."""
    words: dict[tuple[float, float], str] = field(default_factory=dict)

    def wordless(self, end: float) -> bool:
        """True if the recognizer heard no words up to the pause that began at `end`."""
        text = self.words.get((end, 0.0))
        return text is not None and not any(character.isalnum() for character in text)


def read_turns(folder: Path) -> tuple[list[Turn], list[str]]:
    """The turns of a folder of recordings, and what was left out and why.

    Left out is what would be counted wrongly, by the marks alone and never by what the product hears: clicks
    and marks at a file's very end (the marked end may be a click, or where the file was cut in noise), turns
    under SHORTEST_S, and a call's turn that is in the folder a second time as a file of its own. Of
    calls.jsonl only calls with a channel for the caller alone count: where both voices are mixed the marks
    are whole seconds and the agent's words would follow at once.

    Raises ValueError naming what is missing or wrong, RecordingError.
    """
    names = [n for n in ("endpoint", "utterances", "orders", "calls") if (folder / f"{n}.jsonl").exists()]
    if not names:
        raise ValueError(
            f"{folder} holds none of endpoint.jsonl, utterances.jsonl, orders.jsonl, calls.jsonl"
        )
    turns: list[Turn] = []
    left_out: list[str] = []
    texts: set[str] = set()
    for name in names:
        path = folder / f"{name}.jsonl"
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            try:
                entry = json.loads(line)
                if name == "calls":
                    turns += _of_call(folder, entry, texts, left_out)
                else:
                    turns += _whole(folder, name, entry, left_out)
                    texts.add(entry.get("text", ""))
            except (json.JSONDecodeError, KeyError, TypeError) as error:
                raise ValueError(f"{path}, line {number}: {error!r}") from error
    if not turns:
        raise ValueError(f"{folder}: no turn to measure in {', '.join(f'{name}.jsonl' for name in names)}")
    return turns, left_out


def _whole(folder: Path, kind: str, entry: dict[str, Any], left_out: list[str]) -> Iterator[Turn]:
    pcm = read_recording(folder / entry["file"]).at(SPEECH_RATE)
    turn = Turn(entry["file"], kind, pcm, entry["speech_end"])
    if entry.get("clicks"):
        left_out.append(f"{turn.name}: clicks")
    elif turn.speech_end > len(turn.pcm) / SPEECH_RATE - 0.02:
        left_out.append(f"{turn.name}: its marked end is the file's")
    else:
        yield turn


def _of_call(folder: Path, entry: dict[str, Any], texts: set[str], left_out: list[str]) -> Iterator[Turn]:
    if "caller" not in entry["channels"]:
        return
    pcm = read_recording(folder / entry["file"], entry["channels"].index("caller")).at(SPEECH_RATE)
    spoken = [turn for turn in entry["turns"] if turn["who"] == "caller"]
    for turn, following in zip(spoken, [*spoken[1:], None], strict=True):
        name = f"{entry['file']} {turn['start']:g} s"
        if turn["end"] - turn["start"] < SHORTEST_S:
            left_out.append(f"{name}: shorter than {SHORTEST_S:g} s")
            continue
        if turn["text"] in texts:
            left_out.append(f"{name}: also a file of its own")
            continue
        start = max(0.0, turn["start"] - 0.5)
        end = min(turn["end"] + FOLLOWING_S, following["start"] - 0.1 if following else np.inf)
        part = pcm[int(start * SPEECH_RATE) : int(min(end, len(pcm)) * SPEECH_RATE)]
        yield Turn(name, "calls", part, turn["end"] - start)


class Bench:
    """The models with their memory. `asr_s` and `judge_s` are the median times of a pass so far."""

    def __init__(self, recognizer: Recognizer, judge: TurnModel) -> None:
        self._recognizer, self._judge = recognizer, judge
        self._known: dict[str, Known] = {}
        self._took: dict[str, list[float]] = {"asr": [], "judge": []}

    def median_s(self, model: str) -> float:
        return quantile(self._took[model], 0.5) or 0.0

    async def learn(self, turn: Turn, turns: TurnsConfig) -> None:
        """Runs the models at every pause of a turn, as patiently as can be, so that later runs know all."""
        hushed = np.concatenate([turn.pcm, np.zeros(int(HUSH_S * SPEECH_RATE), np.int16)])
        vad, ear = SileroVad(), Ear()
        frames = Frame(hushed, SPEECH_RATE, len(hushed) / SPEECH_RATE)
        known = Known([(arrival, vad(window)) for window, arrival in ear.windows(frames)])
        self._known[turn.name] = known
        core = TurnCore(_patient(turns), CallConfig(idle_question_s=0), 0.0)
        for arrival, probability in known.windows:
            since = core.since
            for event in core.vad(arrival, probability, arrival):
                if isinstance(event, Pause) and (since := core.since) is not None:
                    begin = since - turns.pre_roll_ms / 1000
                    for until in (arrival, event.speech_end + SECOND_JUDGEMENT_S):
                        await self._sound(known, hushed, begin, event.speech_end, until)
                    await self._word(known, hushed, begin, event.speech_end, arrival)
                    await self._sound(
                        known, hushed, begin, event.speech_end, event.speech_end + PEER_VAD_STOP_S
                    )

    async def _sound(self, known: Known, pcm: Pcm, begin: float, end: float, until: float) -> None:
        started = time.perf_counter()
        verdict = await self._judge.completeness(_between(pcm, begin, until))
        self._took["judge"].append(time.perf_counter() - started)
        known.sounds[end, round(until - end, 2)] = verdict

    async def _word(self, known: Known, pcm: Pcm, begin: float, end: float, until: float) -> None:
        started = time.perf_counter()
        known.words[end, 0.0] = await self._recognizer.transcribe(_between(pcm, begin, until))
        self._took["asr"].append(time.perf_counter() - started)

    def run(self, turn: Turn, turns: TurnsConfig, *, models: bool = True) -> Outcome:
        """One turn under one setting; without `models` the core is told nothing but speech and silence."""
        known = self._known[turn.name]
        core = TurnCore(turns, CallConfig(idle_question_s=0), 0.0)
        due: list[tuple[float, int, float, str]] = []  # (when, order, speech_end, what)
        heard: dict[str, Any] = {}
        commit: float | None = None
        commits: list[float] = []

        def follow(events: Sequence[Event], now: float) -> None:
            nonlocal commit, heard
            for event in events:
                match event:
                    case Commit() if known.wordless(event.speech_end):
                        core.recognized(now, event.turn, words=False)  # no answer: nobody is cut in
                    case Commit():
                        commit = now
                        commits.append(now)
                    case Retract():
                        commit = None
                    case Pause() if models:
                        heard = {}
                        self._announce(known, event.speech_end, due)

        for arrival, probability in [*known.windows, (np.inf, 0.0)]:
            while True:  # what falls due before this window
                timer = core.get_timer()
                now = min(due[0][0] if due else np.inf, np.inf if timer is None else timer)
                if commit is not None and min(now, arrival) >= max(commit, core.speech_end + ANSWER_S):
                    return Outcome(turn, commit, tuple(commits))
                if now > arrival or now == np.inf:
                    break
                events = core.handle_timer(now)
                if due and due[0][0] <= now:
                    _, _, end, what = heapq.heappop(due)
                    if end == core.speech_end and commit is None:
                        heard |= (
                            {"text": known.words[end, 0.0]} if what == "text" else {"sounds": float(what)}
                        )
                        if "sounds" in heard:
                            complete = completeness(heard["sounds"], heard.get("text"))
                            events = [*events, *core.completeness(now, core.turn, end, complete)]
                follow(events, now)
            if arrival == np.inf:
                break
            follow(core.vad(arrival, probability, arrival), arrival)
        return Outcome(turn, commit, tuple(commits))

    def _announce(self, known: Known, end: float, due: list[tuple[float, int, float, str]]) -> None:
        """The models begin to work on a pause: what they will say, and when."""
        first, second = sorted(gap for at, gap in known.sounds if at == end and gap != PEER_VAD_STOP_S)
        judge_s, asr_s = self.median_s("judge"), self.median_s("asr")
        for when, what in (
            (end + first + judge_s, str(known.sounds[end, first])),
            (end + second + judge_s, str(known.sounds[end, second])),
            (end + first + asr_s, "text"),
        ):
            heapq.heappush(due, (when, len(due), end, what))

    def peer(self, turn: Turn, turns: TurnsConfig) -> Outcome:
        """Smart Turn with the peer's timing: judged after PEER_VAD_STOP_S, else PEER_STOP_S."""
        known, end, spoken = self._known[turn.name], None, False
        commits: list[float] = []
        for arrival, probability in known.windows:
            if probability >= (turns.vad_stop if spoken else turns.vad_start):
                spoken, end = True, arrival
                continue
            spoken = False
            if end is None or known.wordless(end):
                continue
            verdict = known.sounds.get((end, PEER_VAD_STOP_S), 0.0)
            wait = PEER_VAD_STOP_S + self.median_s("judge") if verdict > PEER_COMPLETE else PEER_STOP_S
            if arrival - end >= wait and end + wait not in commits:
                commits.append(end + wait)
            if arrival - end >= max(wait, ANSWER_S):
                return Outcome(turn, end + wait, tuple(commits))
        return Outcome(turn, None, tuple(commits))

    def why(self, outcome: Outcome) -> dict[str, Any]:
        """What was known at the commit that was too early: how long the pause was (None: no speech that the
        VAD hears came after it), how it sounded after about 0.06, 0.2 and 0.25 s, and its words."""
        known = self._known[outcome.turn.name]
        commit = outcome.commit if outcome.cut_in and outcome.commit else outcome.commits[0]
        end = max((at for at, _ in known.words if at <= commit), default=0.0)
        resumed = next((at - WINDOW_S for at, spoken in known.windows if at > end and spoken >= 0.5), None)
        return {
            "turn": outcome.turn.name,
            "kind": outcome.turn.kind,
            "commit_s": round(commit, 2),
            "speech_end_s": round(outcome.turn.speech_end, 2),
            "pause_s": None if resumed is None else round(resumed - end, 2),
            "sounds": [round(known.sounds[key], 2) for key in sorted(known.sounds) if key[0] == end],
            "words": known.words.get((end, 0.0)),
        }


def _between(pcm: Pcm, begin: float, end: float) -> Pcm:
    return pcm[max(0, int(begin * SPEECH_RATE)) : int(end * SPEECH_RATE)]


def _patient(turns: TurnsConfig) -> TurnsConfig:
    """Waits longer than any pause of a recording, so that all its pauses are met."""
    longest = 60_000
    changes = {"endpoint_silence_ms": longest, "endpoint_max_ms": longest, "max_turn_s": 600.0}
    return turns.model_copy(update=changes)


def summary(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Counts and delays of one setting, milliseconds and shares of 1."""
    cut = sum(outcome.cut_in for outcome in outcomes)
    early = sum(outcome.early for outcome in outcomes)
    delays = [outcome.delay_s for outcome in outcomes if outcome.delay_s is not None]
    low, high = wilson(cut, len(outcomes))
    p50, p90 = quantile(delays, 0.5), quantile(delays, 0.9)
    return {
        "turns": len(outcomes),
        "cut_in": cut,
        "cut_in_rate": cut / len(outcomes) if outcomes else None,
        "cut_in_95": [low, high],
        "early": early,
        "early_rate": early / len(outcomes) if outcomes else None,
        "early_95": list(wilson(early, len(outcomes))),
        "missed": sum(outcome.commit is None for outcome in outcomes),
        "delay_p50_ms": None if p50 is None else round(p50 * 1000),
        "delay_p90_ms": None if p90 is None else round(p90 * 1000),
    }


def wilson(hits: int, of: int) -> tuple[float, float]:
    """The 95 % interval of a share (Wilson 1927), which holds for few cases and for shares near 0."""
    if not of:
        return 0.0, 1.0
    z, share = 1.96, hits / of
    middle = (share + z * z / (2 * of)) / (1 + z * z / of)
    half = z / (1 + z * z / of) * np.sqrt(share * (1 - share) / of + z * z / (4 * of * of))
    return max(0.0, float(middle - half)), min(1.0, float(middle + half))


EAGERNESS = [step / 10 for step in range(11)]


async def bench_turns(
    cases: Sequence[Turn],
    turns: TurnsConfig,
    recognizer: Recognizer,
    judge: TurnModel,
    progress: Callable[[int], None] = lambda _: None,
) -> dict[str, Any]:
    """All figures: `curve` by eagerness; at the configured one `by_kind`, `cut_in` and `taken_back` (commits
    that were too early, but not heard); and `baselines`."""
    bench = Bench(recognizer, judge)
    for number, case in enumerate(cases, 1):
        await bench.learn(case, turns)
        progress(number)

    def all_of(settings: TurnsConfig, *, models: bool = True) -> list[Outcome]:
        return [bench.run(case, settings, models=models) for case in cases]

    chosen = all_of(turns)
    kinds = sorted({case.kind for case in cases})
    fixed = turns.model_copy(update={"endpoint_silence_ms": 700, "endpoint_max_ms": 700})
    return {
        "eagerness": turns.eagerness,
        "asr_ms": round(bench.median_s("asr") * 1000),
        "judge_ms": round(bench.median_s("judge") * 1000),
        "curve": [
            {"eagerness": value, **summary(all_of(turns.model_copy(update={"eagerness": value})))}
            for value in sorted({*EAGERNESS, turns.eagerness})
        ],
        "by_kind": {kind: summary([out for out in chosen if out.turn.kind == kind]) for kind in kinds},
        "cut_in": [bench.why(out) for out in chosen if out.cut_in],
        "taken_back": [bench.why(out) for out in chosen if out.early and not out.cut_in],
        "baselines": {
            "fixed silence of 700 ms": summary(all_of(fixed, models=False)),
            "Smart Turn, the peer's timing": summary([bench.peer(case, turns) for case in cases]),
        },
    }
