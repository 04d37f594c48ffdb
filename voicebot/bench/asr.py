"""`voicebot bench asr`: what the product's tight padding costs in word errors, and what it saves in time.

Every utterance is recognized twice by the same code, once with the configured `asr.pad_to_s` and once with
the library's 30 s. The two take turns at going first, so that a busy machine slows both.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jiwer
from rich.table import Table
from whisper_normalizer.english import EnglishTextNormalizer

from voicebot.asr.faster_whisper import open_whisper
from voicebot.audio.frames import SPEECH_RATE, Pcm
from voicebot.audio.recordings import read_recording
from voicebot.bench.report import quantile
from voicebot.config import WhisperConfig
from voicebot.engines import Recognizer

LIBRARY_S = 30.0
"""What Whisper was trained on, and what faster-whisper and openai/whisper pad every utterance to."""
MARGIN_S = 0.1
"""Kept around a call's turn on its own channel: the marks are exact to 50 ms. Where both voices are mixed
the other voice is in it."""
ALONE, MIXED = "call, own channel", "call, voices mixed"


@dataclass(frozen=True)
class Utterance:
    """A recording's 16 kHz audio, and what is said in it."""

    name: str
    domain: str
    pcm: Pcm
    text: str

    @property
    def seconds(self) -> float:
        return len(self.pcm) / SPEECH_RATE


@dataclass(frozen=True)
class Heard:
    """What one setting made of an utterance."""

    text: str
    took_s: float


@dataclass(frozen=True)
class Pair:
    utterance: Utterance
    tight: Heard
    library: Heard


class Words:
    """Texts as they are compared: Whisper's own English normalization ("20 ounce" is "twenty ounce")."""

    def __init__(self) -> None:
        self._normalize = EnglishTextNormalizer()

    def plain(self, text: str) -> str:
        return str(self._normalize(text))

    def errors(self, wanted: str, heard: str) -> tuple[int, int]:
        """(word errors, words wanted)."""
        out = jiwer.process_words(self.plain(wanted), self.plain(heard))
        wrong = out.substitutions + out.deletions + out.insertions
        return wrong, out.hits + out.substitutions + out.deletions


def read_utterances(folder: Path) -> tuple[list[Utterance], list[str]]:
    """The recordings with text in a folder, and what was left out and why.

    Of utterances.jsonl every line with `file` and `text` (and a `domain`, if known); of calls.jsonl the turns
    whose `confidence` is "high". Raises ValueError naming what is missing or wrong, RecordingError.
    """
    readers: dict[str, Callable[[Path, dict[str, Any]], Iterator[Utterance]]] = {
        "utterances": _whole,
        "calls": _of_call,
    }
    names = [name for name in readers if (folder / f"{name}.jsonl").exists()]
    if not names:
        raise ValueError(
            f'{folder} holds neither utterances.jsonl (a line per file: {{"file": "a.flac", "text": "..."}}) '
            "nor calls.jsonl"
        )
    words = Words()
    kept: list[Utterance] = []
    left_out: list[str] = []
    for name in names:
        path = folder / f"{name}.jsonl"
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            try:
                for utterance in readers[name](folder, json.loads(line)):
                    if words.plain(utterance.text):
                        kept.append(utterance)
                    else:
                        left_out.append(f"{utterance.name}: no words in {utterance.text!r}")
            except (json.JSONDecodeError, KeyError, TypeError) as error:
                raise ValueError(f"{path}, line {number}: {error!r}") from error
    if not kept:
        raise ValueError(
            f"{folder}: no recording with text in {', '.join(f'{name}.jsonl' for name in names)}"
        )
    return kept, left_out


def _whole(folder: Path, entry: dict[str, Any]) -> Iterator[Utterance]:
    pcm = read_recording(folder / entry["file"]).at(SPEECH_RATE)
    yield Utterance(entry["file"], entry.get("domain", "utterances"), pcm, entry["text"])


def _of_call(folder: Path, entry: dict[str, Any]) -> Iterator[Utterance]:
    channels = entry["channels"]
    pcms = [read_recording(folder / entry["file"], n).at(SPEECH_RATE) for n in range(len(channels))]
    for turn in entry["turns"]:
        if turn.get("confidence") != "high":
            continue
        alone = turn["who"] in channels
        margin = MARGIN_S if alone else 0.0
        start, end = max(0.0, turn["start"] - margin), turn["end"] + margin
        pcm = pcms[channels.index(turn["who"]) if alone else 0]
        part = pcm[int(start * SPEECH_RATE) : int(end * SPEECH_RATE)]
        yield Utterance(f"{entry['file']} {turn['start']:g} s", ALONE if alone else MIXED, part, turn["text"])


