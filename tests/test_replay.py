"""`voicebot replay`, as a QA engineer runs it: real models, real files, exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
import wave
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from voicebot.audio.recordings import read_recording, write_wav

pytestmark = pytest.mark.models


@pytest.fixture(scope="session", autouse=True)
def _needs_models(model: Callable[[str], Path]) -> None:
    for ref in ("whisper-tiny.en", "smollm2-135m-instruct", "en_US-joe-medium"):
        model(ref)


def replay(*arguments: object, code: int = 0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "voicebot", "replay", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done


def turns(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_two_runs_at_max_speed_give_the_same_turns(say: Callable[..., Path], tmp_path: Path) -> None:
    """A call of three utterances, the last one into the second answer."""
    call = say(
        "What time is check in?",
        "Can I bring my dog?",
        "Stop, is the wifi free?",
        pause_s=5.0,
        lead_s=4.0,
    )
    first, second = tmp_path / "1.jsonl", tmp_path / "2.jsonl"
    out = replay(call, "--speed", "max", "--json", first, "--out", tmp_path / "out").stdout
    replay(call, "--speed", "max", "--json", second)
    keep = ("turn", "user_text", "bot_text", "interrupted", "marks_ms", "stages_ms", "mouth_to_ear_ms")
    records = turns(first)
    assert [{k: r[k] for k in keep} for r in records] == [{k: r[k] for k in keep} for r in turns(second)]
    assert len(records) == 3
    for record, word in zip(records, ("check", "dog", "wi"), strict=True):
        assert word in record["user_text"].lower()
        assert word in out.lower()  # in the table
        assert sum(v for v in record["stages_ms"].values() if v) == pytest.approx(record["mouth_to_ear_ms"])
    # What was written: the bot's own audio, and both sides on one time line.
    assert turns(tmp_path / "out" / f"{call.stem}.turns.jsonl") == records
    bot = read_recording(tmp_path / "out" / f"{call.stem}.bot.wav")
    with wave.open(str(tmp_path / "out" / f"{call.stem}.mix.wav")) as mix:
        assert mix.getnchannels() == 2
        both = np.frombuffer(mix.readframes(mix.getnframes()), np.int16).reshape(-1, 2)
    caller = read_recording(call).pcm
    assert np.array_equal(both[: len(caller), 0], caller)
    assert np.array_equal(both[: len(bot.pcm), 1], bot.pcm)
    for record in records:  # the record's first packet is where the bot's audio begins
        at = round(record["marks_ms"]["first_packet"] / 1000 * bot.rate)
        assert np.abs(bot.pcm[at - bot.rate // 25 : at + bot.rate // 10].astype(int)).max() > 1000


def test_real_time_hears_the_same(say: Callable[..., Path], tmp_path: Path) -> None:
    call = say("Can I bring my dog?", lead_s=3.0)
    replay(call, "--speed", "realtime", "--json", tmp_path / "real.jsonl")
    replay(call, "--speed", "max", "--json", tmp_path / "max.jsonl")
    [real], [fast] = turns(tmp_path / "real.jsonl"), turns(tmp_path / "max.jsonl")
    assert real["user_text"] == fast["user_text"]
    assert real["bot_text"] == fast["bot_text"]
    assert real["work_ms"]["llm"] > 0
    assert fast["stages_ms"]["llm"] == 0  # engine work takes no time on the virtual clock ...
    assert fast["work_ms"]["llm"] > 0  # ... and is reported all the same
    assert real["mouth_to_ear_ms"] > fast["mouth_to_ear_ms"]


def test_bad_files_are_named_and_the_good_one_is_replayed(say: Callable[..., Path], tmp_path: Path) -> None:
    good = say("Can I bring my dog?", lead_s=3.0)
    empty, silent, text, cut = (
        tmp_path / name for name in ("empty.wav", "silent.wav", "text.mp3", "cut.wav")
    )
    empty.write_bytes(b"")
    write_wav(silent, [np.zeros(48_000, np.int16)], 48_000)
    text.write_text("these are words, not sounds")
    cut.write_bytes(good.read_bytes()[: good.stat().st_size // 2])
    missing = tmp_path / "missing.wav"
    done = replay(
        empty, silent, text, cut, missing, good, "--speed", "max", "--json", tmp_path / "t.jsonl", code=1
    )
    for path, reason in (
        (empty, "empty"),
        (silent, "silent"),
        (text, "audio"),
        (cut, "truncated"),
        (missing, "no such file"),
    ):
        [line] = [line for line in done.stderr.splitlines() if str(path) in line]
        assert reason in line
    [record] = turns(tmp_path / "t.jsonl")
    assert "dog" in record["user_text"].lower()


def test_the_callers_channel_can_be_chosen(say: Callable[..., Path], tmp_path: Path) -> None:
    speech = read_recording(say("Can I bring my dog?", lead_s=3.0)).pcm
    stereo = tmp_path / "stereo.wav"
    write_wav(stereo, [np.zeros(len(speech), np.int16), speech], 48_000)
    done = replay(stereo, "--speed", "max", "--channel", "1")
    assert "dog" in done.stdout.lower()
    assert "silent on channel 0" in replay(stereo, code=1).stderr
    assert "2 channels" in replay(stereo, "--channel", "2", code=1).stderr


def test_wrong_usage() -> None:
    replay(code=2)
    assert "realtime" in replay("x.wav", "--speed", "slow", code=2).stderr
    assert "no file" in replay("x.wav", "--config", "/nowhere.yaml", code=1).stderr


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("gcp_commercial.flac", ("chromecast", "express")),
        ("watson_auto_loan.flac", ("vehicle", "taxes")),
    ],
)
def test_recorded_calls(recordings: Path, tmp_path: Path, name: str, words: tuple[str, ...]) -> None:
    replay(recordings / "calls" / name, "--speed", "max", "--json", tmp_path / "t.jsonl")
    records = turns(tmp_path / "t.jsonl")
    said = " ".join(record["user_text"] for record in records).lower()
    assert all(word in said for word in words), said
    assert any(record["bot_text"] for record in records)
