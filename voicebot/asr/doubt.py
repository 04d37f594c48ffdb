"""Was anything said? Whisper gives words to noise ("Thank you." to a dish, "Yeah." to a chair).

Nothing here knows a list of phrases: a caller does say "thank you". Words are dropped on what the
recognizer's one pass says of them (the probability that there is no speech, the mean log-probability of the
words, a decoder that never stopped) and on what the voice activity detector hears in the same audio. It
is asked only when the pass is in doubt.

Measured with tiny.en at 10 s padding, pieces with words dropped (before: Whisper's own rule, no speech above
0.6 and score below -1.0):

                                                             before   now   of
    noise of which the detector takes a part for speech          59    66    68
    other noise, hum, tones, clicks, breath, music, hiss        308   356   358
    spoken digits, 8 kHz, clean or with 10-20 dB of noise         7     2   240
    the same cut tight, without the 0.3 s before them             5     4    60
    the same 30 dB quieter, which the detector hardly hears      20    18    60
    yes, no, two, okay, thank you, ... (a voice, also 20 dB)      0     0    90
    orders, utterances, turns of calls                            0     0   125

The two digits that are dropped are "four" in 10 dB of kitchen, which was read as "Yeah.". On other pieces, on
which the limits were not chosen: noise that the detector takes for speech, 52 and 53 of 64 dropped; other
noise 108 and 118 of 120; digits in other noises, and quieter, 4 and 1 of 240; orders in noise 0 and 0 of 50.
The two other noises that pass are breaths at -20 dBFS ("AHHHH!"), which the detector lets start no turn. Most
of what passes else is a voice (a baby's "eh", slowed to an adult's pitch): it cannot be told from speech.

The detector costs 0.15 ms for each 32 ms of audio until it is sure: 5 ms at most for nine in ten utterances,
nothing for two in three. Noise costs more, but nobody waits for its answer.
"""

from __future__ import annotations

import re

import numpy as np

from voicebot.audio.frames import Pcm
from voicebot.turns.vad import WINDOW, SileroVad

UNSURE = 0.3
"""Probability of no speech from which the detector is asked. 13 % of real pieces lie above it, and 95 % of
noise; 0.25 loses one digit more, 0.4 lets seven noises more through."""
LOOPED, LOOP_SCORE = 0.4, -0.6
"""From here a decoder that never stopped read noise (a crying baby: "AHHHHHHH", 0.46 and -0.9). Where real
speech made it loop ("zero", read as "0 0 0 0 0") the value was 0.30 at most on one kind of CPU; on another it
was 0.46 for a "one", but repeating a word that was said costs little: -0.27."""
DOUBTFUL = 0.6
"""Whisper's own limit (openai/whisper, transcribe.py, no_speech_threshold): above it three sure windows are
needed. Whisper drops on a low score instead; real digits score as low (-1.0 to -3.9) as noise does."""
NOISE, NOISE_SCORE = 0.85, -1.5
"""Above this, with words this improbable, harmonic sounds are dropped that the detector takes for a voice."""
HEARD, SURE = 0.5, 0.8
"""Speech probability of a 32 ms window: that anything was heard at all, and that it was a voice. With 0.75
for the latter eight noises were taken for words, with 0.8 two, and no real word less."""
SURE_WINDOWS = 3
"""As many as start a turn (turns.min_speech_ms, 96 ms): the shortest digit, 0.22 s, has more."""

_BRACKETED = re.compile(r"\[[^\]]*(?:\]|$)|\([^)\d]*(?:\)|$)|\*[^*]*\*|[♪♫]")
"""[MUSIC], (coughs), *sighs*; not a number's (555)."""


def words_of(text: str) -> str:
    """What was said: without what is bracketed, "" when no letter or digit is left."""
    said = " ".join(_BRACKETED.sub(" ", text).split())
    return said if any(character.isalnum() for character in said) else ""


def nothing_said(pcm: Pcm, no_speech: float, score: float, *, unfinished: bool) -> bool:
    """True if a recognizer's words for 16 kHz audio came from no speech.

    `no_speech` is the pass's probability (0..1) of that, `score` the mean log-probability of its words,
    `unfinished` that they did not end by themselves.
    """
    if no_speech <= UNSURE:
        return False
    if unfinished and no_speech > LOOPED and score < LOOP_SCORE:
        return True
    if no_speech > NOISE and score < NOISE_SCORE:
        return True
    heard, sure = voiced(pcm)
    return not heard or (no_speech > DOUBTFUL and sure < SURE_WINDOWS)


def voiced(pcm: Pcm) -> tuple[bool, int]:
    """(anything heard, windows that are surely a voice: counted up to SURE_WINDOWS, to save the rest)."""
    vad, heard, sure = SileroVad(), False, 0
    whole = np.pad(pcm, (0, -len(pcm) % WINDOW))
    for window in whole.reshape(-1, WINDOW):
        probability = vad(window)
        heard = heard or probability >= HEARD
        sure += probability >= SURE
        if sure == SURE_WINDOWS:
            break
    return heard, sure
