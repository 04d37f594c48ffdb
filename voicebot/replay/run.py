"""`voicebot replay`: recordings as callers, one after another, and what came of each."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from voicebot.audio.recordings import Recording, RecordingError, read_recording, write_wav
from voicebot.call import Call, Phrases
from voicebot.config import Config
from voicebot.engines import open_engines
from voicebot.latency import TurnRecord
from voicebot.transports.replay import ReplayTransport

Progress = Callable[[Path, float, float], None]
"""Called with (recording, seconds replayed, seconds in all) now and then."""


@dataclass(frozen=True)
class Replayed:
    """One recording's outcome: its turns, or why it could not be replayed."""

    path: Path
    records: list[TurnRecord]
    failure: str | None = None


async def replay(
    paths: list[Path],
    config: Config,
    *,
    channel: int = 0,
    out: Path | None = None,
    progress: Progress = lambda *_: None,
    on_done: Callable[[Replayed], None] = lambda _: None,
) -> list[Replayed]:
    """Replays each recording as a call of its own; a bad one is reported and the rest go on.

    The running loop's clock decides the speed: `clock.run(..., virtual=True)` for as fast as the
    engines are. Silence of the recorded caller does not end the call: the other speaker of the
    recording may be talking. With `out`, writes NAME.bot.wav, NAME.mix.wav (caller left, bot right)
    and NAME.turns.jsonl per recording.
    """
    agent = config.load_agent()
    config = config.model_copy(update={"call": config.call.model_copy(update={"idle_question_s": 0.0})})
    results: list[Replayed] = []
    recordings = {path: _read(path, channel) for path in paths}
    if any(isinstance(recording, Recording) for recording in recordings.values()):
        async with open_engines(config, agent) as engines:
            phrases = await Phrases.make(engines, agent)
            for number, (path, recording) in enumerate(recordings.items(), 1):
                if isinstance(recording, RecordingError):
                    result = Replayed(path, [], str(recording))
                else:
                    transport = ReplayTransport(recording)
                    call = Call(f"replay-{number}", config, agent, engines, phrases, transport)
                    reason = await _run(call, transport, path, progress)
                    failure = f"{path}: the call ended: {reason}" if reason != "hangup" else None
                    result = Replayed(path, call.records, failure)
                    if out:
                        _write(out, _stem(path, paths), recording, transport, call.records)
                results.append(result)
                on_done(result)
    else:
        results = [Replayed(path, [], str(error)) for path, error in recordings.items()]
        for result in results:
            on_done(result)
    return results


def _read(path: Path, channel: int) -> Recording | RecordingError:
    try:
        return read_recording(path, channel)
    except RecordingError as error:
        return error


async def _run(call: Call, transport: ReplayTransport, path: Path, progress: Progress) -> str:
    async def report() -> None:
        while True:
            progress(path, transport.position_s, transport.length_s)
            await asyncio.sleep(0.5)

    reporter = asyncio.create_task(report())
    try:
        return await call.run()
    finally:
        reporter.cancel()


def _stem(path: Path, paths: list[Path]) -> str:
    """The file's name without its ending; with its place among those of the same name, if there are."""
    same = [other for other in paths if other.stem == path.stem]
    return path.stem if len(same) == 1 else f"{path.stem}-{same.index(path) + 1}"


def _write(
    out: Path, stem: str, recording: Recording, transport: ReplayTransport, records: list[TurnRecord]
) -> None:
    out.mkdir(parents=True, exist_ok=True)
    bot = transport.bot_audio()
    write_wav(out / f"{stem}.bot.wav", [bot], recording.rate)
    write_wav(out / f"{stem}.mix.wav", [recording.pcm, bot], recording.rate)
    lines = (json.dumps(record.as_json(), ensure_ascii=False) + "\n" for record in records)
    (out / f"{stem}.turns.jsonl").write_text("".join(lines), encoding="utf-8")
