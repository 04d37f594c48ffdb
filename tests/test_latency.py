"""The latency record: stages that add up, and the public names of its JSON."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from voicebot.config import LatencyConfig
from voicebot.latency import MARKS, STAGES, TurnRecord


def record(marks: dict[str, float] | None = None, start: float = 0.0) -> TurnRecord:
    made = TurnRecord("call-1", 3, start, LatencyConfig())
    for name, at in (marks or {}).items():
        made.mark(name, at)
    return made


# In order, with nothing in parallel: what each stage is.
SERIAL = {
    "speech_end": 10.0,
    "ingested": 10.06,
    "commit": 10.56,
    "transcript": 10.76,
    "first_token": 11.06,
    "first_chunk": 11.31,
    "first_audio": 11.46,
    "first_packet": 11.52,
}


def test_stages_are_the_gaps_and_add_up_to_what_the_caller_feels() -> None:
    made = record(SERIAL)
    stages = made.stages_ms()
    assert stages == {
        "ingress": 60.0, "endpointing": 500.0, "asr": 200.0, "llm": 300.0, "chunking": 250.0, "tts": 150.0, "egress": 60.0,
    }  # fmt: skip
    assert made.mouth_to_ear_ms() == 1520.0
    assert made.response_ms() == 960.0


def test_marks_are_counted_from_the_start_of_the_call() -> None:
    assert record(SERIAL, start=10.0).as_json()["marks_ms"]["first_packet"] == 1520.0
    assert record(SERIAL, start=10.0).stages_ms() == record(SERIAL).stages_ms()


def test_work_done_before_the_commit_costs_the_caller_nothing() -> None:
    made = record({**SERIAL, "transcript": 10.2, "first_token": 10.3})
    assert (made.stages_ms()["asr"], made.stages_ms()["llm"]) == (0.0, 0.0)
    assert made.stages_ms()["chunking"] == 750.0  # from the commit on
    assert made.mouth_to_ear_ms() == 1520.0


def test_a_mark_missing_in_the_middle_gives_its_time_to_the_next() -> None:
    marks = dict(SERIAL)
    del marks["first_chunk"]
    stages = record(marks).stages_ms()
    assert (stages["chunking"], stages["tts"]) == (0.0, 400.0)


def test_a_turn_without_an_answer_has_nulls_from_where_it_ended() -> None:
    marks = {name: SERIAL[name] for name in ("speech_end", "ingested", "commit", "transcript")}
    made = record(marks)
    assert made.stages_ms() == {
        "ingress": 60.0, "endpointing": 500.0, "asr": 200.0, "llm": None, "chunking": None, "tts": None, "egress": None,
    }  # fmt: skip
    assert made.mouth_to_ear_ms() is None
    assert made.response_ms() is None
    assert made.over_budget() == []
    assert record().stages_ms() == dict.fromkeys(STAGES)


def test_the_first_mark_wins() -> None:
    made = record(SERIAL)
    before = made.as_json()
    for name in MARKS:
        made.mark(name, 99.0)
    assert made.as_json() == before


def test_an_unknown_mark_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'first_tokn'.*first_token"):
        record().mark("first_tokn", 1.0)


def test_the_public_names() -> None:
    made = record(SERIAL)
    made.user_text, made.bot_text, made.interrupted = "What time?", "At three", True
    out = json.loads(json.dumps(made.as_json()))
    assert {
        "call_id", "turn", "user_text", "bot_text", "interrupted", "marks_ms", "stages_ms", "mouth_to_ear_ms",
        "response_ms", "budget_ms", "over_budget",
    } <= set(out)  # fmt: skip
    assert list(out["stages_ms"]) == ["ingress", "endpointing", "asr", "llm", "chunking", "tts", "egress"]
    assert list(out["marks_ms"]) == [
        "speech_end", "ingested", "commit", "transcript", "first_token", "first_chunk", "first_audio", "first_packet",
    ]  # fmt: skip
    assert (out["call_id"], out["turn"], out["user_text"], out["bot_text"]) == (
        "call-1",
        3,
        "What time?",
        "At three",
    )
    assert out["interrupted"] is True
    assert (out["budget_ms"], out["response_ms"], out["mouth_to_ear_ms"]) == (200.0, 960.0, 1520.0)


def test_a_response_within_budget_names_no_stage_though_one_is_over_its_share() -> None:
    marks = {"speech_end": 0.0, "commit": 0.5, "transcript": 0.7, "first_packet": 0.7}
    assert record(marks).over_budget() == []
    assert record({**marks, "first_packet": 0.701}).over_budget() == ["asr"]


def test_only_stages_over_their_share_are_named() -> None:
    marks = {
        "speech_end": 0.0, "commit": 0.6, "transcript": 0.66, "first_token": 0.721, "first_chunk": 0.741,
        "first_audio": 0.791, "first_packet": 0.802,
    }  # fmt: skip
    assert record(marks).over_budget() == ["llm", "egress"]


# Times in whole milliseconds or fractions of a microsecond, often equal, in any order.
times = st.one_of(
    st.integers(0, 50).map(lambda t: t / 1000), st.floats(0.0, 4000.0, allow_nan=False), st.just(3599.9999995)
)
marks = st.dictionaries(st.sampled_from(MARKS), times)


@settings(max_examples=500, deadline=None)
@given(marks, times)
def test_whatever_the_marks_the_stages_are_whole_and_add_up(marks: dict[str, float], start: float) -> None:
    made = record(marks, start)
    stages = made.stages_ms()
    assert list(stages) == list(STAGES)
    values = [value for value in stages.values() if value is not None]
    assert all(value >= 0 for value in values)
    # None only at the end of the path: no hole in the middle.
    assert list(stages.values()) == values + [None] * (len(STAGES) - len(values))
    total, response = made.mouth_to_ear_ms(), made.response_ms()
    assert (total is not None) == ("speech_end" in marks and "first_packet" in marks)
    assert (response is not None) == ("commit" in marks and "first_packet" in marks)
    if total is not None:
        assert math.isclose(sum(values), total, rel_tol=0, abs_tol=1e-6)
        assert total >= (response if response is not None and marks["commit"] >= marks["speech_end"] else 0)
        # A path that was walked in order gives exactly the gap.
        if all(marks[name] <= marks["first_packet"] for name in marks):
            gap = (marks["first_packet"] - marks["speech_end"]) * 1000
            assert math.isclose(total, gap, rel_tol=0, abs_tol=2e-3)
    over = made.over_budget()
    shares = LatencyConfig().stages.model_dump()
    if over:
        assert response is not None and response > LatencyConfig().budget_ms
    assert all((stages[stage] or 0) > shares[stage] for stage in over)
    if response is not None and response > LatencyConfig().budget_ms:
        assert set(over) == {stage for stage in shares if (stages[stage] or 0) > shares[stage]}
    json.dumps(made.as_json(), allow_nan=False)


@settings(max_examples=200, deadline=None)
@given(st.lists(times, min_size=8, max_size=8).map(sorted), st.permutations(MARKS))
def test_the_order_in_which_marks_are_set_does_not_matter(at: list[float], order: list[str]) -> None:
    in_order = dict(zip(MARKS, at, strict=True))
    shuffled = record({name: in_order[name] for name in order})
    assert shuffled.stages_ms() == record(in_order).stages_ms()
    after_commit = [shuffled.stages_ms()[s] or 0.0 for s in STAGES[2:]]
    assert math.isclose(sum(after_commit), shuffled.response_ms() or 0.0, rel_tol=0, abs_tol=1e-6)
