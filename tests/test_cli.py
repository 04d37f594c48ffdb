"""The command line as a person meets it: help, version, errors that name the mend, the doctor."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest


def voicebot(*arguments: object, code: int = 0, **settings: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "voicebot", *map(str, arguments)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=200, env={**os.environ, **settings}
    )
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done


@pytest.mark.parametrize(
    "command", [(), ("serve",), ("replay",), ("models", "list"), ("models", "pull"), ("doctor",)]
)
def test_every_command_explains_itself(command: tuple[str, ...]) -> None:
    out = voicebot(*command, "--help").stdout
    assert "Usage" in out
    if command:
        assert "--config" in out


def test_version() -> None:
    assert voicebot("--version").stdout.startswith("voicebot 0.")


def test_a_taken_port_is_named_with_the_mend(model: Callable[[str], Path]) -> None:
    for ref in ("whisper-tiny.en", "smollm2-135m-instruct", "en_US-joe-medium"):
        model(ref)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = voicebot("serve", code=1, VOICEBOT_SERVER__PORT=str(port))
        assert f"server.port {port}" in done.stderr
        assert "VOICEBOT_SERVER__PORT" in done.stderr
        report = voicebot("doctor", code=1, VOICEBOT_SERVER__PORT=str(port)).stdout
        assert f"FAIL port 127.0.0.1:{port}" in report


def test_serving_without_models_says_how_to_get_them(tmp_path: Path) -> None:
    done = voicebot("serve", code=1, VOICEBOT_MODELS__CACHE=str(tmp_path))
    assert "voicebot models pull" in done.stderr


def test_doctor_without_models_says_how_to_get_them(tmp_path: Path) -> None:
    report = voicebot(
        "doctor", code=1, VOICEBOT_MODELS__CACHE=str(tmp_path), VOICEBOT_SERVER__PORT="0"
    ).stdout
    assert "FAIL model whisper-tiny.en" in report
    assert "voicebot models pull" in report


@pytest.mark.models
def test_doctor_finds_a_healthy_machine(model: Callable[[str], Path]) -> None:
    for ref in ("whisper-tiny.en", "smollm2-135m-instruct", "en_US-joe-medium"):
        model(ref)
    report = voicebot("doctor", VOICEBOT_SERVER__PORT="0").stdout
    assert "FAIL" not in report
    for line in (
        "model en_US-joe-medium: verifies",
        "voice: ",
        "recognizer: heard",
        "language model: first token",
    ):
        assert line in report


def test_an_unknown_setting_stops_the_start() -> None:
    done = voicebot("serve", code=1, VOICEBOT_SERVER__PRT="1")
    assert "prt" in done.stderr
    assert "did you mean 'port'" in done.stderr
