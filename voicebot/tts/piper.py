"""Piper: VITS voices on onnxruntime, espeak-ng phonemes.

piper-tts gives one piece of audio per sentence, as soon as that sentence is made. We run its session
ourselves, so that closing the stream ends the run inside the engine (onnxruntime's `terminate`), so
that the number of threads is ours, and so that the network tells how long each phoneme lasts.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import lru_cache
from itertools import accumulate, chain
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import onnxruntime
from piper import PiperVoice
from piper.config import PiperConfig as VoiceConfig

from voicebot.audio.frames import Pcm
from voicebot.config import PiperConfig
from voicebot.engines import EngineDead, EngineError, Speech, Synthesizer
from voicebot.models import file_in
from voicebot.tts.word_ends import sound_ends, voice_words, with_durations, word_sounds

_T = TypeVar("_T")

EDGE = 0.01
"""Of full scale (-40 dBFS): quieter edges of a piece count as silence."""
LEAD_S, TAIL_S = 0.010, 0.100
"""Silence left at the edges of a piece: enough for a soft attack, and for a breath between sentences."""
WORDS_KNOWN = 4096
"""Words of which the number of sounds is remembered."""


@asynccontextmanager
async def open_piper(config: PiperConfig, path: Path) -> AsyncIterator[Synthesizer]:
    """Loads the voice; `path` is a .onnx file or a folder holding exactly one. Raises EngineDead."""
    executor = ThreadPoolExecutor(1, "tts")  # espeak-ng is not thread-safe, and two runs share the cores
    try:
        loop = asyncio.get_running_loop()
        try:
            voice = await loop.run_in_executor(executor, _load, config, path)
        except Exception as error:
            raise EngineDead(f"piper cannot load {path}: {error}") from error
        yield Piper(voice, executor, config)
    finally:
        executor.shutdown(wait=True, cancel_futures=True)


def _load(config: PiperConfig, path: Path) -> PiperVoice:
    path = file_in(path, ".onnx")
    settings = json.loads(Path(f"{path}.json").read_text(encoding="utf-8"))
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = config.threads
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # the cores are shared
    # The voice's noise comes from a generator seeded when the session is made: a replay that asks for
    # the same texts in the same order gets the same audio.
    onnxruntime.set_seed(config.seed)
    model = with_durations(path.read_bytes()) or str(path)
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    session._model_bytes = None  # 60 MB that only a change of providers would read again
    return PiperVoice(session=session, config=VoiceConfig.from_dict(settings))


class Piper:
    def __init__(self, voice: PiperVoice, executor: ThreadPoolExecutor, config: PiperConfig) -> None:
        self._voice, self._executor, self._config = voice, executor, config
        self._sounds = lru_cache(WORDS_KNOWN)(lambda word: voice_words(voice.phonemize(word)) or [0])

    @property
    def rate(self) -> int:
        return int(self._voice.config.sample_rate)

    async def stream(self, text: str) -> AsyncGenerator[Speech, None]:
        loop = asyncio.get_running_loop()
        run = onnxruntime.RunOptions()
        try:
            sentences, due = await self._within(loop.run_in_executor(self._executor, self._read, text))
            spoken = 0  # sounds of the sentences before
            for phonemes in sentences:
                if phonemes:
                    work = loop.run_in_executor(self._executor, self._infer, phonemes, run)
                    whole, ends = await self._within(work)
                    pcm, start = trim(whole, self.rate)
                    if pcm.size:
                        # A word without a sound of its own ends with the one before it.
                        times = np.clip(np.array([0, *ends]) - start, 0, pcm.size) / self.rate
                        here = [max(0, end - spoken) for end in due if end <= spoken + len(ends)]
                        del due[: len(here)]
                        yield Speech(pcm, tuple(times[here].tolist()))
                    spoken += len(ends)
        except (RuntimeError, ValueError) as error:
            raise EngineError(f"piper failed on {text!r}: {error}") from error
        finally:
            run.terminate = True

    async def _within(self, work: asyncio.Future[_T]) -> _T:
        try:
            async with asyncio.timeout(self._config.timeout_s):
                return await work
        except TimeoutError:
            raise EngineError(f"speech synthesis took longer than {self._config.timeout_s:g} s") from None

    def _read(self, text: str) -> tuple[list[list[str]], list[int]]:
        """The sentences' phonemes, and after how many sounds each word ends; in the worker thread."""
        sentences, words = self._voice.phonemize(text), text.split()
        voice = voice_words(sentences)
        if len(words) == len(voice) and not any(map(str.isdigit, text)):
            return sentences, [*accumulate(voice)]
        # espeak runs words together ("of the") and makes several of a number. To see which, it is asked
        # for each word alone: 0.1 ms for one that it was not asked for before.
        alone = [self._sounds(word) for word in words]
        ends = word_sounds([*chain(*alone)], voice)
        return sentences, [ends[last - 1] for last in accumulate(map(len, alone))]

    def _infer(self, phonemes: list[str], run: onnxruntime.RunOptions) -> tuple[Pcm, list[int]]:
        """One sentence to audio, as piper's `phoneme_ids_to_audio` does, and at which sample each of its
        sounds ends; in the worker thread."""
        voice = self._voice
        ids = np.array([voice.phonemes_to_ids(phonemes)], np.int64)
        length = voice.config.length_scale * self._config.length_scale
        scales = np.array([voice.config.noise_scale, length, voice.config.noise_w_scale], np.float32)
        inputs = {"input": ids, "input_lengths": np.array([ids.shape[1]], np.int64), "scales": scales}
        if voice.config.num_speakers > 1:
            inputs["sid"] = np.array([voice.config.default_speaker_id], np.int64)
        outputs: list[npt.NDArray[np.float32]] = voice.session.run(None, inputs, run)
        audio, durations = outputs[0].reshape(-1), outputs[1].reshape(-1) if len(outputs) > 1 else None
        ends = sound_ends(phonemes, voice.config.phoneme_id_map, durations, audio.size)
        peak = float(np.abs(audio).max(initial=0.0))
        scaled = audio * (0.9 / peak) if peak > 1e-6 else audio
        return (scaled * 32767.0).astype(np.int16), ends


def trim(pcm: Pcm, rate: int) -> tuple[Pcm, int]:
    """Cuts silence at both edges down to LEAD_S and TAIL_S, and tells at which sample what is left began.
    A piece without sound becomes empty."""
    loud = np.flatnonzero(np.abs(pcm.astype(np.int32)) > EDGE * 32767)
    if not loud.size:
        return pcm[:0], 0
    start = max(0, int(loud[0]) - int(LEAD_S * rate))
    end = min(len(pcm), int(loud[-1]) + 1 + int(TAIL_S * rate))
    out = pcm[start:end].copy()
    fade = min(int(0.005 * rate), len(out))
    out[len(out) - fade :] = (out[len(out) - fade :] * np.linspace(1.0, 0.0, fade)).astype(np.int16)
    return out, start
