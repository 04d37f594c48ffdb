"""Noise gives no words, short answers survive, loops end: by evidence in the sound, not by lists of phrases."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from faster_whisper.feature_extractor import FeatureExtractor

from voicebot import clock
from voicebot.asr import doubt, faster_whisper
from voicebot.asr.doubt import nothing_said, voiced, words_of
from voicebot.asr.faster_whisper import cut_loop, features, open_whisper
from voicebot.audio.frames import SPEECH_RATE, Pcm
from voicebot.audio.recordings import read_recording
from voicebot.config import WhisperConfig

models = pytest.mark.models
SECOND = np.zeros(SPEECH_RATE, np.int16)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[MUSIC]", ""),
        ("(coughs)", ""),
        ("[BLANK_AUDIO", ""),
        ("*sighs* ♪", ""),
        (". . . . .", ""),
        ("...", ""),
        ("", ""),
        ("  Yes. ", "Yes."),
        ("(coughs) Yes, please.", "Yes, please."),
        ("2", "2"),
        ("(555) 1234", "(555) 1234"),
        ("Thank you.", "Thank you."),
    ],
)
def test_what_is_bracketed_or_only_punctuation_is_nothing(text: str, words: str) -> None:
    assert words_of(text) == words


@pytest.mark.parametrize(
    ("no_speech", "score", "heard", "sure", "nothing"),
    [
        (0.1, -4.0, False, 0, False),  # a sure pass is believed, whatever its score
        (0.35, -0.8, False, 0, True),  # some doubt, and the detector heard nothing at all
        (0.35, -0.8, True, 0, False),
        (0.7, -0.5, True, 2, True),  # much doubt, and less than a word's worth of voice, however fluent
        (0.7, -3.0, True, 3, False),  # "four" in noise: an improbable word, but surely a voice
        (0.9, -0.8, True, 3, False),
        (0.9, -2.0, True, 3, True),  # an engine's hum: "You"
    ],
)
def test_words_are_dropped_on_evidence(
    no_speech: float, score: float, heard: bool, sure: int, nothing: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doubt, "voiced", lambda _: (heard, sure))
    assert nothing_said(SECOND, no_speech, score, unfinished=False) is nothing


def test_a_pass_without_end_is_noise_only_in_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    """A crying baby is read "AHHHH..." to the limit; "zero" may loop too, and is a voice."""
    monkeypatch.setattr(doubt, "voiced", lambda _: (True, 3))
    assert nothing_said(SECOND, 0.46, -0.9, unfinished=True)
    assert not nothing_said(SECOND, 0.46, -0.9, unfinished=False)
    assert not nothing_said(SECOND, 0.31, -0.9, unfinished=True)
    assert not nothing_said(SECOND, 0.46, -0.27, unfinished=True)


def test_the_detector_is_asked_only_in_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(doubt, "voiced", lambda pcm: (asked.append(len(pcm)), (True, 3))[1])
    nothing_said(SECOND, 0.2, -2.0, unfinished=False)
    assert asked == []
    nothing_said(SECOND, 0.5, -2.0, unfinished=False)
    assert asked == [SPEECH_RATE]


def detector(probabilities: Iterable[float], monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Replaces the detector; gives the sizes of the windows that it is asked about."""
    sizes: list[int] = []
    coming = iter(probabilities)
    monkeypatch.setattr(
        doubt, "SileroVad", lambda: lambda window: (sizes.append(len(window)), next(coming))[1]
    )
    return sizes


