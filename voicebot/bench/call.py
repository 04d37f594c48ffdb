"""`voicebot bench call`: how long a caller waits, over real WebRTC calls with the real engines.

The server runs as a process of its own, twice: with speculation and without. A caller in this process
asks the same questions of both in turn, so that a busy machine slows both. What the caller measures (from
its last speech sample sent to the first audible packet received) stands beside the server's own records.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import wave
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np

from voicebot.bench.caller import Caller, calling
from voicebot.bench.report import quantile
from voicebot.engines import Synthesizer
from voicebot.latency import STAGES

QUESTIONS = (
    "What time is check in?",
    "Can I bring my dog?",
    "Do you have parking for my car?",
    "Is there a swimming pool at the hotel?",
    "When is breakfast served in the morning?",
    "How much is the taxi to the airport?",
    "Is there wifi in the rooms?",
    "What time do I have to check out?",
    "Do you have a room for tonight?",
    "Where can I have dinner?",
)
ANSWER_TOKENS = "24"
"""Longest answer in the servers started here: the waiting before it is measured, not its length."""
START_S, ANSWER_S, END_S = 180.0, 30.0, 60.0
"""Most to wait for a server, for the first sound of an answer, and for its end."""


@dataclass
class Waits:
    """What was measured of one server: milliseconds by turn, and the server's own records."""

    gaps: list[float] = field(default_factory=list)
    records: list[dict[str, Any]] = field(default_factory=list)
    unanswered: int = 0


async def synthesize(voice: Synthesizer, folder: Path) -> list[Path]:
    """The questions as recordings spoken by a voice. Raises EngineError."""
    paths = []
    for number, question in enumerate(QUESTIONS):
        async with aclosing(voice.stream(question)) as parts:
            pcm = np.concatenate([part.pcm async for part in parts])
        path = folder / f"q{number}.wav"
        with wave.open(str(path), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(voice.rate)
            file.writeframes(pcm.tobytes())
        paths.append(path)
    return paths


async def bench_call(
    servers: Mapping[str, str],
    questions: Sequence[Path],
    turns: int,
    progress: Callable[[int], None] = lambda _: None,
) -> dict[str, Any]:
    """Asks `turns` questions of each server, by name, at its offer URL: one call each in turn, until all are
    asked. Raises ConnectionError, aiohttp.ClientError, RecordingError."""
    waits = {name: Waits() for name in servers}
    asked = 0
    while asked < turns:
        part = [questions[(asked + i) % len(questions)] for i in range(min(len(questions), turns - asked))]
        for name, url in servers.items():
            await _one_call(url, part, waits[name])
        asked += len(part)
        progress(asked)
    return {name: summary(measured) for name, measured in waits.items()}


async def _one_call(url: str, questions: Sequence[Path], waits: Waits) -> None:
    loop = asyncio.get_running_loop()
    async with calling(url) as caller:
        await _hear_out(caller, loop.time())  # the greeting
        for path in questions:
            caller.microphone.say(path)
            await caller.until(lambda: caller.microphone.speech_end is not None, "the question")
            end = caller.microphone.speech_end or 0.0
            try:
                await caller.until(partial(_first_sound, caller, end), "an answer", ANSWER_S)
            except TimeoutError:
                waits.unanswered += 1
                continue
            first = _first_sound(caller, end) or end
            waits.gaps.append((first - end) * 1000)
            await _hear_out(caller, first)
        await asyncio.sleep(0.5)  # the last record comes with the answer's end
        waits.records += caller.of("turn")


async def _hear_out(caller: Caller, since: float) -> None:
    """Waits for the bot to speak, to say that it listens, and for a second without a sound: a busy server
    may be silent for longer between two sentences."""

    def silent() -> bool:
        loud = [at for at, sound in caller.heard if sound and at >= since]
        return bool(loud) and caller.heard[-1][0] > loud[-1] + 1.0 and caller.states()[-1] == "listening"

    await caller.until(silent, "the end of what the bot says", END_S)


def _first_sound(caller: Caller, since: float) -> float | None:
    return next((at for at, sound in caller.heard if sound and at > since), None)


def summary(waits: Waits) -> dict[str, Any]:
    """Distributions in milliseconds, each {"p50", "p90", "p95", "max"}: `heard` by the caller, and by the
    server's records `mouth_to_ear`, `response` and each stage."""
    answered = [record for record in waits.records if record["mouth_to_ear_ms"] is not None]

    def spread(values: Sequence[float | None]) -> dict[str, float | None]:
        known = [value for value in values if value is not None]
        points = {f"p{round(share * 100)}": quantile(known, share) for share in (0.5, 0.9, 0.95)}
        rounded = {name: None if value is None else round(value) for name, value in points.items()}
        return {**rounded, "max": round(max(known)) if known else None}

    return {
        "turns": len(waits.gaps),
        "unanswered": waits.unanswered,
        "heard": spread(waits.gaps),
        "mouth_to_ear": spread([record["mouth_to_ear_ms"] for record in answered]),
        "response": spread([record["response_ms"] for record in answered]),
        "stages": {stage: spread([record["stages_ms"][stage] for record in answered]) for stage in STAGES},
        "speculation": {
            "started": sum(record["speculation"]["started"] for record in answered),
            "dropped": sum(record["speculation"]["dropped"] for record in answered),
        },
    }


@asynccontextmanager
async def running_server(config: Path | None, **settings: str) -> AsyncIterator[str]:
    """The product's server in a process of its own; gives its offer URL. Raises ConnectionError."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    env = {**os.environ, "VOICEBOT_SERVER__PORT": str(port), "VOICEBOT_SERVER__HOST": "127.0.0.1", **settings}
    command = [sys.executable, "-m", "voicebot", "serve", *(["--config", str(config)] if config else [])]
    quiet = asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(*command, env=env, stdout=quiet, stderr=quiet)
    try:
        async with aiohttp.ClientSession() as http:
            for _ in range(int(START_S / 0.5)):
                if process.returncode is not None:
                    raise ConnectionError("the server did not start: `voicebot serve` says why")
                try:
                    async with http.get(f"http://127.0.0.1:{port}/healthz") as response:
                        if response.status == 200:
                            break
                except aiohttp.ClientError:
                    await asyncio.sleep(0.5)
            else:
                raise ConnectionError(f"the server was not ready within {START_S:g} s")
        yield f"http://127.0.0.1:{port}/api/offer"
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()
