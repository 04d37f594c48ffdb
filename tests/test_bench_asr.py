"""`voicebot bench asr`: its figures, what it reads, and a run over speech made here."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from voicebot.audio.recordings import write_wav
from voicebot.bench.asr import (
    ALONE,
    MIXED,
    Heard,
    Pair,
    Utterance,
    Words,
    asr_table,
    read_utterances,
    summary,
)
from voicebot.cli import app


def pair(wanted: str, tight: str, library: str, tight_s: float = 0.1, library_s: float = 0.3) -> Pair:
    utterance = Utterance("a", "x", np.zeros(16_000, np.int16), wanted)
    return Pair(utterance, Heard(tight, tight_s), Heard(library, library_s))


def test_figures_are_errors_over_words_and_paired_times() -> None:
    pairs = [
        pair("can we have this", "can we have", "can we have this", 0.1, 0.3),
        pair("hello", "yellow there", "hello", 0.2, 0.5),
        pair("we want red black tea", "we want red black tea", "we want red black tea", 0.3, 0.4),
    ]
    result = summary(pairs)
    assert (result["utterances"], result["words"], result["seconds"]) == (3, 10, 3.0)
    assert result["tight"] == {"errors": 3, "wer": 0.3, "p50_ms": 200.0, "p90_ms": 280.0}
    assert result["library"] == {"errors": 0, "wer": 0.0, "p50_ms": 400.0, "p90_ms": 480.0}
    assert result["difference_points"] == 30.0  # of all words, not the mean of the utterances' rates
    assert result["saved_ms"] == 200.0
    assert result["saved_share"] == 0.5


@pytest.mark.parametrize(
    ("wanted", "heard", "errors"),
    [
        ("Twenty ounce, please.", "20 ounce please", 0),
        ("I'd like a latte", "I would like a latte.", 0),
        ("um, regular Chromecast", "Regular Chromecast.", 0),
        ("press two", "press 3", 1),
        ("yes", "", 1),
        ("yes", "yes yes yes", 2),
    ],
)
def test_texts_are_compared_as_spoken(wanted: str, heard: str, errors: int) -> None:
    assert Words().errors(wanted, heard)[0] == errors


def test_what_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VOICEBOT_RECORDINGS", raising=False)
    cases = (
        ([], "VOICEBOT_RECORDINGS"),
        ([str(tmp_path / "no")], "no such folder"),
        ([str(tmp_path)], "utterances.jsonl"),
    )
    for arguments, named in cases:
        result = CliRunner().invoke(app, ["bench", "asr", *arguments])
        assert (result.exit_code, type(result.exception)) == (1, SystemExit)
        assert named in result.output


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("not json", "utterances.jsonl, line 1"),
        ('{"file": "q.wav"}', "'text'"),
        ('{"file": "gone.wav", "text": "hi"}', "gone.wav: no such file"),
        ('{"file": "q.wav", "text": "Um."}', "no recording with text"),
    ],
)
def test_a_wrong_list_or_recording_is_named(tmp_path: Path, line: str, named: str) -> None:
    tone(tmp_path / "q.wav", 2.0)
    (tmp_path / "utterances.jsonl").write_text(line)
    result = CliRunner().invoke(app, ["bench", "asr", str(tmp_path)])
    assert (result.exit_code, type(result.exception)) == (1, SystemExit)
    assert named in result.output.replace("\n", "")


def tone(path: Path, seconds: float) -> None:
    sound = (8000 * np.sin(np.arange(int(seconds * 8000)) * 0.3)).astype(np.int16)
    write_wav(path, [sound], 8000)


def test_calls_give_the_turns_whose_text_is_sure(tmp_path: Path) -> None:
    """Each from its own channel where it has one, with a margin only there."""
    loud, soft = (np.full(80_000, level, np.int16) for level in (9000, 3000))
    write_wav(tmp_path / "two.wav", [loud, soft], 8000)
    write_wav(tmp_path / "mix.wav", [loud], 8000)
    turns = [
        {"who": "caller", "start": 1.0, "end": 3.0, "text": "One.", "confidence": "high"},
        {"who": "agent", "start": 4.0, "end": 6.0, "text": "Two.", "confidence": "high"},
        {"who": "caller", "start": 7.0, "end": 8.0, "text": "Three.", "confidence": "medium"},
        {"who": "caller", "start": 8.0, "end": 9.0, "text": "Uh.", "confidence": "high"},
    ]
    calls = [
        {"file": "two.wav", "channels": ["caller", "agent"], "turns": turns},
        {"file": "mix.wav", "channels": ["mix"], "turns": turns[:2]},
    ]
    (tmp_path / "calls.jsonl").write_text("\n".join(map(json.dumps, calls)))
    kept, left_out = read_utterances(tmp_path)
    assert [(one.text, one.domain) for one in kept] == [
        ("One.", ALONE),
        ("Two.", ALONE),
        ("One.", MIXED),
        ("Two.", MIXED),
    ]
    assert [one.seconds for one in kept] == pytest.approx([2.2, 2.2, 2.0, 2.0], abs=0.01)
    assert [int(np.median(one.pcm)) for one in kept] == pytest.approx([9000, 3000, 9000, 9000], rel=0.02)
    assert left_out == ["two.wav 8 s: no words in 'Uh.'"]


@pytest.mark.models
def test_a_run_over_real_speech(say: Callable[..., Path], tmp_path: Path) -> None:
    """Both settings understand two questions; the tight one sooner; a row per domain; JSON with both texts."""
    texts = {"hotel": "What time is breakfast served?", "pets": "Can I bring my dog to the hotel?"}
    lines = [{"file": str(say(text)), "text": text, "domain": domain} for domain, text in texts.items()]
    (tmp_path / "utterances.jsonl").write_text("\n".join(map(json.dumps, lines)))
    file = tmp_path / "out" / "asr.json"
    result = CliRunner().invoke(app, ["bench", "asr", str(tmp_path), "--json", str(file)])
    assert result.exit_code == 0, result.output
    figures = json.loads(file.read_text())
    assert all(domain in result.output for domain in (*texts, "total"))
    assert list(figures["domains"]) == list(texts)
    total = figures["total"]
    assert (total["utterances"], total["words"]) == (2, 13)
    assert total["tight"]["wer"] <= 0.2 and total["library"]["wer"] <= 0.2
    assert total["tight"]["p50_ms"] < total["library"]["p50_ms"]
    assert total["saved_share"] > 0
    assert figures["pad_to_s"] == {"tight": 10.0, "library": 30.0}
    assert all("dog" in figures["utterances"][1][side] for side in ("tight", "library"))
    assert figures["machine"]["cores"]


def test_the_table_names_both_settings() -> None:
    figures = {
        "pad_to_s": {"tight": 8.0, "library": 30.0},
        "domains": {},
        "total": summary([pair("a", "a", "a")]),
    }
    heads = [str(column.header) for column in asr_table(figures).columns]
    assert "WER 8 s" in heads and "WER 30 s" in heads