def test_windows_are_counted_until_it_is_sure(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = detector([0.1, 0.9, 0.3, 0.9, 0.8, 0.9, 0.9], monkeypatch)
    assert voiced(SECOND) == (True, 3)
    assert len(sizes) == 5
    sizes = detector([0.1, 0.79, 0.3, 0.85], monkeypatch)
    assert voiced(np.zeros(3 * 512 + 1, np.int16)) == (True, 1)
    assert sizes == [512] * 4  # the last one is filled up
    detector([0.49, 0.4], monkeypatch)
    assert voiced(np.zeros(1024, np.int16)) == (False, 0)
    assert voiced(np.zeros(0, np.int16)) == (False, 0)


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        (
            "Could you spell that for me, please? Could you spell that for m",
            "Could you spell that for me, please?",
        ),
        ("Yes. I would like that, thanks. I would like tha", "Yes. I would like that, thanks."),
        ("Zero? Zero? Zero? Zero? Zero? Zero? Ze", "Zero?"),
        ("I said no, no, no", "I said no, no, no"),  # three repeats may be meant
        ("and then I went to the shop and then", "and then I went to the shop and then"),
    ],
)
def test_a_pass_that_did_not_end_is_cut_sooner(text: str, kept: str) -> None:
    assert cut_loop(text, 4.0, unfinished=True) == kept
    assert cut_loop(text, 4.0) == text


@pytest.mark.parametrize("samples", [0, 1, 159, 160, 161, 4800, 52_345, 144_000])
def test_features_of_padding_are_those_of_silence(samples: int) -> None:
    speech = np.random.default_rng(1).normal(0, 0.1, samples).astype(np.float32)
    extractor = FeatureExtractor()
    whole = extractor(np.pad(speech, (0, 160_000 - samples)), padding=0)
    assert np.allclose(features(extractor, speech, 1000), whole, atol=1e-5)


def answers(
    pieces: Iterable[Pcm],
    model: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
    *,
    doubts: bool = True,
) -> list[str]:
    """What the real recognizer makes of pieces; without `doubts`, of whatever sound."""

    async def main() -> list[str]:
        config = WhisperConfig()
        async with open_whisper(config, model(config.model)) as recognizer:
            return [await recognizer.transcribe(piece) for piece in pieces]

    with monkeypatch.context() as patch:
        if not doubts:
            patch.setattr(faster_whisper, "nothing_said", lambda *_, **__: False)
        return clock.run(main())


def loud(samples: npt.NDArray[np.float64], level_db: float) -> Pcm:
    """At `level_db` below full scale (RMS)."""
    rms = np.sqrt(np.mean(np.square(samples)))
    return np.clip(samples / rms * 10 ** (level_db / 20) * 32768, -32768, 32767).astype(np.int16)


def noises() -> list[Pcm]:
    """Silence, hiss, hum, a tone, a key, breath, clicks, and a chord, of 0.5-2 s at 20-65 dB below full scale."""
    rng = np.random.default_rng(2)
    made: list[Pcm] = []
    for seconds in (0.5, 1.0, 2.0):
        t = np.arange(int(seconds * SPEECH_RATE)) / SPEECH_RATE
        hiss = rng.normal(size=len(t))
        spectrum = np.fft.rfft(hiss)
        bins = np.fft.rfftfreq(len(t), 1 / SPEECH_RATE)
        spectrum[(bins < 300) | (bins > 3000)] = 0
        breath = np.fft.irfft(spectrum, len(t)) * np.sin(np.pi * t / seconds) ** 2
        clicks = hiss * ((t % 0.2) < 0.008)
        hum = np.sin(2 * np.pi * 50 * t) + np.sin(2 * np.pi * 150 * t) / 3
        key = np.sin(2 * np.pi * 697 * t) + np.sin(2 * np.pi * 1209 * t)
        chord = sum(np.sin(2 * np.pi * f * t) for f in (261.6, 329.6, 392.0)) * np.exp(-2 * (2 * t % 1))
        for sound in (hiss, hum, np.sin(2 * np.pi * 440 * t), key, clicks, chord):
            made += [loud(sound, level) for level in (-20, -35, -65)]
        made += [loud(breath, level) for level in (-35, -50, -65)]  # louder is "AHH", and starts no turn
        made += [np.zeros(len(t), np.int16), rng.integers(-1, 2, len(t)).astype(np.int16)]
    return made


