"""`voicebot doctor`: what is there, what works, how fast, and what to do about the rest."""

from __future__ import annotations

import asyncio
import importlib.metadata
import os
import platform
import shutil
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress

from voicebot.audio.frames import SPEECH_RATE
from voicebot.audio.resample import resampled
from voicebot.config import Config, ConfigError, load_config
from voicebot.engines import EngineError, Engines, Message, open_engines
from voicebot.models import ModelError, load_catalogue, resolve, verify

PACKAGES = ("aiortc", "aiohttp", "faster-whisper", "piper-tts", "xllamacpp", "numpy", "vllm")
OPTIONAL = {"vllm": "only the GPU configurations need it: pip install 'voicebot[vllm]'"}
SENTENCE = "What time is breakfast served in the morning?"
SELF_TEST_S = 60.0
MEMORY_GIB, DISK_GIB = 2.0, 1.0
"""What the embedded configuration needs, with some room."""


@dataclass(frozen=True)
class Finding:
    """One line of the report. `mend` says what to do; None when nothing needs to be done."""

    what: str
    found: str
    ok: bool = True
    mend: str | None = None


def run_checks(config_file: Path | None, agent: Path | None, console: Console) -> bool:
    """Prints each finding as it is made; True when none failed."""
    good = True

    def show(finding: Finding) -> None:
        nonlocal good
        good = good and finding.ok
        sign = "[green]ok  [/green]" if finding.ok else "[red]FAIL[/red]"
        console.print(
            f"{sign} {escape(finding.what)}: {escape(finding.found)}", soft_wrap=True, highlight=False
        )
        if finding.mend:
            console.print(f"       -> {escape(finding.mend)}", soft_wrap=True, highlight=False)

    for finding in [*_machine(), *_packages()]:
        show(finding)
    try:
        config = load_config(config_file, agent)
        config.load_agent()
    except ConfigError as error:
        show(
            Finding("configuration", str(error), False, "mend the file; configs/embedded.yaml is a good one")
        )
        return False
    show(Finding("configuration", f"valid; agent {config.load_agent().name}"))
    show(_port(config))
    models = list(_models(config, console))
    for finding in models:
        show(finding)
    if all(finding.ok for finding in models):
        asyncio.run(_engines(config, show))
    else:
        show(Finding("engines", "not tested: a model is missing", False, "voicebot models pull"))
    return good


def _machine() -> Iterator[Finding]:
    version = platform.python_version()
    yield Finding("python", version, sys.version_info >= (3, 11), None)
    free_gib = shutil.disk_usage(Path.home()).free / 2**30
    mend = "the models need 0.3 GB" if free_gib < DISK_GIB else None
    yield Finding("disk", f"{free_gib:.0f} GiB free", free_gib >= DISK_GIB, mend)
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    mend = (
        "recognizer, language model and voice need about 1 GB together" if memory_gib < MEMORY_GIB else None
    )
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    yield Finding("machine", f"{cores} cores, {memory_gib:.0f} GiB memory", memory_gib >= MEMORY_GIB, mend)


def _packages() -> Iterator[Finding]:
    for name in PACKAGES:
        try:
            yield Finding(name, importlib.metadata.version(name))
        except importlib.metadata.PackageNotFoundError:
            mend = OPTIONAL.get(name, "run scripts/run, or: pip install -e .")
            yield Finding(name, "not installed", name in OPTIONAL, mend)


def _port(config: Config) -> Finding:
    host, port = config.server.host, config.server.port
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            mend = f"stop what listens there, or choose another: VOICEBOT_SERVER__PORT={port + 1}"
            return Finding(f"port {host}:{port}", error.strerror or str(error), False, mend)
    return Finding(f"port {host}:{port}", "free")


def _models(config: Config, console: Console) -> Iterator[Finding]:
    """Whole files are hashed; paths of the operator's own are only looked for."""
    try:
        catalogue = load_catalogue(config.models.catalogues)
    except ModelError as error:
        yield Finding("model catalogue", str(error), False)
        return
    refs = filter(
        None, (config.asr.model, config.llm.model, config.voice(config.load_agent()), config.turns.model)
    )
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("verifying the models", total=None)
        for ref in refs:
            try:
                path = resolve(ref, config.models.cache, catalogue)
                entry = catalogue.get(ref)
                bad = [s for s in verify(entry, config.models.cache) if s.state != "ok"] if entry else []
            except ModelError as error:
                yield Finding(f"model {ref}", str(error), False)
                continue
            bar.update(task, description=f"verified {ref}")
            if bad:
                broken = ", ".join(f"{state.name}: {state.reason or state.state}" for state in bad)
                yield Finding(f"model {ref}", broken, False, f"voicebot models pull {ref}")
            else:
                yield Finding(f"model {ref}", f"{'verifies' if entry else 'there (not checked)'}, {path}")


async def _engines(config: Config, show: Callable[[Finding], None]) -> None:
    """Loads the engines and lets each do its work once: the voice speaks, the recognizer listens to it."""
    started = time.perf_counter()
    try:
        async with asyncio.timeout(SELF_TEST_S * 5), open_engines(config, config.load_agent()) as engines:
            show(Finding("engines", f"loaded in {time.perf_counter() - started:.1f} s"))
            async for finding in _self_tests(engines):
                show(finding)
    except (EngineError, ModelError, TimeoutError) as error:
        mend = "the paths and devices in the configuration's asr, llm and tts sections"
        show(Finding("engines", str(error) or "timed out", False, f"check {mend}"))


async def _self_tests(engines: Engines) -> AsyncIterator[Finding]:
    started = time.perf_counter()
    async with aclosing(engines.synthesizer.stream(SENTENCE)) as parts:
        speech = np.concatenate([part.pcm async for part in parts])
    seconds = len(speech) / engines.synthesizer.rate
    yield Finding("voice", f"{seconds:.1f} s of speech in {_ms_since(started)}", 0.5 < seconds < 20)

    heard_pcm = resampled(speech, engines.synthesizer.rate, SPEECH_RATE)
    started = time.perf_counter()
    text = await engines.recognizer.transcribe(heard_pcm)
    took = _ms_since(started)
    understood = "breakfast" in text.lower()
    mend = None if understood else f"it should have heard {SENTENCE!r}: is the model for this language?"
    yield Finding("recognizer", f"heard {text!r} in {took}", understood, mend)

    started = time.perf_counter()
    first = None
    tokens = 0
    prompt = [Message("system", "Answer in one short sentence."), Message("user", "Say hello.")]
    async with aclosing(engines.llm.stream(prompt)) as deltas:
        async for _ in deltas:
            first = first or _ms_since(started)
            tokens += 1
    rate = tokens / (time.perf_counter() - started)
    yield Finding("language model", f"first token after {first}, {rate:.0f} tokens/s", tokens > 0)


def _ms_since(started: float) -> str:
    return f"{(time.perf_counter() - started) * 1000:.0f} ms"
