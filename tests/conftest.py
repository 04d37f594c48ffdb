"""Fixtures that cost something: the real engines' speech, and a real server in a process of its own."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from voicebot import clock
from voicebot.audio.frames import Pcm
from voicebot.audio.recordings import write_wav
from voicebot.audio.resample import resampled
from voicebot.config import PiperConfig, load_config
from voicebot.models import ModelError, load_catalogue, resolve
from voicebot.tts.piper import open_piper

ROOT = Path(__file__).parent.parent
STARTUP_S = 120


@pytest.fixture(scope="session")
def recordings() -> Path:
    """The folder of real recordings; tests that need it are skipped where it is not."""
    folder = Path(os.environ.get("VOICEBOT_RECORDINGS", ROOT.parent / "shared" / "recordings"))
    if not (folder / "utterances.jsonl").is_file():
        pytest.skip(f"no recordings at {folder}: set VOICEBOT_RECORDINGS to the folder")
    return folder


@pytest.fixture(scope="session")
def model() -> Callable[[str], Path]:
    """The place of a model of the embedded configuration in the cache."""
    config = load_config()

    def place(ref: str) -> Path:
        try:
            return resolve(ref, config.models.cache, load_catalogue())
        except ModelError as error:
            pytest.skip(f"{error}")

    return place


@pytest.fixture(scope="session")
def say(tmp_path_factory: pytest.TempPathFactory, model: Callable[[str], Path]) -> Callable[..., Path]:
    """A caller's speech: `say("text", "more after a pause", pause_s=1.0)` gives a 48 kHz WAV file."""
    folder = tmp_path_factory.mktemp("speech")
    made: dict[object, Path] = {}

    async def synthesize(texts: tuple[str, ...], pause_s: float, lead_s: float, tail_s: float) -> Pcm:
        async with open_piper(PiperConfig(seed=7), model("en_US-joe-medium")) as voice:
            parts: list[Pcm] = [np.zeros(int(lead_s * 48_000), np.int16)]
            for i, text in enumerate(texts):
                if i:
                    parts.append(np.zeros(int(pause_s * 48_000), np.int16))
                async with aclosing(voice.stream(text)) as stream:
                    speech = np.concatenate([part.pcm async for part in stream])
                parts.append(resampled(speech, voice.rate, 48_000))
            parts.append(np.zeros(int(tail_s * 48_000), np.int16))
            return np.concatenate(parts)

    def make(*texts: str, pause_s: float = 1.0, lead_s: float = 0.3, tail_s: float = 0.5) -> Path:
        key = (texts, pause_s, lead_s, tail_s)
        if key not in made:
            path = folder / f"speech{len(made)}.wav"
            with ThreadPoolExecutor(1) as thread:  # the caller may be in an event loop already
                speech = thread.submit(clock.run, synthesize(texts, pause_s, lead_s, tail_s)).result()
            write_wav(path, [speech], 48_000)
            made[key] = path
        return made[key]

    return make


@dataclass(frozen=True)
class RunningServer:
    url: str
    pid: int
    log: Path


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory, model: Callable[[str], Path]) -> Iterator[RunningServer]:
    """`voicebot serve` on the embedded configuration, as a user starts it."""
    for ref in load_config().model_ids():
        model(ref)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = tmp_path_factory.mktemp("server") / "server.log"
    # A short wait, so that the tests' abandoned offers free their places soon.
    settings = {"VOICEBOT_SERVER__PORT": str(port), "VOICEBOT_SERVER__CONNECT_TIMEOUT_S": "3"}
    with log.open("w") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "voicebot", "serve"],
            stdout=out,
            stderr=out,
            env={**os.environ, **settings},
        )
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + STARTUP_S
        while True:
            try:
                urllib.request.urlopen(f"{url}/healthz", timeout=2).close()
                break
            except (urllib.error.URLError, OSError):
                assert process.poll() is None, f"the server ended:\n{log.read_text()}"
                assert time.monotonic() < deadline, f"the server did not start:\n{log.read_text()}"
                time.sleep(0.1)
        yield RunningServer(url, process.pid, log)
    finally:
        process.terminate()
        code = process.wait(30)
    assert code == 0, "the server did not stop cleanly"
    faults = [line for line in log.read_text().splitlines() if "Traceback" in line or " ERROR " in line]
    assert faults == [], log.read_text()
