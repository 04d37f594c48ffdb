"""One thing that the bot says, cut into 20 ms frames, with a memory of how much of it was heard.

Everything is added with the text it speaks and the times at which its words end, so that after an
interruption the history can be cut to the words that were sent. Sans-IO: the call asks for a frame every
20 ms.
"""

from __future__ import annotations

import re
import string
from bisect import bisect_right
from collections import deque
from dataclasses import dataclass, field
from difflib import SequenceMatcher

import numpy as np

from voicebot.audio.frames import FRAME_S, Pcm, silence
from voicebot.audio.resample import resampled
from voicebot.engines import Speech

FADE_S = 0.005
"""Ramp at a hold and when going on: shorter clicks, longer would be heard as a word cut later."""


@dataclass
class Piece:
    """A stretch of text and the audio that speaks it."""

    text: str
    """As it is written; shorter once it is known that its audio broke off."""
    written: str
    """As it is written, to its end."""
    spoken: str
    """What the voice reads for it: numbers in words, no markup."""
    ends: list[float] = field(default_factory=list)
    """Seconds from the piece's start at which each spoken word made so far has ended."""
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

    def fresh(self) -> Playout:
        """An empty one at the same rates."""
        return Playout(self._source_rate, self.rate)

    def add(self, text: str, spoken: str | None = None) -> Piece:
        """A new piece; its audio follows with `feed`, and `end_piece` closes it. `spoken` is what the
        voice was given, if that is not the text."""
        piece = Piece(text, text, text if spoken is None else spoken)
        self._pieces.append(piece)
        return piece

    def feed(self, piece: Piece, speech: Speech) -> None:
        """Audio of a piece. Each call's audio is resampled whole: it begins and ends in silence."""
        out = resampled(speech.pcm, self._source_rate, self.rate)
        piece.ends += [piece.made / self.rate + end for end in speech.ends]
        piece.pcm.append(out)
        piece.made += len(out)

    def end_piece(self, piece: Piece) -> None:
        piece.whole = True

    def cut_piece(self, piece: Piece) -> None:
        """No more audio of it will come; its text is cut to the words that were made."""
        piece.text = written_words(piece.written, piece.spoken, len(piece.ends))
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
        """The text played so far, in whole words, rounded down.

        Played means sent. The transport may still hold a frame or two (20-40 ms), less than a word: what
        is rounded down covers it, for the last word here is at latest the one that the caller is hearing,
        and what was sent cannot be taken back.
        """
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
        ended = bisect_right(piece.ends, piece.played / self.rate) if piece.played else 0
        return written_words(piece.written, piece.spoken, ended)


def written_words(text: str, spoken: str, count: int) -> str:
    """The part of a written text that the first `count` words of its spoken form speak, rounded down.

    Words that both have are the same. Between these, words written otherwise than they are spoken (7:30,
    "seven thirty") count in proportion: all of them only with the last word that speaks them.
    """
    written = [*re.finditer(r"\S+", text)]
    ours, theirs = [_plain(word[0]) for word in written], [_plain(word) for word in spoken.split()]
    if count >= len(theirs):
        return text
    done = 0
    for _, i, i_end, j, j_end in SequenceMatcher(None, ours, theirs, autojunk=False).get_opcodes():
        if count > j:
            done = i_end if count >= j_end else i + (i_end - i) * (count - j) // (j_end - j)
    return text[: written[done - 1].end()] if done else ""


def _plain(word: str) -> str:
    """As far as a word is heard."""
    return word.strip(string.punctuation + "“”‘’…—–").lower()
