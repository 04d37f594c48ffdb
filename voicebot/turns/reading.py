"""A turn's words while it grows: which audio to recognize next, and what is known so far. Sans-IO.

While the caller speaks, passes of the recognizer follow one another over the whole turn so far. When the
caller pauses, what the last of them read is a good guess at the whole: of 81 recorded utterances, read up to
N ms before the end of speech, the words were those of the whole in 73 % at 200 ms, 84 % at 100 ms, 94 % at 0.
One more pass makes sure; it is the only one that anyone waits for.
"""

from __future__ import annotations

import math
import re

STEP_S = 0.25
"""Speech, at least, between the beginnings of two passes while the caller speaks."""
SHARE = 0.5
"""Of the time, at most, that a call's passes take while the caller speaks: on a busy machine they are longer,
and so become fewer."""
GUESS_S = 0.35
"""A pass that ended longer than this before the end of speech is no guess at the whole."""
_EXACT = 1e-6


class Reading:
    def __init__(self, since: float) -> None:
        """Of a turn whose first speech sample arrived at `since`."""
        self._since = since
        self.text = ""
        """Of the last pass."""
        self.until = -math.inf
        """Arrival of the last sample that the last pass was given."""
        self.stable = ""
        """The first words of the turn that two passes in a row agreed on (local agreement: Liu et al. 2020,
        arXiv:2005.11185): it is unlikely that they change."""
        self.took_s = 0.0
        """How long the last pass took."""

    def due(self, newest: float, speech_end: float, *, paused: bool, spare: bool) -> bool:
        """Whether a pass over the audio up to `newest` should begin now.

        `speech_end` is the arrival of the last speech sample so far; `paused` says that none has followed,
        `spare` that a pass keeps nobody waiting.
        """
        if paused:
            return not self.covers(speech_end)
        return spare and newest - max(self.until, self._since) >= max(STEP_S, self.took_s / SHARE)

    def done(self, until: float, text: str, took_s: float) -> None:
        """A pass over the audio up to `until` gave these words."""
        self.stable = common_words(self.text, text)
        self.text, self.until, self.took_s = text, until, took_s

    def covers(self, speech_end: float) -> bool:
        """Whether the last pass heard all the speech."""
        return self.until >= speech_end - _EXACT

    def guess(self, speech_end: float) -> str | None:
        """What the whole may be, or None."""
        return self.text if self.until >= speech_end - GUESS_S else None


def same_words(one: str, other: str) -> bool:
    """True if two texts differ in no more than case and marks."""
    return _plain(one) == _plain(other)


def common_words(one: str, other: str) -> str:
    """The words at the beginning of `other` that are in `one` too, as `other` writes them."""
    words = other.split()
    for number, (was, now) in enumerate(zip(one.split(), words, strict=False)):
        if not same_words(was, now):
            return " ".join(words[:number])
    return " ".join(words[: len(one.split())])


def _plain(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())
