"""What the words say about the end of a turn, beside its sound. English; others are judged by sound alone."""

from __future__ import annotations

import re
from collections.abc import Collection

HANGING = frozenset(
    "a an the and or but nor so because although though while if unless until that which who whose where "
    "when my your his her its our their this these some any no every each of to in on at by for from with "
    "into about between than as like is are was were am be been being has have had do does did will would "
    "can could should shall may might must very really just um uh er erm hmm mm mr mrs ms dr "
    "i we they he she".split()
)
"""A turn rarely ends with these. "That", "have" or "do" can end one; then the wait is longer, no more."""
ENDS_SHORT = frozenset(
    "i am|i do|i have|i will|i can|i did|i was|yes i am|no|like that|about that|do that".split("|")
)
"""Ends of finished answers that look like hanging ones."""
INTRODUCES = re.compile(
    r"\b(my (\w+ )?(name|number|address|e-?mail|code|id) is|i'?d like|i want|it'?s|that'?s)$"
)
DIGITS = r"(?:\d+|zero|oh|one|two|three|four|five|six|seven|eight|nine|double|triple)"
DICTATED = re.compile(rf"(?:^|\s)({DIGITS}(?:[\s,-]+{DIGITS})+)$")
"""Groups of digits, as a number is dictated; a lone number ("in 2018", "two") may well be the answer."""
FULL_NUMBER = range(7, 12)
"""Digits of a telephone number: with so many, a dictated number may be complete."""
SECOND_JUDGEMENT_S = 0.25
"""After the last speech sample the sound is judged again: what Smart Turn was trained on has about that
much silence at its end."""
PREAMBLE = frozenset(
    "okay ok sure all right alright good great fine well wow oh so now hi hello hey and yeah um uh".split()
)
"""A turn of only these words ("Okay." "All right.") is as often the beginning of one."""
UNFINISHED = 0.3
"""Completeness, at most, of a turn whose words are unfinished: sound alone is not believed."""
QUESTION = 0.65
"""Completeness, at least, of what reads as a finished question."""
BEGUN = 0.5
"""Completeness, at most, of a mere preamble."""


def completeness(sounds: float, text: str | None) -> float:
    """How complete a turn is, 0..1, by its sound (Smart Turn's probability) and, once known, its words."""
    if text and is_unfinished(text):
        return min(sounds, UNFINISHED)
    if text and text.endswith("?"):
        return max(sounds, QUESTION)
    if text and is_preamble(text):
        return min(sounds, BEGUN)
    return sounds


def is_preamble(text: str) -> bool:
    """True of words with which a turn often begins, and little is lost if it does not go on."""
    said = re.findall(r"[\w']+", text.lower())
    return bool(said) and all(word in PREAMBLE for word in said)


def is_backchannel(text: str, words: Collection[str]) -> bool:
    """True when all that was said is listening sounds ("Uh-huh." "Yeah, right."), as in `words`: lower case,
    without marks or hyphens."""
    said = re.findall(r"[^\W_]+", re.sub(r"['\u2019-]", "", text.lower()))
    return bool(said) and all(word in words for word in said)


def is_unfinished(text: str) -> bool:
    """True when the words so far ask for more: a hanging conjunction or article, "my name is", an
    ellipsis or comma, letters being spelled, a run of digits still short of a phone number."""
    if text.rstrip().endswith("?"):
        return False  # "What time is check-in?": the recognizer heard a question's melody
    if text.rstrip().endswith(("...", "\u2026", ",", "-", "\u2014")):
        return True
    plain = re.sub(r"[^\w\s'-]", "", text.lower()).strip()
    if not plain or any(plain == end or plain.endswith(f" {end}") for end in ENDS_SHORT):
        return False
    if plain.split()[-1] in HANGING or INTRODUCES.search(plain):
        return True
    if dictated := DICTATED.search(plain):
        return len(re.findall(r"\d|[a-z]+", dictated.group(1))) not in FULL_NUMBER
    return False