async def bench_asr(
    utterances: Sequence[Utterance],
    config: WhisperConfig,
    model: Path,
    progress: Callable[[int], None] = lambda _: None,
) -> dict[str, Any]:
    """All figures: `total`, by `domains`, and each of `utterances` with both texts. Raises EngineError."""
    async with AsyncExitStack() as stack:
        library = config.model_copy(update={"pad_to_s": LIBRARY_S})
        tight_ear = await stack.enter_async_context(open_whisper(config, model))
        library_ear = await stack.enter_async_context(open_whisper(library, model))
        pairs = []
        for number, utterance in enumerate(utterances):
            if number % 2:
                tight = await _hear(tight_ear, utterance)
                pairs.append(Pair(utterance, tight, await _hear(library_ear, utterance)))
            else:
                wide = await _hear(library_ear, utterance)
                pairs.append(Pair(utterance, await _hear(tight_ear, utterance), wide))
            progress(number + 1)
    return {
        "pad_to_s": {"tight": config.pad_to_s, "library": LIBRARY_S},
        "total": summary(pairs),
        "domains": {
            domain: summary([pair for pair in pairs if pair.utterance.domain == domain])
            for domain in dict.fromkeys(pair.utterance.domain for pair in pairs)
        },
        "utterances": [
            {
                "name": pair.utterance.name,
                "domain": pair.utterance.domain,
                "seconds": round(pair.utterance.seconds, 2),
                "text": pair.utterance.text,
                "tight": pair.tight.text,
                "library": pair.library.text,
                "tight_ms": round(pair.tight.took_s * 1000, 1),
                "library_ms": round(pair.library.took_s * 1000, 1),
            }
            for pair in pairs
        ],
    }


async def _hear(recognizer: Recognizer, utterance: Utterance) -> Heard:
    begun = time.perf_counter()
    text = await recognizer.transcribe(utterance.pcm)
    return Heard(text, time.perf_counter() - begun)


def summary(pairs: Sequence[Pair]) -> dict[str, Any]:
    """Word error rates (errors of all utterances over words of all), times in milliseconds.

    `difference_points` is tight minus library in percentage points. `saved_ms` is the median of what the
    tight padding saved on the same utterance; `saved_share` is of the time of all of them.
    """
    words = Words()
    wanted = sum(words.errors(pair.utterance.text, "")[1] for pair in pairs)

    def side(heard: Sequence[Heard]) -> dict[str, Any]:
        errors = sum(
            words.errors(pair.utterance.text, one.text)[0] for pair, one in zip(pairs, heard, strict=True)
        )
        times = [one.took_s * 1000 for one in heard]
        return {
            "errors": errors,
            "wer": round(errors / wanted, 4),
            "p50_ms": round(quantile(times, 0.5) or 0.0, 1),
            "p90_ms": round(quantile(times, 0.9) or 0.0, 1),
        }

    tight, library = [pair.tight for pair in pairs], [pair.library for pair in pairs]
    saved = [pair.library.took_s - pair.tight.took_s for pair in pairs]
    sides = {"tight": side(tight), "library": side(library)}
    return {
        "utterances": len(pairs),
        "words": wanted,
        "seconds": round(sum(pair.utterance.seconds for pair in pairs), 1),
        **sides,
        "difference_points": round((sides["tight"]["errors"] - sides["library"]["errors"]) / wanted * 100, 2),
        "saved_ms": round((quantile(saved, 0.5) or 0.0) * 1000, 1),
        "saved_share": round(sum(saved) / sum(one.took_s for one in library), 3),
    }


def asr_table(figures: dict[str, Any]) -> Table:
    """The figures for people: a row per domain, and the total."""
    tight, library = figures["pad_to_s"]["tight"], figures["pad_to_s"]["library"]
    table = Table(title=f"Recognition padded to {tight:g} s against {library:g} s: word errors, milliseconds")
    heads = ("utterances", "words", f"WER {tight:g} s", f"WER {library:g} s", "points")
    times = (f"{tight:g} s p50 / p90", f"{library:g} s p50 / p90", "saved ms", "saved")
    table.add_column("domain")
    for head in (*heads, *times):
        table.add_column(head, justify="right")

    def row(name: str, result: dict[str, Any], style: str | None = None) -> None:
        sides = [result["tight"], result["library"]]
        table.add_row(
            name,
            str(result["utterances"]),
            str(result["words"]),
            *(f"{side['wer']:.1%}" for side in sides),
            f"{result['difference_points']:+.2f}",
            *(f"{side['p50_ms']:.0f} / {side['p90_ms']:.0f}" for side in sides),
            f"{result['saved_ms']:.0f}",
            f"{result['saved_share']:.0%}",
            style=style,
        )

    for name, result in figures["domains"].items():
        row(name, result)
    table.add_section()
    row("total", figures["total"], "bold")
    return table
