"""Calls with an echo, sample by sample: the bot's real voice, real rooms, real callers, and the real VAD.

    python -m tests.echo_scenes

prints the table of voicebot/audio/echo.py. Recordings as for the tests.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Protocol

import numpy as np

from voicebot import clock
from voicebot.audio.echo import EchoCanceller
from voicebot.audio.frames import SPEECH_RATE, Pcm
from voicebot.audio.recordings import read_recording
from voicebot.audio.resample import resampled
from voicebot.config import CallConfig, PiperConfig, TurnsConfig, load_config
from voicebot.models import load_catalogue, resolve
from voicebot.tts.piper import open_piper
from voicebot.turns import core
from voicebot.turns.vad import WINDOW, WINDOW_S, SileroVad

FRAME = 320
LEAD_S, REST_S = 0.5, 1.5
"""Silence before and after what the bot says."""
ROOM_S = 0.3
"""Of a room's response: what follows in the recordings is mostly their noise."""
HISS = 4.0
"""RMS of a microphone's noise, -78 dBFS."""
LINES = (
    "Welcome to the Harbour Hotel. How can I help you today? I can tell you about rooms, prices, breakfast and the pool.",
    "Check in is from three in the afternoon, and check out is until eleven in the morning. Would you like me to book a room for you?",
    "The pool is open every day from seven to nine. Dogs are welcome, and cost fifteen dollars a night. Breakfast is served from half past six until ten, and it is included in the price of every room.",
)


class Canceller(Protocol):
    def played(self, pcm: Pcm) -> None: ...
    def heard(self, pcm: Pcm) -> Pcm: ...


class Nothing:
    """What was done before."""

    def played(self, pcm: Pcm) -> None:
        pass

    def heard(self, pcm: Pcm) -> Pcm:
        return pcm


def cancelling() -> Canceller:
    return EchoCanceller(SPEECH_RATE)


@lru_cache(maxsize=1)
def bot_speech() -> list[Pcm]:
    """LINES, spoken by the embedded configuration's voice."""
    model = resolve("en_US-joe-medium", load_config().models.cache, load_catalogue())

    async def speak() -> list[Pcm]:
        spoken = []
        async with open_piper(PiperConfig(seed=7), model) as voice:
            for line in LINES:
                async with aclosing(voice.stream(line)) as stream:
                    pcm = np.concatenate([part.pcm async for part in stream])
                spoken.append(resampled(pcm, voice.rate, SPEECH_RATE))
        return spoken

    return clock.run(speak())


def callers(recordings: Path, count: int = 10, most_s: float = 5.0) -> list[Pcm]:
    """Utterances, from their first sample of speech on."""
    found = []
    for line in (recordings / "utterances.jsonl").read_text().splitlines():
        entry = json.loads(line)
        if entry["file"].startswith("utt/") and len(found) < count:
            pcm = read_recording(recordings / entry["file"]).at(SPEECH_RATE)
            start, end = (int(entry[key] * SPEECH_RATE) for key in ("speech_start", "speech_end"))
            found.append(pcm[start : min(end, start + int(most_s * SPEECH_RATE))])
    return found


def room(recordings: Path, number: int) -> np.ndarray:
    """The response of room 0..3, from the direct sound on, fading out within ROOM_S."""
    response = (
        read_recording(recordings / "rir" / f"speechbrain_rir{number + 1}.flac").at(SPEECH_RATE).astype(float)
    )
    direct = int(np.abs(response).argmax())
    response = response[max(0, direct - 16) :][: int(ROOM_S * SPEECH_RATE)]
    return response * np.linspace(1, 0, len(response)) ** 2


