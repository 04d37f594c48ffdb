"""`voicebot bench turns`: its figures, and a run over a recording made here."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from voicebot.audio.recordings import read_recording, write_wav
from voicebot.bench.turns import Bench, Known, Outcome, Turn, read_turns, summary, wilson
from voicebot.cli import app
from voicebot.config import TurnsConfig
from voicebot.turns.vad import WINDOW_S

TURN = Turn("a", "utterances", np.zeros(0, np.int16), 2.0)


def test_a_commit_before_the_end_is_a_cut_in_and_after_it_a_delay() -> None:
    times = (1.8, 1.95, 2.3, None)
    early, close, late, never = (Outcome(TURN, at, (at,) if at else ()) for at in times)
    assert [outcome.cut_in for outcome in (early, close, late, never)] == [True, False, False, False]
    assert early.delay_s is None and never.delay_s is None
    assert late.delay_s == pytest.approx(0.3)
    result = summary([early, close, late, never])
    assert (result["turns"], result["cut_in"], result["missed"], result["early"]) == (4, 1, 1, 1)
    taken_back = Outcome(TURN, 2.3, (1.0, 2.3))
    assert taken_back.early and not taken_back.cut_in
    assert result["cut_in_rate"] == 0.25
    assert result["delay_p50_ms"] == pytest.approx(125)


def test_the_interval_is_wilsons() -> None:
    assert wilson(0, 0) == (0.0, 1.0)
    assert wilson(5, 100) == pytest.approx((0.0215, 0.1118), abs=1e-3)  # as tables have it
    assert wilson(0, 50)[0] == 0.0
    assert wilson(0, 50)[1] == pytest.approx(0.0713, abs=1e-3)


def bench_of(*stretches: tuple[bool, float], sounds: dict[float, float], text: str = "Hello there") -> Bench:
    """A bench that knows one recording: (speech?, seconds) stretches, and completeness by pause in order."""
    windows: list[tuple[float, float]] = []
    ends: list[float] = []
    for speech, seconds in stretches:
        for _ in range(round(seconds / WINDOW_S)):
            windows.append(((len(windows) + 1) * WINDOW_S, 0.95 if speech else 0.02))
        if speech:
            ends.append(windows[-1][0])
    known = Known(windows)
    for end, verdict in zip(ends, sounds.values(), strict=True):
        for gap in (0.06, 0.25, 0.2):
            known.sounds[end, gap] = verdict
        known.words[end, 0.0] = text
    bench = Bench(None, None)  # type: ignore[arg-type]  # no model is asked
    bench._known["a"] = known
    bench._took = {"asr": [0.15], "judge": [0.05]}
    return bench


PAUSED = ((False, 0.32), (True, 0.96), (False, 0.8), (True, 0.96), (False, 4.0))


def test_what_sounds_unfinished_is_waited_for_and_what_sounds_finished_is_not() -> None:
    end = 0.32 + 0.96 + 0.8 + 0.96
    turn = Turn("a", "x", np.zeros(0, np.int16), end)
    settings = TurnsConfig()
    waits = bench_of(*PAUSED, sounds={1: 0.02, 2: 0.98}).run(turn, settings)
    assert not waits.cut_in
    assert waits.delay_s == pytest.approx(settings.endpoint_min_ms / 1000, abs=WINDOW_S)
    hasty = bench_of(*PAUSED, sounds={1: 0.98, 2: 0.98}).run(turn, settings)
    assert hasty.cut_in
    eager = settings.model_copy(update={"eagerness": 1.0})
    doubtful = bench_of(*PAUSED, sounds={1: 0.45, 2: 0.98})
    assert doubtful.run(turn, eager).cut_in and not doubtful.run(turn, settings).cut_in


def test_a_commit_that_is_taken_back_in_time_is_early_but_no_cut_in() -> None:
    short = ((False, 0.32), (True, 0.96), (False, 0.352), (True, 0.96), (False, 4.0))
    turn = Turn("a", "x", np.zeros(0, np.int16), 0.32 + 0.96 + 0.352 + 0.96)
    bench = bench_of(*short, sounds={1: 0.98, 2: 0.98})
    outcome = bench.run(turn, TurnsConfig(endpoint_min_ms=192))
    assert outcome.early and not outcome.cut_in
    assert [round(at, 1) for at in outcome.commits] == [1.5, 2.8]
    why = bench.why(outcome)
    assert why["pause_s"] == pytest.approx(0.352, abs=0.01)
    assert (why["words"], why["sounds"], why["commit_s"]) == ("Hello there", [0.98] * 3, 1.47)
    assert bench.peer(turn, TurnsConfig()).commits == pytest.approx((1.53, 2.842), abs=0.01)


def test_a_commit_without_words_is_no_answer_and_cuts_nobody_in() -> None:
    turn = Turn("a", "x", np.zeros(0, np.int16), 0.32 + 0.96 + 0.8 + 0.96)
    bench = bench_of(*PAUSED, sounds={1: 0.98, 2: 0.98})
    first = min(end for end, _ in bench._known["a"].words)
    assert bench.run(turn, TurnsConfig()).cut_in
    bench._known["a"].words[first, 0.0] = ""  # "..." would be waited for, as unfinished
    for outcome in (bench.run(turn, TurnsConfig()), bench.peer(turn, TurnsConfig())):
        assert not outcome.early
        assert len(outcome.commits) == 1 and outcome.delay_s is not None and outcome.delay_s > 0


def test_the_baselines() -> None:
    turn = Turn("a", "x", np.zeros(0, np.int16), 0.32 + 0.96 + 0.8 + 0.96)
    bench = bench_of(*PAUSED, sounds={1: 0.98, 2: 0.98})
    fixed = TurnsConfig(endpoint_silence_ms=700)
    assert bench.run(turn, fixed, models=False).commit == pytest.approx(1.28 + 0.7, abs=WINDOW_S)
    assert bench.peer(turn, fixed).commit == pytest.approx(1.28 + 0.25)
    unsure = bench_of(*PAUSED, sounds={1: 0.3, 2: 0.3})
    assert unsure.peer(turn, fixed).commit == pytest.approx(turn.speech_end + 3.0)


def test_what_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"endpoint\.jsonl"):
        read_turns(tmp_path)
    monkeypatch.delenv("VOICEBOT_RECORDINGS", raising=False)
    for arguments, named in (([], "VOICEBOT_RECORDINGS"), ([str(tmp_path / "no")], "no such folder")):
        result = CliRunner().invoke(app, ["bench", "turns", *arguments])
        assert result.exit_code == 1
        assert named in result.output


def tone(path: Path, seconds: float, channels: int = 1) -> None:
    sound = (8000 * np.sin(np.arange(int(seconds * 8000)) * 0.3)).astype(np.int16)
    write_wav(path, [sound] * channels, 8000)


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("not json", "utterances.jsonl, line 1"),
        ('{"file": "q.wav"}', "speech_end"),
        ('{"file": "bad.wav", "speech_end": 1.0}', "bad.wav: not audio"),
        ("", "no turn to measure"),
    ],
)
def test_a_wrong_list_or_recording_is_named(tmp_path: Path, line: str, named: str) -> None:
    tone(tmp_path / "q.wav", 2.0)
    (tmp_path / "bad.wav").write_text("no audio")
    (tmp_path / "utterances.jsonl").write_text(line)
    result = CliRunner().invoke(app, ["bench", "turns", str(tmp_path)])
    assert (result.exit_code, type(result.exception)) == (1, SystemExit)
    assert named in result.output.replace("\n", "")


def test_what_the_marks_cannot_measure_is_left_out_and_said(tmp_path: Path) -> None:
    tone(tmp_path / "a.wav", 2.0)
    tone(tmp_path / "call.wav", 30.0, channels=2)
    lines = [
        {"file": "a.wav", "speech_end": 1.5, "text": "I said this."},
        {"file": "a.wav", "speech_end": 2.0},
        {"file": "a.wav", "speech_end": 1.5, "clicks": True},
    ]
    (tmp_path / "endpoint.jsonl").write_text("\n".join(map(json.dumps, lines)))
    spoken = [(1.0, 3.0, "One."), (6.0, 6.2, "Bye."), (8.0, 9.0, "I said this."), (12.0, 14.0, "Two.")]
    turns = [{"who": "caller", "start": a, "end": b, "text": text} for a, b, text in spoken]
    turns.append({"who": "agent", "start": 15.0, "end": 16.0, "text": "Three."})
    call = {"file": "call.wav", "channels": ["caller", "agent"], "turns": turns}
    mixed = {"file": "call.wav", "channels": ["mix"], "turns": turns}
    (tmp_path / "calls.jsonl").write_text(json.dumps(call) + "\n" + json.dumps(mixed))
    kept, left_out = read_turns(tmp_path)
    assert [turn.name for turn in kept] == ["a.wav", "call.wav 1 s", "call.wav 12 s"]
    assert [turn.speech_end for turn in kept] == pytest.approx([1.5, 2.5, 2.5])
    assert [len(turn.pcm) / 16000 for turn in kept] == pytest.approx([2.0, 0.5 + 2.0 + 2.5, 5.0], abs=0.01)
    reasons = [reason.split(": ")[1] for reason in left_out]
    assert reasons == [
        "its marked end is the file's",
        "clicks",
        "shorter than 0.3 s",
        "also a file of its own",
    ]


@pytest.mark.models
def test_a_run_over_real_speech(say: Callable[..., Path], tmp_path: Path) -> None:
    """One question; the real VAD, Smart Turn and recognizer; a table, JSON and a chart."""
    recording = read_recording(say("What time is breakfast in the morning?"))
    lead = np.zeros(recording.rate // 2, np.int16)
    write_wav(tmp_path / "q.wav", [np.concatenate([lead, recording.pcm])], recording.rate)
    loud = np.flatnonzero(np.abs(recording.pcm) > 1000)
    end = 0.5 + float(loud[-1]) / recording.rate
    (tmp_path / "utterances.jsonl").write_text(json.dumps({"file": "q.wav", "speech_end": end}) + "\n")
    figures_at, out = tmp_path / "f.json", tmp_path / "out"
    result = CliRunner().invoke(
        app, ["bench", "turns", str(tmp_path), "--json", str(figures_at), "--out", str(out)]
    )
    assert result.exit_code == 0, result.output
    assert "eagerness 0.5 (configured)" in result.output
    figures = json.loads(figures_at.read_text())
    assert len(figures["curve"]) == 11
    for entry in (*figures["curve"], *figures["baselines"].values()):
        assert (entry["turns"], entry["missed"]) == (1, 0)
    fixed = figures["baselines"]["fixed silence of 700 ms"]
    assert fixed["cut_in"] == 0
    assert 600 <= fixed["delay_p50_ms"] <= 900
    assert figures["machine"]["cores"] >= 1
    assert (out / "turns.svg").read_text().count("<path") > 10
    assert (out / "turns.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.models
def test_a_pause_in_the_middle_is_waited_out_by_words_and_sound(
    say: Callable[..., Path], tmp_path: Path
) -> None:
    """ "I would like to book a room for" ... hangs, by its words; a fixed silence of 700 ms cuts in."""
    recording = read_recording(
        say("I would like to book a room for the", "second of May, please.", pause_s=1.0)
    )
    lead = np.zeros(recording.rate // 2, np.int16)
    write_wav(tmp_path / "q.wav", [np.concatenate([lead, recording.pcm])], recording.rate)
    loud = np.flatnonzero(np.abs(recording.pcm.astype(np.int32)) > 1000)
    end = 0.5 + float(loud[-1]) / recording.rate
    (tmp_path / "orders.jsonl").write_text(json.dumps({"file": "q.wav", "speech_end": end}) + "\n")
    result = CliRunner().invoke(app, ["bench", "turns", str(tmp_path), "--json", str(tmp_path / "f.json")])
    assert result.exit_code == 0, result.output
    figures = json.loads((tmp_path / "f.json").read_text())
    assert figures["by_kind"]["orders"]["cut_in"] == 0
    assert figures["by_kind"]["orders"]["missed"] == 0
    assert figures["baselines"]["fixed silence of 700 ms"]["cut_in"] == 1
