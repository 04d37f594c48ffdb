"""The bot's own voice, taken out of what is heard: a loudspeaker without echo cancellation, a phone line.

What was sent is known, so its echo can be learned and subtracted, and what is left of it be told from a
caller. Three parts:

1. An adaptive filter of 0.8 s, which holds delay and room at once: a Kalman filter per frequency and
   partition (Enzner and Vary, "Frequency-domain adaptive Kalman filter for acoustic echo control in
   hands-free telephones", Signal Processing 86, 2006; partitioned as in Kuech, Mabande and Enzner,
   "State-space architecture of the partitioned-block-based acoustic echo controller", ICASSP 2014).
   It knows how uncertain it is, so that a caller who speaks over the bot does not lead it astray.
2. A gain for what is left. The power of the residual echo is bounded twice: by the filter's uncertainty,
   which counts while nothing is known yet, and by the share of the estimated echo that was left lately,
   which counts loudspeaker distortion, codecs and long rooms. What exceeds the bound is the caller.
3. When the delay jumps (a lost packet, the peer's jitter buffer) what was heard resembles the estimated
   echo at another lag. The reference is moved by that lag; the filter stays.

`python -m tests.echo_scenes`, four rooms, delays of 20 to 250 ms, the bot's voice and ten real callers:

    echo     replies that interrupted themselves   windows that are speech   callers at 0 dB over it
    -6 dB    all (7.9 a minute) -> none            71 % -> 0 %               284 ms, 476 at most
    -12 dB   all -> none                           71 % -> 0 %               284 ms, 476 at most
    -20 dB   all -> none                           72 % -> 0 %               284-316 ms, 476 at most

(without an echo 284 ms). At -30 dB callers as quiet as that take up to 990 ms. With no echo, eight callers
over the first reply of a call: 0.6 % of the VAD's windows are judged otherwise, 2.3 % of callers 20 dB
quieter; all eight were noticed at the same moment. The constants were chosen on these recordings.

While the bot has been silent for the filter's length, what is heard is handed through untouched, and so
it is while nothing of it is echo.

Why not a library: with wheels for x86-64 and ARM there are pyaec 1.0 (speexdsp; its package states no
licence, so it was not tried) and two more. pywebrtc-audio 0.2 (Apache-2.0, 0.4 MB) and livekit 1.2 (12 MB,
not measured) are both WebRTC's AEC3, whose suppressor is made for people who wait for each other, and offer
no setting for it. pywebrtc-audio left 0-2.6 interruptions a minute, found callers at 0 dB over a known echo
after 284-1820 ms (600 in the middle, one never), and callers with a headset, no echo at all, over the first
reply after 850-3950 ms, 3 of 10 never.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from voicebot.audio.frames import SPEECH_RATE, Pcm, audible
from voicebot.audio.resample import Resampler

HOP = 160
"""Samples of a block: 10 ms, which frames of all transports are multiples of."""
PARTITIONS = 80
"""Blocks of the filter: 0.8 s for network, devices and room."""
RESERVE = 320
"""Samples by which the reference lags, for jitter: nothing comes back sooner than a frame (20 ms)."""
STALE = 2 * SPEECH_RATE
"""Reference that may wait to be paired; with more of it nothing was heard for long."""
FULL_SCALE = np.float32(32768.0)

ECHO_GAIN = 1.0
"""The echo's power at most, of the bot's: what is assumed as long as nothing was learned."""
KEPT = 0.9998**2
"""Of the filter's power, from block to block; the rest is what may have changed (half of it in 17 s)."""
NEW_ECHO = 0.1 * ECHO_GAIN / PARTITIONS
"""The same for an echo that was not there before."""
SMOOTH = 0.8
"""Power per block is smoothed over 50 ms."""
FLOOR = HOP * (60 / 32768) ** 2
"""Power of a bin at least (noise of -55 dBFS): a filter must not be learned from hiss on both sides."""
TOO_UNSURE = 2.0
"""Uncertainty above so many times the power that is left is corrected: less is left than was feared."""
BLAME = 5.0
"""So many times a partition's share of the uncertainty is taken from it at once, half at most."""
UNKNOWN_DB, MOST_LEFT_DB = 20.0, -3.0
"""What is left of the echo, by its estimate: at first, and the most that it may rise to. At -3 dB a
caller as loud as the echo still passes."""
KNOWN_DB = -2.0
"""When less was left at some time, there is an echo."""
RISE_DB, FALL = 0.1, 0.02
"""Per block: it rises by 10 dB/s, too slow for a barge-in to be taken for echo, and falls in 0.5 s."""
MARGIN = 2.0
"""Residual echo that is removed, by its estimate: 3 dB over its mean."""
TAIL = 0.9
"""Decay of the echo's power in a room, per block: 60 dB in 1.3 s, a large room."""
GAIN_SMOOTH = 0.6
"""Of the two powers that make the gain: 20 ms."""
CLEAR = 0.003
"""Echo below this share of what is heard (-25 dB) leaves it untouched."""

