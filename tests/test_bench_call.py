"""`voicebot bench call`: its figures, and one question to a running server."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.conftest import RunningServer
from voicebot.bench.call import Waits, summary
from voicebot.cli import app
from voicebot.latency import STAGES


def record(wait: float) -> dict[str, object]:
    stages = dict.fromkeys(STAGES, wait / len(STAGES))
    return {
        "mouth_to_ear_ms": wait,
        "response_ms": wait / 2,
        "stages_ms": stages,
        "speculation": {"started": 2, "dropped": 1},
    }


def test_the_distributions() -> None:
    unanswered = {**record(0), "mouth_to_ear_ms": None, "response_ms": None}
    measured = Waits([float(n) for n in range(1, 102)], [record(100), record(300), unanswered], 1)
    result = summary(measured)
    assert (result["turns"], result["unanswered"]) == (101, 1)
    assert result["heard"] == {"p50": 51, "p90": 91, "p95": 96, "max": 101}
    assert result["mouth_to_ear"]["p50"] == 200
    assert result["response"]["max"] == 150
    assert set(result["stages"]) == set(STAGES)
    assert result["speculation"] == {"started": 4, "dropped": 2}


def test_nothing_answered() -> None:
    result = summary(Waits(unanswered=3))
    assert result["heard"] == {"p50": None, "p90": None, "p95": None, "max": None}


def test_a_server_that_is_not_there_is_named(tmp_path: Path, say: Callable[..., Path]) -> None:
    url = "http://127.0.0.1:9/api/offer"
    result = CliRunner().invoke(app, ["bench", "call", str(say("Hello.")), "--url", url])
    assert result.exit_code == 1
    assert "127.0.0.1:9" in result.output.replace(", port ", ":")


@pytest.mark.models
async def test_one_question_to_a_running_server(
    server: RunningServer, say: Callable[..., Path], tmp_path: Path
) -> None:
    figures_at = tmp_path / "f.json"
    arguments = ["--url", f"{server.url}/api/offer", "--turns", "1", "--json", str(figures_at)]
    command = ["bench", "call", str(say("Can I bring my dog?")), *arguments]
    result = await asyncio.to_thread(CliRunner().invoke, app, command)
    assert result.exit_code == 0, result.output
    assert "mouth-to-ear" in result.output
    measured = json.loads(figures_at.read_text())["servers"]["server"]
    assert (measured["turns"], measured["unanswered"]) == (1, 0)
    assert sum(stage["p50"] for stage in measured["stages"].values()) == pytest.approx(
        measured["mouth_to_ear"]["p50"], abs=len(STAGES)
    )
    # The caller's own clock: the record, and the way there and back.
    assert measured["heard"]["p50"] >= measured["mouth_to_ear"]["p50"] - 40
