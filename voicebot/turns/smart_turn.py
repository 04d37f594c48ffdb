"""Smart Turn v3: how complete does the turn sound? A small model that hears the last 8 seconds.

BSD-2-Clause, by Daily (pipecat). It was trained on log-mel features as Whisper computes them, of 8 s
of audio normalized to zero mean and unit variance, silence padded in front.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import onnxruntime
from faster_whisper.feature_extractor import FeatureExtractor

from voicebot.audio.frames import SPEECH_RATE, Pcm
from voicebot.engines import EngineDead, EngineError, TurnModel
from voicebot.models import file_in
from voicebot.priority import yield_cores

HEARD_S = 8
TIMEOUT_S = 2.0
"""A verdict that late is of no use: by then the turn has ended without it."""


class SmartTurn:
    """One session, one worker thread: two threads are slower than one on a model this small."""

    def __init__(self, path: Path, executor: ThreadPoolExecutor) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self._features = FeatureExtractor(chunk_length=HEARD_S)
        self._executor = executor

    async def completeness(self, pcm: Pcm) -> float:
        """Probability, 0..1, that the caller's turn ends with this 16 kHz audio. Raises EngineError."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(TIMEOUT_S):
                return await loop.run_in_executor(self._executor, self.judge, pcm)
        except (TimeoutError, RuntimeError) as error:
            raise EngineError(f"Smart Turn failed: {error or 'too slow'}") from error

    def judge(self, pcm: Pcm) -> float:
        """The same, in the thread of the caller: about 45 ms of one core."""
        wanted = HEARD_S * SPEECH_RATE
        heard = pcm[-wanted:].astype(np.float32) / 32768.0
        padded = np.pad(heard, (wanted - len(heard), 0))
        normal = (padded - padded.mean()) / np.sqrt(padded.var() + 1e-7)
        features = self._features(normal, padding=0).astype(np.float32)
        return float(self._session.run(None, {"input_features": features[np.newaxis]})[0].item())


@asynccontextmanager
async def open_smart_turn(path: Path) -> AsyncIterator[TurnModel]:
    """Loads the model; `path` is its .onnx file or a folder holding it. Raises EngineDead."""
    # Its verdict is due at the end of the shortest wait; the recognizer's words are due at once.
    executor = ThreadPoolExecutor(1, "turn", initializer=yield_cores, initargs=(19,))
    try:
        loop = asyncio.get_running_loop()
        try:
            model = await loop.run_in_executor(executor, SmartTurn, file_in(path, ".onnx"), executor)
        except Exception as error:
            raise EngineDead(f"Smart Turn cannot be loaded from {path}: {error}") from error
        yield model
    finally:
        executor.shutdown(wait=True, cancel_futures=True)
