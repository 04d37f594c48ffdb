"""The bot's own voice coming back: it stops nobody and is no turn, and a caller over it is heard."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests import echo_scenes as scenes
from tests.conftest import RunningServer
from voicebot.audio.echo import HOP, STALE, EchoCanceller
from voicebot.audio.frames import SPEECH_RATE, Pcm
from voicebot.audio.recordings import read_recording
from voicebot.audio.resample import Resampler
from voicebot.bench.caller import RATE, calling

SPOKEN_S = 0.1
"""How much later than without an echo a caller over it may be noticed, in the middle."""


@pytest.fixture(scope="module")
def rooms(recordings: Path, model: Callable[[str], Path]) -> list[np.ndarray]:
    model("en_US-joe-medium")
    return [scenes.room(recordings, number) for number in range(4)]


@pytest.fixture(scope="module")
def voices(recordings: Path) -> list[Pcm]:
    return scenes.callers(recordings)


# The audio's way, without any model.


def noise(samples: int, rms: float, seed: int = 1) -> Pcm:
    return np.random.default_rng(seed).normal(0, rms, samples).astype(np.int16)


@pytest.mark.parametrize("rate", [8_000, 16_000, 48_000])
def test_while_the_bot_is_silent_nothing_changes_and_nothing_waits(rate: int) -> None:
    canceller, resampler, given, got = EchoCanceller(rate), Resampler(rate, SPEECH_RATE), [], []
    for seed in range(100):
        canceller.played(np.zeros(rate // 50, np.int16))
        given.append(resampler(noise(rate // 50, 3000, seed)))
        got.append(canceller.heard(given[-1]))
    heard, out = np.concatenate(given), np.concatenate(got)
    filled = len(out) - len(heard)  # once, at the start
    assert 0 <= filled < HOP
    assert not out[:filled].any()
    np.testing.assert_array_equal(out[filled:], heard)


def test_frames_of_any_length_lose_nothing() -> None:
    canceller, rng = EchoCanceller(16_000), np.random.default_rng(2)
    parts = [noise(int(rng.integers(0, 700)), 1000, seed) for seed in range(200)]
    out = np.concatenate([canceller.heard(part) for part in parts])
    heard = np.concatenate(parts)
    start = -len(parts[0]) % HOP
    assert len(heard) - HOP < len(out) - start <= len(heard)
    np.testing.assert_array_equal(out[start:], heard[: len(out) - start])


def test_without_an_echo_speech_over_the_bot_is_nearly_untouched() -> None:
    """A headset: after 2 s of the bot, a hissing caller 20 dB below it loses less than 4 dB."""
    canceller, bot = EchoCanceller(16_000), noise(5 * SPEECH_RATE, 3000)
    heard = noise(5 * SPEECH_RATE, 4, 2)
    heard[2 * SPEECH_RATE :] += noise(3 * SPEECH_RATE, 300, 3)
    out = play(canceller, bot, heard)
    assert 20 * np.log10(scenes.level(out[2 * SPEECH_RATE :]) / 300) == pytest.approx(0, abs=4)


def test_an_echo_is_gone_after_a_second() -> None:
    canceller, bot = EchoCanceller(16_000), noise(4 * SPEECH_RATE, 3000)
    heard = np.roll(bot, 2000) // 2
    heard[:2000] = 0
    out = play(canceller, bot, heard)
    assert np.abs(out[SPEECH_RATE:]).max() < 50  # of 4,500


def play(canceller: EchoCanceller, bot: Pcm, heard: Pcm) -> Pcm:
    parts = []
    for at in range(0, len(heard), 320):
        canceller.played(bot[at : at + 320])
        parts.append(canceller.heard(heard[at : at + 320]))
    return np.concatenate(parts)


def test_a_silent_or_stalled_microphone_keeps_no_memory() -> None:
    canceller = EchoCanceller(16_000)
    for seed in range(1000):
        canceller.played(noise(320, 3000, seed))
    assert len(canceller._reference) < 2 * STALE


def test_more_heard_than_sent_is_no_fault() -> None:
    canceller = EchoCanceller(16_000)
    for seed in range(300):
        if seed % 3:
            canceller.played(noise(320, 3000, seed))
        assert len(canceller.heard(noise(320, 1000, seed))) == 320


# With the bot's real voice, real rooms and the real VAD.


@pytest.mark.models
@pytest.mark.parametrize("db", [-6, -12, -20])
@pytest.mark.parametrize("delay_ms", [20, 60, 120, 250, 600])
def test_the_bots_own_voice_is_not_speech(rooms: list[np.ndarray], delay_ms: int, db: int) -> None:
    """From the call's first word on, its end and what comes after it included."""
    response = rooms[(delay_ms // 20 + db) % 4]
    before = [heard for heard, _ in scenes.monologue(scenes.Nothing, response, delay_ms / 1000, db)]
    assert min(heard.share for heard in before) > 0.5  # what would be heard without
    for heard, spoken_s in scenes.monologue(scenes.cancelling, response, delay_ms / 1000, db):
        assert heard.share < 0.1
        assert heard.noticed(scenes.LEAD_S + spoken_s) == []


@pytest.mark.models
@pytest.mark.parametrize(("delay_ms", "db"), [(60, -6), (120, -12), (250, -20)])
def test_a_caller_over_the_echo_is_noticed(
    rooms: list[np.ndarray], voices: list[Pcm], delay_ms: int, db: int
) -> None:
    """As loud as the echo: within 500 ms, and mostly as fast as without it."""
    with_echo, without = [], []
    for i, voice in enumerate(voices):
        for found, canceller, level in ((with_echo, scenes.cancelling, db), (without, scenes.Nothing, None)):
            found.append(
                scenes.interruption_s(canceller, voice, rooms[i % 4], delay_ms / 1000, level, seed=i)
            )
    late = [a - b for a, b in zip(with_echo, without, strict=True) if a is not None and b is not None]
    assert len(late) == len(voices)
    assert max(s for s in with_echo if s is not None) <= 0.512  # 16 windows
    assert np.median(late) <= SPOKEN_S


@pytest.mark.models
@pytest.mark.parametrize("gain", [1.0, 0.1])
def test_without_an_echo_the_vad_decides_the_same(
    rooms: list[np.ndarray], voices: list[Pcm], gain: float
) -> None:
    """Callers over the first words of the call and after its last, 20 dB quieter too."""
    line = scenes.bot_speech()[1]
    sent, end_s = scenes.said(line), scenes.LEAD_S + len(line) / SPEECH_RATE
    differ = speech = 0
    late = []
    for i, voice in enumerate(voices):
        for at_s in (2.0, end_s + 0.3):
            padded = np.concatenate([sent, np.zeros(5 * SPEECH_RATE, np.int16)])
            near = scenes.microphone(scenes.add_speech(padded, voice * gain, at_s), seed=i)
            before = scenes.listen(scenes.Nothing(), padded, near)
            after = scenes.listen(scenes.cancelling(), padded, near)
            differ += np.count_nonzero((before.speech >= 0.5) != (after.speech >= 0.5))
            speech += np.count_nonzero(before.speech >= 0.5)
            late.append(after.noticed(end_s)[0] - before.noticed(end_s)[0])
    assert differ <= (0.01 if gain == 1 else 0.03) * speech
    assert max(late) <= 0.1
    assert np.count_nonzero(late) <= 1


@pytest.mark.models
def test_a_short_answer_after_the_bot_is_heard_and_its_tail_is_not(
    rooms: list[np.ndarray], say: Callable[..., Path]
) -> None:
    """ "Yes" 300 ms after the last sample was sent, while the echo of the last words still comes in."""
    yes = read_recording(say("Yes.", lead_s=0.0)).at(SPEECH_RATE)
    canceller = scenes.cancelling()
    for number, line in enumerate(scenes.bot_speech()):
        sent = scenes.said(line)
        end_s = scenes.LEAD_S + len(line) / SPEECH_RATE
        echo = scenes.echo_of(sent, rooms[0], 0.25, -12)
        answer = scenes.add_speech(sent, yes, end_s + 0.3) if number == 2 else np.zeros(len(sent))
        times = scenes.listen(canceller, sent, scenes.microphone(echo, answer)).noticed(end_s)
        assert [end_s + 0.3 < at < end_s + 0.9 for at in times] == ([True] if number == 2 else [])


@pytest.mark.models
def test_a_jump_of_the_delay_is_followed(rooms: list[np.ndarray]) -> None:
    """A packet of 20 ms more in the peer's jitter buffer, and less again, while the bot speaks."""
    canceller = scenes.cancelling()
    for number, line in enumerate(scenes.bot_speech()):
        sent = scenes.said(line)
        near = scenes.echo_of(sent, rooms[0], 0.12, -12)
        if number == 2:
            near[40_000:80_000] = scenes.echo_of(sent, rooms[0], 0.14, -12)[40_000:80_000]
        heard = scenes.listen(canceller, sent, scenes.microphone(near))
        assert heard.noticed(scenes.LEAD_S + len(line) / SPEECH_RATE) == []


# A call.


class Loudspeaker:
    """Feeds back what the client hears."""

    def __init__(self, delay_s: float, db: float) -> None:
        self._gain = 10 ** (db / 20)
        self._line = np.zeros(int(delay_s * RATE), np.int16)

    def play(self, pcm: Pcm) -> None:
        self._line = np.concatenate([self._line, (pcm * self._gain).astype(np.int16)])

    def take(self, samples: int) -> Pcm:
        part, self._line = self._line[:samples], self._line[samples:]
        return np.concatenate([part, np.zeros(samples - len(part), np.int16)])


@pytest.mark.models
async def test_a_call_with_a_loudspeaker(server: RunningServer, say: Callable[..., Path]) -> None:
    """Delayed 120 ms at -12 dB: greeting and answer are said to their ends and are the only ones; then a
    real voice interrupts."""
    # Made beforehand: it stops this process, and with it the microphone, for a second.
    question = say("Please tell me everything about the pool.")  # no pause to be taken for its end
    more = say("Please tell me everything about the rooms.")
    interruption = say("No, stop. Can I bring my dog?", lead_s=0.0)
    async with calling(f"{server.url}/api/offer") as caller:
        loudspeaker = Loudspeaker(0.12, -12)
        caller.play, caller.microphone.background = loudspeaker.play, loudspeaker.take
        [greeting] = await caller.until(
            lambda: caller.of("transcript", role="assistant", turn=0, final=True), "the greeting"
        )
        assert "interrupted" not in greeting
        caller.microphone.say(question)
        [record] = await caller.until(lambda: caller.of("turn"), "the answer's end")
        assert record["interrupted"] is False, caller.events
        assert "pool" in record["user_text"].lower()
        await asyncio.sleep(2.5)  # the tail, and the longest wait for a turn's end
        assert [event["turn"] for event in caller.of("transcript", role="user", final=True)] == [1], (
            caller.events
        )
        assert caller.states()[-1] == "listening"

        caller.microphone.say(more)
        await caller.until(lambda: caller.of("transcript", role="assistant", turn=2), "the second answer")
        caller.microphone.say(interruption)
        await caller.until(lambda: len(caller.of("turn")) >= 3, "the interruption and its answer")
        second, third = caller.of("turn")[1:3]
        assert second["interrupted"] is True
        assert "dog" in third["user_text"].lower()
