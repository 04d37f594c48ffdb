"""The latency record of a turn: marks on one monotonic clock, and the stages between them.

Mouth-to-ear is the time from the arrival of the caller's last speech sample (`speech_end`) to the
sending of the first audible packet of the answer (`first_packet`). The stages are the gaps between
consecutive marks on that path, so they add up to it exactly: a mark that lies before the one ahead
of it on the path (work done early, hidden from the caller) makes a stage of zero, never a negative
one. What each stage worked, waited for or not, is kept beside it in `work_ms`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from voicebot.config import LatencyConfig

# In the order of the critical path: (mark, the stage that ends with it).
PATH: tuple[tuple[str, str], ...] = (
    ("ingested", "ingress"),  # the last speech sample has reached the turn-taking core
    ("commit", "endpointing"),
    ("transcript", "asr"),
    ("first_token", "llm"),
    ("first_chunk", "chunking"),
    ("first_audio", "tts"),
    ("first_packet", "egress"),
)
MARKS = ("speech_end", *(mark for mark, _ in PATH))
STAGES = tuple(stage for _, stage in PATH)


@dataclass
class TurnRecord:
    """One turn, answered or not."""

    call_id: str
    turn: int
    call_start: float
    budget: LatencyConfig
    user_text: str = ""
    bot_text: str = ""
    """As heard: cut where the caller interrupted."""
    interrupted: bool = False
    error: str | None = None
    marks: dict[str, int] = field(default_factory=dict)
    """Whole microseconds from the call's start: integers, so that sums are exact."""
    started: int = 0
    """Answers begun for this turn; all but the last were dropped, because the caller went on or had other
    words than were read first."""
    kept: bool = False
    """The answer was begun before the commit."""
    guessed: bool = False
    """It was begun on words that the last pass of the recognizer then confirmed."""
    shed: bool = False
    """Work in advance was stopped, or not begun, because callers waited."""
    work_start: float | None = None
    """When work on the answer began, on the loop's clock; before the commit if it was speculative."""
    work: dict[str, float] = field(default_factory=dict)
    """Seconds of real time that a stage's engine worked, by stage."""

    def mark(self, name: str, at: float) -> None:
        """Sets a mark, `at` seconds on the loop's clock; the first time counts."""
        if name not in MARKS:
            raise ValueError(f"unknown mark {name!r}; known: {', '.join(MARKS)}")
        self.marks.setdefault(name, round((at - self.call_start) * 1e6))

    def restart(self) -> None:
        """The answer is begun anew: marks of the one before it go."""
        for name in ("first_token", "first_chunk", "first_audio"):
            self.marks.pop(name, None)
        for stage in ("llm", "tts"):
            self.work.pop(stage, None)

    def stages_ms(self) -> dict[str, float | None]:
        """Milliseconds by stage; None from the first mark that is missing at the end of the path.

        A mark missing in the middle gives its time to the next stage that has one, so that the sum
        is mouth-to-ear whenever `first_packet` is there.
        """
        stages: dict[str, float | None] = dict.fromkeys(STAGES)
        at = self.marks.get("speech_end")
        if at is None:
            return stages
        reached = [i for i, (mark, _) in enumerate(PATH) if mark in self.marks]
        for mark, stage in PATH[: reached[-1] + 1 if reached else 0]:
            then = max(at, self.marks.get(mark, at))
            stages[stage] = (then - at) / 1000
            at = then
        return stages

    def mouth_to_ear_ms(self) -> float | None:
        return self._gap_ms("speech_end")

    def response_ms(self) -> float | None:
        return self._gap_ms("commit")

    def saved_ms(self) -> float:
        """How long the answer was worked on before the commit: time that the caller did not wait for."""
        done = [
            self.marks[m]
            for m in ("transcript", "first_token", "first_chunk", "first_audio")
            if m in self.marks
        ]
        if self.work_start is None or "commit" not in self.marks or not done:
            return 0.0
        began = round((self.work_start - self.call_start) * 1e6)
        return max(0, min(self.marks["commit"], max(done)) - began) / 1000

    def over_budget(self) -> list[str]:
        """The stages after the commit that spent more than their share, if the response was late."""
        response = self.response_ms()
        if response is None or response <= self.budget.budget_ms:
            return []
        shares = self.budget.stages.model_dump()
        stages = self.stages_ms()
        return [stage for stage, share in shares.items() if (stages[stage] or 0.0) > share]

    def as_json(self) -> dict[str, Any]:
        """The record under its public names, in milliseconds."""
        return {
            "call_id": self.call_id,
            "turn": self.turn,
            "user_text": self.user_text,
            "bot_text": self.bot_text,
            "interrupted": self.interrupted,
            "error": self.error,
            "marks_ms": {name: self.marks[name] / 1000 for name in MARKS if name in self.marks},
            "stages_ms": self.stages_ms(),
            "speculation": {
                "started": self.started,
                "dropped": max(0, self.started - 1),
                "kept": self.kept,
                "guessed": self.guessed,
                "shed": self.shed,
                "saved_ms": self.saved_ms(),
            },
            "work_ms": {name: round(value * 1000, 1) for name, value in self.work.items()},
            "mouth_to_ear_ms": self.mouth_to_ear_ms(),
            "response_ms": self.response_ms(),
            "budget_ms": self.budget.budget_ms,
            "over_budget": self.over_budget(),
        }

    def _gap_ms(self, start: str) -> float | None:
        if start not in self.marks or "first_packet" not in self.marks:
            return None
        # From the same running maximum as the stages: the sum and the total cannot differ.
        end = max(self.marks.get(mark, self.marks[start]) for mark in MARKS)
        return (end - self.marks[start]) / 1000