def level(pcm: np.ndarray) -> float:
    """RMS of its loud parts (frames within 26 dB of the loudest)."""
    frames = pcm[: len(pcm) // FRAME * FRAME].astype(float).reshape(-1, FRAME)
    rms = np.sqrt((frames**2).mean(axis=1))
    return float(np.sqrt((frames[rms > 0.05 * rms.max()] ** 2).mean()))


def echo_of(pcm: Pcm, response: np.ndarray, delay_s: float, db: float) -> np.ndarray:
    """As long as `pcm`, `db` against it."""
    size = 1 << (len(pcm) + len(response)).bit_length()
    heard = np.fft.irfft(np.fft.rfft(pcm, size) * np.fft.rfft(response, size), size)[: len(pcm)]
    heard *= level(pcm) / level(heard) * 10 ** (db / 20)
    return np.concatenate([np.zeros(int(delay_s * SPEECH_RATE)), heard])[: len(pcm)]


def said(speech: Pcm) -> Pcm:
    """What the bot sends around what it says."""
    pad = [np.zeros(int(s * SPEECH_RATE), np.int16) for s in (LEAD_S, REST_S)]
    return np.concatenate([pad[0], speech, pad[1]])


def microphone(*sounds: np.ndarray, seed: int = 1) -> Pcm:
    noise = np.random.default_rng(seed).normal(0, HISS, len(sounds[0]))
    return np.clip(np.round(sum(sounds, noise)), -32768, 32767).astype(np.int16)


def add_speech(silence_like: np.ndarray, speech: np.ndarray, at_s: float) -> np.ndarray:
    out = np.zeros(len(silence_like))
    at = int(at_s * SPEECH_RATE)
    speech = speech[: len(out) - at]
    out[at : at + len(speech)] = speech
    return out


@dataclass
class Heard:
    speech: np.ndarray
    """VAD's probabilities, one a window."""
    pcm: Pcm

    @property
    def share(self) -> float:
        return float((self.speech >= TurnsConfig().vad_start).mean())

    def noticed(self, bot_end_s: float) -> list[float]:
        """When the turn-taking core took a caller to speak, over the bot and after it."""
        turns, times = core.TurnCore(TurnsConfig(), CallConfig(), 0.0), []
        turns.audible(LEAD_S)
        for number, probability in enumerate(self.speech, 1):
            now = number * WINDOW_S
            if now >= bot_end_s and turns.bot is core.Bot.AUDIBLE:
                turns.finished(now)
            for event in turns.vad(now, float(probability), now):
                if isinstance(event, core.BargeIn | core.SpeechStarted):
                    times.append(now)
                elif isinstance(event, core.Commit):
                    turns.recognized(now, event.turn, words=False)
        return times


def listen(canceller: Canceller, sent: Pcm, heard: Pcm) -> Heard:
    vad, rest, parts, speech = SileroVad(), np.zeros(0, np.int16), [], []
    for at in range(0, len(heard) - FRAME + 1, FRAME):
        canceller.played(sent[at : at + FRAME])
        parts.append(canceller.heard(heard[at : at + FRAME]))
        rest = np.concatenate([rest, parts[-1]])
        while len(rest) >= WINDOW:
            speech.append(vad(rest[:WINDOW]))
            rest = rest[WINDOW:]
    return Heard(np.array(speech), np.concatenate(parts))


def monologue(
    make: Callable[[], Canceller], response: np.ndarray, delay_s: float, db: float
) -> Iterator[tuple[Heard, float]]:
    """The three LINES in one call, nobody speaks: (what is heard, seconds the bot spoke) of each."""
    canceller = make()
    for number, speech in enumerate(bot_speech()):
        sent = said(speech)
        near = microphone(echo_of(sent, response, delay_s, db), seed=number)
        yield listen(canceller, sent, near), len(speech) / SPEECH_RATE


def interruption_s(
    make: Callable[[], Canceller],
    speech: Pcm,
    response: np.ndarray,
    delay_s: float,
    db: float | None,
    *,
    over_db: float = 0.0,
    at_s: float = 2.5,
    seed: int = 1,
) -> float | None:
    """From the caller's first sample, over the call's second reply, until the bot is held.

    `over_db`: the caller against the echo. None: not noticed, or the echo was.
    """
    canceller, lines = make(), bot_speech()
    for number, line in ((0, lines[0]), (1, lines[2])):
        sent = said(line)
        echo = np.zeros(len(sent)) if db is None else echo_of(sent, response, delay_s, db)
        loud = level(sent) * 10 ** ((-12.0 if db is None else db) / 20)
        voice = speech * (loud / level(speech) * 10 ** (over_db / 20)) if number else np.zeros(0)
        near = microphone(echo, add_speech(echo, voice, at_s), seed=seed + number)
        result = listen(canceller, sent, near)
    times = result.noticed(LEAD_S + len(lines[2]) / SPEECH_RATE)
    return times[0] - at_s if times and times[0] > at_s else None


def main() -> None:
    folder = Path(os.environ.get("VOICEBOT_RECORDINGS", "../shared/recordings"))
    rooms = [room(folder, number) for number in range(4)]
    voices = callers(folder)
    print(
        "echo         self-interruptions/min   speech windows %   barge-in at 0 dB: median, worst ms, missed"
    )
    print("delay  level    before   after          before  after     before                after")
    for db in (-6, -12, -20, -30):
        for delay_ms in (20, 60, 120, 250):
            cells: list[list[str]] = []
            for make in (Nothing, cancelling):
                count, seconds, shares = 0, 0.0, []
                for response in rooms:
                    for heard, spoken_s in monologue(make, response, delay_ms / 1000, db):
                        count += len(heard.noticed(LEAD_S + spoken_s)) > 0
                        seconds += spoken_s
                        shares.append(heard.share)
                late = [
                    interruption_s(make, voice, rooms[i % 4], delay_ms / 1000, db, seed=i)
                    for i, voice in enumerate(voices)
                ]
                found = sorted(round(s * 1000) for s in late if s is not None)
                barge = f"{found[len(found) // 2]}, {found[-1]}, {late.count(None)}" if found else "-, -, all"
                cells.append([f"{count / seconds * 60:.1f}", f"{100 * np.mean(shares):.0f}", barge])
            rows = zip(*cells, strict=True)
            print(f"{delay_ms:3} ms {db:4} dB  " + "  ".join(f"{a:>8} {b:>8}" for a, b in rows), flush=True)


if __name__ == "__main__":
    main()
