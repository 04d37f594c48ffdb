"""Whisper through faster-whisper's model and CTranslate2, without the library's 30 s of padding.

The encoder's cost grows with the audio it is given, padding included; CTranslate2 takes shorter
features. Padding to 10 s (or the speech + 1 s) instead of 30 s costs no accuracy and saves more than
half of the time; tighter padding makes the decoder loop. Loops are bounded and cut all the same.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt
from faster_whisper import WhisperModel
from faster_whisper.feature_extractor import FeatureExtractor
from faster_whisper.tokenizer import Tokenizer
from faster_whisper.transcribe import get_suppressed_tokens

from voicebot.asr.doubt import nothing_said, words_of
from voicebot.audio.frames import SPEECH_RATE, Pcm
from voicebot.config import WhisperConfig
from voicebot.engines import EngineDead, EngineError, Recognizer

MAX_PIECE_S = 28.0
"""Whisper hears 30 s at most; longer speech is cut at its quietest point below that."""
TOKENS_PER_S, TOKENS_BASE = 8, 8
"""Fast English speech is 4-5 words, 6-7 tokens a second; more is a decoding loop."""
MOST_TOKENS = 224
"""Half of what Whisper's decoder can hold, as in openai/whisper."""
MOST_WORDS_PER_S = 5
FAIR_ROUND = 4
"""Words said again at once that no caller says by chance."""
HOP, FFT = 160, 400
"""Samples from one column of the features to the next, and under each of them: fixed by Whisper."""


@asynccontextmanager
async def open_whisper(config: WhisperConfig, folder: Path) -> AsyncIterator[Recognizer]:
    """Loads the model in a worker thread. Raises EngineDead with the library's reason."""
    executor = ThreadPoolExecutor(config.workers, "asr")
    try:
        loop = asyncio.get_running_loop()
        try:
            engine = await loop.run_in_executor(executor, _Whisper, config, folder)
        except Exception as error:
            raise EngineDead(f"faster-whisper cannot load {folder}: {error}") from error
        yield WhisperRecognizer(engine, executor, config)
    finally:
        executor.shutdown(wait=True, cancel_futures=True)


class WhisperRecognizer:
    def __init__(self, engine: _Whisper, executor: ThreadPoolExecutor, config: WhisperConfig) -> None:
        self._engine, self._executor, self._timeout_s = engine, executor, config.timeout_s
        self._workers = config.workers
        self._busy: list[int] = []  # one item for each pass that runs, waited for or not

    @property
    def spare(self) -> bool:
        return len(self._busy) < max(1, self._workers - 1)

    async def transcribe(self, pcm: Pcm) -> str:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._timeout_s):
                return await loop.run_in_executor(self._executor, self._pass, pcm)
        except TimeoutError:
            raise EngineError(f"recognition took longer than {self._timeout_s:g} s") from None
        except RuntimeError as error:
            raise EngineError(f"recognition failed: {error}") from error

    def _pass(self, pcm: Pcm) -> str:
        self._busy.append(1)
        try:
            return self._engine.transcribe(pcm)
        finally:
            self._busy.pop()


class _Whisper:
    """The synchronous part; runs in the worker threads only."""

    def __init__(self, config: WhisperConfig, folder: Path) -> None:
        self._config = config
        self._model = WhisperModel(
            str(folder),
            device=config.device,
            compute_type=config.compute_type,
            cpu_threads=config.threads,
            num_workers=config.workers,
            local_files_only=True,
        )
        core = self._model.model
        self._tokenizer = Tokenizer(
            self._model.hf_tokenizer,
            core.is_multilingual,
            task="transcribe" if core.is_multilingual else None,
            language=config.language,
        )
        self._prompt = [*self._tokenizer.sot_sequence, self._tokenizer.no_timestamps]
        self._suppressed = get_suppressed_tokens(self._tokenizer, [-1])
        self.transcribe(np.zeros(SPEECH_RATE, np.int16))  # the first run allocates; pay for it now

    def transcribe(self, pcm: Pcm) -> str:
        samples = pcm.astype(np.float32) / 32768.0
        texts = (self._piece(piece) for piece in split_long(samples, MAX_PIECE_S))
        return " ".join(text for text in texts if text)

    def _piece(self, samples: npt.NDArray[np.float32]) -> str:
        seconds = len(samples) / SPEECH_RATE
        padded = max(int(self._config.pad_to_s * SPEECH_RATE), len(samples) + SPEECH_RATE)
        limit = min(MOST_TOKENS, TOKENS_BASE + int(seconds * TOKENS_PER_S))
        result = self._model.model.generate(
            self._model.encode(features(self._model.feature_extractor, samples, padded // HOP)),
            [self._prompt],
            beam_size=self._config.beam_size,
            max_length=2 * limit,  # CTranslate2 keeps half of it for text said before, which is never given
            return_scores=True,
            return_no_speech_prob=True,
            suppress_tokens=list(self._suppressed),
        )[0]
        tokens = result.sequences_ids[0]
        unfinished = len(tokens) >= limit
        text = words_of(self._tokenizer.decode(tokens))
        pcm = (samples * 32768).astype(np.int16)
        if not text or nothing_said(pcm, result.no_speech_prob, result.scores[0], unfinished=unfinished):
            return ""
        return cut_loop(text, seconds, unfinished=unfinished)


def features(
    extractor: FeatureExtractor, samples: npt.NDArray[np.float32], columns: int
) -> npt.NDArray[np.float32]:
    """Log-mel features of shape (mels, columns) of samples padded with silence.

    Columns of silence are all alike, so that only one is computed: 1 ms instead of 4-6 for a sentence.
    """
    end = -len(samples) % HOP + FFT // HOP * HOP + HOP
    real = extractor(np.pad(samples, (0, end)), padding=0)
    return np.pad(real, ((0, 0), (0, columns - real.shape[1])), mode="edge")


def split_long(samples: npt.NDArray[np.float32], longest_s: float) -> list[npt.NDArray[np.float32]]:
    """Cuts speech longer than `longest_s` at the quietest 20 ms of the last third of each piece."""
    window = SPEECH_RATE // 50
    longest = int(longest_s * SPEECH_RATE) // window * window
    pieces = []
    while len(samples) > longest:
        start = longest * 2 // 3 // window * window
        energy = np.square(samples[start:longest]).reshape(-1, window).mean(axis=1)
        cut = start + int(energy.argmin()) * window + window // 2
        pieces.append(samples[:cut])
        samples = samples[cut:]
    return [*pieces, samples]


def cut_loop(text: str, seconds: float, *, unfinished: bool = False) -> str:
    """Cuts a decoding loop: words said again at once, and then again to the end.

    "What time is check in? What time is check in? What ti" gives the first round only. People repeat a
    word or a number ("no no no", "22222"): rounds of fewer than four words are cut only when nobody
    could have said them in `seconds`, or when the decoder had not stopped by itself (`unfinished`). Then four
    words of a second round are enough.
    """
    words = text.split()
    too_many = len(words) > MOST_WORDS_PER_S * seconds + 2
    plain = [re.sub(r"\W", "", word).lower() for word in words]
    for size in range(1 if too_many or unfinished else FAIR_ROUND, len(words)):
        again = FAIR_ROUND if unfinished else size
        for start in range(len(words) - size - again + 1):
            round_ = plain[start : start + size]
            rest = plain[start + size :]
            repeats = [round_[i % size] for i in range(len(rest))]
            if rest[:-1] == repeats[:-1] and (rest[-1] == repeats[-1] or repeats[-1].startswith(rest[-1])):
                return " ".join(words[: start + size])
    return text