MEMORY = 12 * HOP
"""Samples, 120 ms, in which another lag is looked for."""
MAX_JUMP, MIN_JUMP = 960, 8
"""Samples: a jump of the delay is a packet or three. Smaller ones the filter follows by itself."""
EXPLAINS = 0.3
"""Share of what is heard that the other lag must explain, and twice what the present one does."""
UNEXPECTED = 2.0
"""Residual, by its estimate, from which it is worth looking."""

_Floats = npt.NDArray[np.float32]
_Spectra = npt.NDArray[np.complex64]


class EchoCanceller:
    """One call's. `played` takes every frame that is sent, `heard` gives what was heard without its echo.

    Both run on the event loop: 0.5-0.9 ms per 20 ms while the bot speaks and 0.8 s after (3-4 % of a
    core), else 0.06 ms.
    """

    def __init__(self, rate: int) -> None:
        """`rate`: samples per second of what is played."""
        self._resampler = Resampler(rate, SPEECH_RATE)
        self._reference: _Floats = np.zeros((PARTITIONS + 1) * HOP + RESERVE, np.float32)
        self._next = len(self._reference) - RESERVE  # its sample that pairs with the next one heard
        self._waiting: Pcm | None = None  # heard, less than a block
        self._least = STALE  # least reference that waited lately
        self._calm = PARTITIONS  # blocks since the bot was last audible

        bins = HOP + 1
        self._played: _Spectra = np.zeros((PARTITIONS, bins), np.complex64)  # newest first
        self._filter: _Spectra = np.zeros((PARTITIONS, bins), np.complex64)
        self._doubt: _Floats = np.full((PARTITIONS, bins), ECHO_GAIN / PARTITIONS, np.float32)
        self._power: _Floats = np.zeros(bins, np.float32)  # of what is left, smoothed
        self._feared: _Floats = np.zeros(bins, np.float32)  # of it, by the filter's uncertainty
        self._blocks = 0

        self._left_db = UNKNOWN_DB
        self._tail = self._tail_peak = self._tail_mean = self._left_mean = 0.0
        self._total = self._echo = 0.0
        self._gain = 1.0

        self._heard: _Floats = np.zeros(MEMORY, np.float32)
        self._estimate: _Floats = np.zeros(MEMORY, np.float32)
        self._jump = 0

    def played(self, pcm: Pcm) -> None:
        """A frame was sent (silence too)."""
        new = self._resampler(pcm).astype(np.float32) / FULL_SCALE
        if len(self._reference) + len(new) - self._next > STALE:
            self._next = len(self._reference) + len(new) - RESERVE
        keep = max(0, self._next - (PARTITIONS + 1) * HOP - MAX_JUMP)
        self._reference = np.concatenate([self._reference[keep:], new])
        self._next -= keep

    def heard(self, pcm: Pcm) -> Pcm:
        """int16 at 16 kHz, any length; what is no whole block waits for the next call.

        The first call is filled up to whole blocks, so that frames of 10 or 20 ms never wait.
        """
        if self._waiting is None:
            self._waiting = np.zeros(-len(pcm) % HOP, np.int16)
            self._next = len(self._reference) - RESERVE  # what was sent before could not be heard
        pcm = np.concatenate([self._waiting, pcm])
        whole = len(pcm) - len(pcm) % HOP
        self._waiting = pcm[whole:]
        blocks = [self._block(pcm[at : at + HOP]) for at in range(0, whole, HOP)]
        return np.concatenate(blocks) if blocks else pcm[:0]

    def _block(self, pcm: Pcm) -> Pcm:
        missing = self._next + HOP - len(self._reference)
        if missing > 0:  # nothing was sent
            self._reference = np.concatenate([self._reference, np.zeros(missing, np.float32)])
        reference = self._reference[self._next - HOP : self._next + HOP]
        self._next += HOP
        self._calm = 0 if reference.any() else self._calm + 1
        if self._calm > PARTITIONS:
            self._catch_up()
            self._gain = 1.0
            return pcm
        self._least = STALE
        self._played[1:] = self._played[:-1]
        self._played[0] = np.fft.rfft(reference)
        heard = pcm.astype(np.float32) / FULL_SCALE
        estimate = np.fft.irfft((self._played * self._filter).sum(axis=0))[HOP:].astype(np.float32)
        left: _Floats = heard - estimate
        echo_power = float(_power(_spectrum(estimate)).sum())
        feared = self._learn(_spectrum(left))
        gain = self._gain_for(float(_power(_spectrum(left)).sum()), echo_power, feared)
        self._follow(heard, estimate)
        before, self._gain = self._gain, gain
        if echo_power + self._echo < CLEAR * self._total or not audible(pcm):
            return pcm  # hiss too: a VAD that hears nothing for long judges the next word otherwise
        if self._left_db >= KNOWN_DB:
            left = heard  # what seems to be an echo may be chance
        out = left * np.linspace(before, gain, HOP, dtype=np.float32) * FULL_SCALE
        return np.clip(np.round(out), -32768, 32767).astype(np.int16)

    def _catch_up(self) -> None:
        """Packets that were lost on the way here leave reference over: it goes while it is silent."""
        waits = len(self._reference) - self._next
        self._least = min(self._least, waits)
        if self._calm % PARTITIONS == 0:
            if RESERVE < self._least - RESERVE < STALE:
                self._next += self._least - RESERVE
            self._least = STALE

    def _learn(self, left: _Spectra) -> float:
        """One step of the Kalman filter; gives the power of the residual echo by its uncertainty."""
        played, doubt = self._played, self._doubt
        played_power = _power(played)
        shares = played_power * doubt
        unsure = shares.sum(axis=0)
        power = _power(left)
        self._power += (1 - SMOOTH) * (power - self._power)
        self._feared += (1 - SMOOTH) * (unsure / 2 - self._feared)  # half of a frame is heard
        step = doubt / (unsure + 2 * np.maximum(self._power, FLOOR))
        self._filter += step * played.conj() * left
        doubt -= 0.5 * step * shares
        # More doubt than there is power left is wrong: in the partitions that make it up.
        excess = 1 - np.minimum(1.0, TOO_UNSURE * self._power / (self._feared + 1e-12))
        doubt *= 1 - 0.5 * excess * np.minimum(1.0, BLAME * shares / (unsure + 1e-12))
        # A partition's response is a block long; one is cut to it at a time, to spare time.
        at = self._blocks % PARTITIONS
        self._blocks += 1
        response = np.fft.irfft(self._filter[at])
        response[HOP:] = 0
        self._filter[at] = np.fft.rfft(response)
        doubt *= KEPT
        doubt += (1 - KEPT) * (_power(self._filter) + NEW_ECHO)
        return float(unsure.sum()) / 2

    def _gain_for(self, left: float, echo: float, feared: float) -> float:
        """The amplitude gain, 0..1, from the powers of what is left, the estimate, and the doubt."""
        self._tail = max(echo, TAIL * self._tail)
        self._tail_peak = max(self._tail, 0.999 * self._tail_peak)
        self._tail_mean += (1 - SMOOTH) * (self._tail - self._tail_mean)
        self._left_mean += (1 - SMOOTH) * (left - self._left_mean)
        if self._tail > 1e-3 * self._tail_peak and self._tail_mean > 0:
            change = 10 * math.log10(self._left_mean / self._tail_mean + 1e-9) - self._left_db
            if change < 0:
                self._left_db += FALL * change
            elif self._left_db < MOST_LEFT_DB:
                self._left_db += min(RISE_DB, FALL * change, MOST_LEFT_DB - self._left_db)
        share = 10 ** (self._left_db / 10)
        most = MARGIN * min(share, 10 ** (MOST_LEFT_DB / 10)) * self._tail + feared
        residual = min(most, MARGIN * share * self._tail)
        self._echo += (1 - GAIN_SMOOTH) * (residual - self._echo)
        self._total += (1 - GAIN_SMOOTH) * (left - self._total)
        return math.sqrt(max(0.0, 1 - self._echo / (self._total + 1e-12)))

    def _follow(self, heard: _Floats, estimate: _Floats) -> None:
        """Moves the reference when the echo comes at another time than it did."""
        self._heard = np.concatenate([self._heard[HOP:], heard])
        self._estimate = np.concatenate([self._estimate[HOP:], estimate])
        expected = 10 ** (self._left_db / 10) * self._tail_mean
        if self._left_mean < UNEXPECTED * expected or self._blocks % 2:
            return
        spectrum = np.fft.rfft(self._heard, 2 * MEMORY) * np.fft.rfft(self._estimate, 2 * MEMORY).conj()
        lags = np.fft.irfft(spectrum)
        lags = np.concatenate([lags[-MAX_JUMP:], lags[: MAX_JUMP + 1]])
        energy = float((self._heard**2).sum()) * float((self._estimate**2).sum())
        explained = np.maximum(lags, 0) ** 2 / (energy + 1e-12)
        jump = int(explained.argmax()) - MAX_JUMP
        best, present = float(explained[jump + MAX_JUMP]), float(explained[MAX_JUMP])
        certain = abs(jump) >= MIN_JUMP and best > EXPLAINS and best > 2 * present
        if certain and abs(jump - self._jump) <= MIN_JUMP:
            self._move(-jump)
            certain = False
        self._jump = jump if certain else 0

    def _move(self, samples: int) -> None:
        """Pairs what is heard with reference that is so much newer."""
        missing = self._next + samples - len(self._reference)
        if missing > 0:
            self._reference = np.concatenate([self._reference, np.zeros(missing, np.float32)])
        self._next = max(self._next + samples, (PARTITIONS + 1) * HOP)
        blocks = self._reference[self._next - (PARTITIONS + 1) * HOP : self._next].reshape(-1, HOP)
        self._played[:] = np.fft.rfft(np.concatenate([blocks[:-1], blocks[1:]], axis=1))[::-1]
        self._estimate[:] = 0


def _spectrum(block: _Floats) -> _Spectra:
    """(HOP + 1,) bins of a block behind a silent one."""
    return np.fft.rfft(np.concatenate([np.zeros(HOP, np.float32), block])).astype(np.complex64)


def _power(spectrum: _Spectra) -> _Floats:
    return np.square(spectrum.real) + np.square(spectrum.imag)
