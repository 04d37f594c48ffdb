"""One thing that the bot says, cut into 20 ms frames, with a memory of how much of it was heard.

Everything is added with the text it speaks, so that after an interruption the history can be cut to
the words that were sent. Sans-IO: the call asks for a frame every 20 ms.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from voicebot.audio.frames import FRAME_S, Pcm, silence
from voicebot.audio.resample import Resampler

FADE_S = 0.005
"""Ramp at a hold and when going on: shorter clicks, longer would be heard as a word cut later."""
SLOWEST_SPEECH_S = 0.09
"""Seconds per character, at most, to guess how long a piece is that is still being made."""


@dataclass
class Piece:
    """A stretch of text and the audio that speaks it."""

    text: str
    pcm: list[Pcm] = field(default_factory=list)
    made: int = 0
    """Samples made so far."""
    played: int = 0
    whole: bool = False


class Playout:
    def __init__(self, source_rate: int, rate: int) -> None:
        """Takes PCM at `source_rate` (the synthesizer's) and gives frames at `rate` (the transport's)."""
        self.rate = rate
        self._source_rate = source_rate
        self._frame = round(rate * FRAME_S)
        self._pieces: deque[Piece] = deque()
        self._heard: list[str] = []
        self._held = False
        self._faded = False  # the hold has begun: its first frame fades out, the first one after it in
        self._ending = False  # no more pieces will come

    def add(self, text: str) -> Piece:
        """A new piece; its audio follows with `feed`, and `end_piece` closes it."""
        piece = Piece(text)
        self._pieces.append(piece)
        return piece

    def feed(self, piece: Piece, pcm: Pcm) -> None:
        """Audio of a piece. Each call's audio is resampled whole: it begins and ends in silence."""
        resampler = Resampler(self._source_rate, self.rate)
        out = np.concatenate([resampler(pcm), resampler.flush()])
        piece.pcm.append(out)
        piece.made += len(out)

    def end_piece(self, piece: Piece) -> None:
        piece.whole = True

    def cut_piece(self, piece: Piece) -> None:
        """No more audio of it will come; its text is cut to what can have been spoken."""
        piece.text = _words_within(piece.text, piece.made / self._longest(piece))
        piece.whole = True

    def end(self) -> None:
        """All pieces were added; `done` becomes true when they have been played."""
        self._ending = True

    def hold(self) -> None:
        """Falls silent within the next frame and keeps the rest."""
        self._held = True

    def resume(self) -> None:
        self._held = False

    @property
    def done(self) -> bool:
        left = any(piece.played < piece.made or not piece.whole for piece in self._pieces)
        return self._ending and not self._held and not left

    @property
    def buffered_s(self) -> float:
        return sum(piece.made - piece.played for piece in self._pieces) / self.rate

    @property
    def playing(self) -> str:
        """The pieces begun so far, whole: for captions."""
        return "".join([*self._heard, *(piece.text for piece in self._pieces if piece.played)])

    def heard(self) -> str:
        """The text played so far, in whole words, rounded down."""
        text = "".join(self._heard)
        for piece in self._pieces:
            words = self._words_played(piece)
            text += words
            if words != piece.text:
                break
        return text

    def next_frame(self) -> Pcm:
        """The next 20 ms at the transport's rate; silence when there is nothing to say."""
        fade = round(self.rate * FADE_S)
        if self._held and self._faded:
            return silence(self._frame)
        if self._held:
            frame = np.concatenate([self._take(fade), silence(self._frame - fade)])
            frame[:fade] = frame[:fade] * np.linspace(1.0, 0.0, fade)
        else:
            frame = self._take(self._frame)
            if self._faded:
                frame[:fade] = frame[:fade] * np.linspace(0.0, 1.0, fade)
        self._faded = self._held
        return frame

    def _take(self, samples: int) -> Pcm:
        """Up to `samples` of what comes next, then silence."""
        out = silence(samples)
        at = 0
        while self._pieces and at < samples:
            piece = self._pieces[0]
            if not piece.pcm:
                if not piece.whole:
                    break  # its audio is still being made
                self._heard.append(piece.text)
                self._pieces.popleft()
                continue
            part = piece.pcm[0][: samples - at]
            out[at : at + len(part)] = part
            at += len(part)
            piece.played += len(part)
            rest = piece.pcm[0][len(part) :]
            if len(rest):
                piece.pcm[0] = rest
            else:
                piece.pcm.pop(0)
        return out

    def _words_played(self, piece: Piece) -> str:
        if piece.whole and piece.played >= piece.made:
            return piece.text
        length = piece.made if piece.whole else max(piece.made, self._longest(piece))
        return _words_within(piece.text, piece.played / length)

    def _longest(self, piece: Piece) -> float:
        """Samples that the piece will have at most."""
        return max(1, len(piece.text)) * SLOWEST_SPEECH_S * self.rate


def _words_within(text: str, fraction: float) -> str:
    """The words in the first part of a text, rounded down."""
    end = int(len(text) * min(1.0, fraction))
    while 0 < end < len(text) and not text[end].isspace():
        end -= 1
    return text[:end]