@models
def test_noise_gives_no_words(model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    pieces = noises()
    assert [text for text in answers(pieces, model, monkeypatch) if text] == []
    made_up = [text for text in answers(pieces, model, monkeypatch, doubts=False) if text]
    assert len(made_up) > len(pieces) / 2, "the model alone is sure enough: is all this needed?"


@models
def test_short_answers_are_kept(
    model: Callable[[str], Path], say: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As heard, and 20 dB quieter."""
    said = ("Yes.", "No.", "Okay.", "Thank you.", "Sure.", "Yeah.", "Please.", "Nope.")
    spoken = [piece(say(text), 0.0, None) for text in said]
    for pieces in (spoken, [(pcm * 0.1).astype(np.int16) for pcm in spoken]):
        heard = answers(pieces, model, monkeypatch)
        assert all(heard), dict(zip(said, heard, strict=True))
        assert heard[3].lower().startswith("thank you")
        right = sum(plain(text) == plain(wanted) for text, wanted in zip(heard, said, strict=True))
        assert right >= len(said) - 2, heard


def plain(text: str) -> str:
    return text.lower().strip(" .,!?")


def piece(path: Path, start: float, end: float | None, channel: int = 0) -> Pcm:
    """16 kHz audio of a recording from `start` to `end`, in seconds."""
    pcm = read_recording(path, channel).at(SPEECH_RATE)
    return pcm[int(start * SPEECH_RATE) : None if end is None else int(end * SPEECH_RATE)]


@models
def test_no_real_digit_is_lost(
    model: Callable[[str], Path], recordings: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sixty, from 8 kHz, with the 0.3 s before them that a turn has."""
    files = sorted((recordings / "digits").glob("*.flac"))
    assert len(files) >= 50
    silence = np.zeros(int(0.32 * SPEECH_RATE), np.int16)
    heard = answers(
        (np.concatenate([silence, piece(file, 0.0, None), silence[:1600]]) for file in files),
        model,
        monkeypatch,
    )
    lost = [file.stem for file, text in zip(files, heard, strict=True) if not text]
    assert lost == []
    looped = [text for text in heard if len(text.split()) > 3]
    assert looped == []


@models
def test_short_turns_of_real_calls_are_kept(
    model: Callable[[str], Path], recordings: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each "Okay.", "Thank you.", "Bye." and what else is said in three words or fewer."""
    pieces, wanted = [], []
    for line in (recordings / "calls.jsonl").read_text().splitlines():
        call = json.loads(line)
        for turn in call["turns"]:
            if turn["confidence"] == "high" and len(turn["text"].split()) <= 3:
                channels = call["channels"]
                channel = channels.index(turn["who"]) if turn["who"] in channels else 0
                start, end = max(0.0, turn["start"] - 0.2), turn["end"] + 0.1
                pieces.append(piece(recordings / call["file"], start, end, channel))
                wanted.append(turn["text"])
    assert {"Okay.", "Thank you.", "Bye."} <= set(wanted)
    heard = answers(pieces, model, monkeypatch)
    assert all(heard), dict(zip(wanted, heard, strict=True))


@models
def test_real_noise_gives_hardly_any_words(
    model: Callable[[str], Path], recordings: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dishes, a kitchen, a phone, a horn, a street: three places of each, of 0.5 and 2 s. Not the baby's voice."""
    pieces = []
    for file in sorted((recordings / "noise").glob("*.flac")):
        if file.stem == "baby_crying":
            continue
        whole = piece(file, 0.0, None)
        for seconds in (0.5, 2.0):
            count = int(seconds * SPEECH_RATE)
            for start in np.linspace(0, len(whole) - count, 3).astype(int):
                pieces.append(whole[start : start + count])
    words = [text for text in answers(pieces, model, monkeypatch) if text]
    assert len(words) <= 1, words
    made_up = [text for text in answers(pieces, model, monkeypatch, doubts=False) if text]
    assert len(made_up) > len(pieces) / 2


@models
def test_the_decoder_stops_at_the_limit(model: Callable[[str], Path]) -> None:
    """CTranslate2 makes half of `max_length` and no more: the recognizer's limits rely on it."""
    config = WhisperConfig()
    engine = faster_whisper._Whisper(config, model(config.model))
    for limit in (6, 20):
        tokens = engine._model.model.generate(
            engine._model.encode(np.zeros((80, 1000), np.float32)),
            [engine._prompt],
            beam_size=1,
            max_length=2 * limit,
            suppress_tokens=[*engine._suppressed, engine._tokenizer.eot],
        )[0].sequences_ids[0]
        assert len(tokens) == limit
