"""A call, from the wire to the wire.

    transport.frames -> Ear -> VAD -> TurnCore -> recognizer -> language model -> SentenceChunker
        -> Speakable -> synthesizer -> Playout -> transport.send

Two loops run for the length of a call: `_listen` feeds the caller's audio to the turn-taking core,
`_pace` sends 20 ms of the bot's audio every 20 ms. The core's events are carried out in `_act`. One
task at a time, `_answer`, makes an answer. All of them live in one TaskGroup: when the call is over,
for whatever reason, so are they.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from voicebot.audio.ear import Ear
from voicebot.audio.frames import FRAME_S, Pcm, audible
from voicebot.chunking import SentenceChunker
from voicebot.config import AgentConfig, Config
from voicebot.engines import EngineDead, EngineError, Engines
from voicebot.history import History
from voicebot.latency import TurnRecord
from voicebot.playout import Playout
from voicebot.speakable import Speakable
from voicebot.transports import Transport
from voicebot.turns import core
from voicebot.turns.vad import SileroVad

log = logging.getLogger(__name__)

RESYNC_S = 0.1
"""When sending is later than this, the lost time is skipped: a burst would be a delay at the peer."""
LAST_WORDS_S = 0.3
"""Between the last packet of a farewell and the end of the call: what the network may hold back."""
SETTLING_S = 0.2
"""Audio given to the recognizer after the last speech sample: final consonants are weak."""


class _Over(Exception):
    """Raised in any of the call's tasks to end the call."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass
class _Speech:
    """Something the bot says or is about to say."""

    turn: int = 0
    """0 for phrases that answer no turn."""
    record: TurnRecord | None = None
    user_text: str = ""
    interruptible: bool = True
    remembered: bool = True
    """Goes into the history as far as it is heard."""
    then: str | None = None
    """The reason for which the call ends after it."""
    audible: bool = False
    fed: bool = False
    """Some audio was made."""
    captions: str = ""
    task: asyncio.Task[None] | None = None


@dataclass
class Phrases:
    """The agent's fixed phrases as audio, made once: they are there even if the engines are not."""

    pcm: Mapping[str, Pcm]

    @classmethod
    async def make(cls, engines: Engines, agent: AgentConfig) -> Phrases:
        made: dict[str, Pcm] = {}
        texts = (agent.greeting, agent.idle_question, agent.goodbye, agent.apology, agent.apology_hangup)
        for text in filter(None, texts):
            spoken = Speakable(lexicon=agent.lexicon)(text)
            async with aclosing(engines.synthesizer.stream(spoken)) as parts:
                made[text] = np.concatenate([np.zeros(0, np.int16), *[part async for part in parts]])
        return cls(made)


class Call:
    def __init__(
        self,
        call_id: str,
        config: Config,
        agent: AgentConfig,
        engines: Engines,
        phrases: Phrases,
        transport: Transport,
        vad: Callable[[Pcm], float] | None = None,
    ) -> None:
        self.call_id = call_id
        self.records: list[TurnRecord] = []
        """The last turns, ended ones only."""
        self._config, self._agent, self._engines = config, agent, engines
        self._phrases, self._transport = phrases, transport
        self._loop = asyncio.get_running_loop()
        self._start = self._loop.time()
        self._core = core.TurnCore(config.turns, config.call, self._start)
        self._ear = Ear()
        self._vad = vad or SileroVad()
        self._playout = Playout(engines.synthesizer.rate, transport.rate)
        self._history = History(agent.system_prompt, config.call.history_max_chars)
        self._speaking: _Speech | None = None
        """What is in the playout."""
        self._answering: _Speech | None = None
        """What `_answer` is at work on; it moves into the playout when there are words to answer."""
        self._errors = 0
        self._over: tuple[float, str] | None = None
        self._state = ""
        self._tasks: asyncio.TaskGroup

    async def run(self) -> str:
        """Carries the call to its end and says why it ended: hangup, silence, engine_failed, too_long,
        internal_error."""
        reason = "shutdown"  # unless another one ends it
        try:
            async with asyncio.TaskGroup() as self._tasks:
                if self._agent.greeting:
                    self._say(self._agent.greeting, interruptible=self._agent.greeting_interruptible)
                self._tasks.create_task(self._listen(), name=f"{self.call_id} listen")
                self._tasks.create_task(self._pace(), name=f"{self.call_id} pace")
        except* _Over as over:
            reason = _first(over).reason
        except* Exception:
            log.exception("%s ended by a fault of this program", self.call_id)
            reason = "internal_error"
        finally:
            self._end_open_turns()
            self._emit({"type": "state", "state": "ended", "reason": reason})
        return reason

    # The two loops.

    async def _listen(self) -> None:
        async with aclosing(self._transport.frames()) as frames:
            async for frame in frames:
                for window, arrival in self._ear.windows(frame):
                    now = self._loop.time()
                    self._act(self._core.vad(now, self._vad(window), min(arrival, now)))
                since = self._core.since
                pre_roll_s = self._config.turns.pre_roll_ms / 1000
                self._ear.keep_from = None if since is None else since - pre_roll_s
        raise _Over("hangup")

    async def _pace(self) -> None:
        """Deadlines are absolute, so that no time is lost to the work in between."""
        due = self._loop.time()
        while True:
            now = self._loop.time()
            self._act(self._core.handle_timer(now))
            if self._over and now >= self._over[0]:
                raise _Over(self._over[1])
            if now - self._start > self._config.call.max_call_s:
                raise _Over("too_long")
            frame = self._playout.next_frame()
            await self._transport.send(frame)
            if self._speaking:
                self._sent(self._speaking, frame)
            due += FRAME_S
            if due < self._loop.time() - RESYNC_S:
                due = self._loop.time()
            await asyncio.sleep(max(0.0, due - self._loop.time()))

    def _sent(self, speech: _Speech, frame: Pcm) -> None:
        """A frame went out: what follows from its being heard."""
        if not speech.audible and audible(frame):
            now = self._loop.time()
            speech.audible = True
            if speech.record:
                speech.record.mark("first_packet", now)
                self._history.user(speech.user_text)
                self._caption("user", speech.user_text, speech.turn, final=True)
            self._act(self._core.audible(now, interruptible=speech.interruptible))
        playing = self._playout.playing
        if speech.audible and playing != speech.captions:
            speech.captions = playing
            self._caption("assistant", playing, speech.turn, final=False)
        if self._playout.done:
            self._end_speech(interrupted=False)

    # What the core decides.

    def _act(self, events: list[core.Event]) -> None:
        for event in events:
            match event:
                case core.BargeIn():
                    self._playout.hold()
                case core.Resume():
                    self._playout.resume()
                case core.Retract():
                    self._drop_answer()
                case core.Commit():
                    self._commit(event)
                case core.IdleQuestion():
                    self._say(self._agent.idle_question)
                case core.IdleHangup():
                    self._say(self._agent.goodbye, interruptible=False, then="silence")
        self._publish_state()

    def _commit(self, event: core.Commit) -> None:
        now = self._loop.time()
        record = TurnRecord(self.call_id, event.turn, self._start, self._config.latency)
        record.mark("speech_end", event.speech_end)
        record.mark("ingested", event.ingested)
        record.mark("commit", now)
        since = (self._core.since or event.speech_end) - self._config.turns.pre_roll_ms / 1000
        pcm = self._ear.utterance(since, event.speech_end + SETTLING_S)
        self._answering = speech = _Speech(event.turn, record)
        speech.task = self._tasks.create_task(
            self._answer(speech, pcm), name=f"{self.call_id} answer {event.turn}"
        )

    def _drop_answer(self) -> None:
        """The turn goes on: nothing of the answer in the making was heard, nothing of it stays."""
        speech, self._answering = self._answering, None
        if speech is None:
            return
        if speech.task:
            speech.task.cancel()
        if self._speaking is speech:
            self._speaking = None
            self._playout.start()

    # Answering.

    async def _answer(self, speech: _Speech, pcm: Pcm) -> None:
        assert speech.record
        try:
            with _worked(speech.record, "asr"):
                text = await self._engines.recognizer.transcribe(pcm)
            words = any(character.isalnum() for character in text)
            speech.record.mark("transcript", self._loop.time())
            self._act(self._core.recognized(self._loop.time(), speech.turn, words=words))
            if not words:
                self._answering = None
                return
            speech.user_text = speech.record.user_text = text
            if self._speaking:
                self._end_speech(interrupted=True)
            self._playout.start()
            self._speaking = speech
            self._caption("user", text, speech.turn, final=False)
            await self._compose(speech)
            self._errors = 0
        except EngineError as error:
            self._failed(speech, error)
        self._playout.end()

    async def _compose(self, speech: _Speech) -> None:
        """Language model to playout. Tokens that come while speech is made wait in the engine's stream."""
        assert speech.record
        rules = self._config.chunking
        chunker = SentenceChunker(
            first_min_chars=rules.first_min_chars,
            first_max_chars=rules.first_max_chars,
            min_chars=rules.min_chars,
            max_chars=rules.max_chars,
        )
        speakable = Speakable(self._config.asr.language, lexicon=self._agent.lexicon)
        stream = self._engines.llm.stream(self._history.prompt(speech.user_text))
        async with aclosing(with_pauses(stream, rules.idle_ms / 1000)) as deltas:
            started = time.perf_counter()
            async for delta in deltas:
                if delta is None:
                    pieces = chunker.idle()
                else:
                    if "first_token" not in speech.record.marks:
                        speech.record.work["llm"] = time.perf_counter() - started
                    speech.record.mark("first_token", self._loop.time())
                    pieces = chunker.feed(delta)
                for piece in pieces:
                    await self._speak(speech, piece, speakable(piece))
        for piece in chunker.flush():
            await self._speak(speech, piece, speakable(piece))
        if not speech.fed:
            raise EngineError("the language model gave nothing that can be spoken")

    async def _speak(self, speech: _Speech, text: str, spoken: str) -> None:
        """One piece through the synthesizer into the playout, not too far ahead of what is heard."""
        assert speech.record
        while self._playout.buffered_s > self._config.call.lookahead_s:  # noqa: ASYNC110  it drains by the tick
            await asyncio.sleep(FRAME_S)
        piece = self._playout.add(text)
        if spoken:
            speech.record.mark("first_chunk", self._loop.time())
            with _worked(speech.record, "tts", once=speech.fed):
                async with aclosing(self._engines.synthesizer.stream(spoken)) as parts:
                    async for pcm in parts:
                        speech.record.mark("first_audio", self._loop.time())
                        speech.fed = True
                        self._playout.feed(piece, pcm)
        self._playout.end_piece(piece)

    def _failed(self, speech: _Speech, error: EngineError) -> None:
        """An apology, kept out of the history; none when the caller has heard part of an answer."""
        log.warning("%s turn %d: %s", self.call_id, speech.turn, error)
        assert speech.record
        speech.record.error = str(error)
        self._errors += 1
        last = isinstance(error, EngineDead) or self._errors >= self._config.call.max_engine_errors
        if speech.audible and not last:
            return
        if self._speaking and self._speaking is not speech:
            self._end_speech(interrupted=True)
        if speech.audible:
            self._end_speech(interrupted=True)
        else:
            self._ended(speech)
        if last:
            self._say(self._agent.apology_hangup, interruptible=False, then="engine_failed", remembered=False)
        else:
            self._say(self._agent.apology, remembered=False)

    def _say(
        self, text: str, *, interruptible: bool = True, remembered: bool = True, then: str | None = None
    ) -> None:
        """Speaks one of the agent's phrases, instead of whatever was being said."""
        self._playout.start()
        self._speaking = _Speech(interruptible=interruptible, remembered=remembered, then=then)
        piece = self._playout.add(text)
        self._playout.feed(piece, self._phrases.pcm[text])
        self._playout.end_piece(piece)
        self._playout.end()

    # Ends.

    def _end_speech(self, *, interrupted: bool) -> None:
        """What is in the playout was sent to its end, or the caller's words have ended it."""
        speech, self._speaking = self._speaking, None
        assert speech
        heard = self._playout.heard().strip()
        if speech.remembered:
            self._history.assistant(heard)
        self._caption("assistant", heard, speech.turn, final=True, interrupted=interrupted)
        if speech.record:
            speech.record.bot_text, speech.record.interrupted = heard, interrupted
            self._ended(speech)
        if speech.then:
            self._over = (self._loop.time() + LAST_WORDS_S, speech.then)
        if interrupted:
            if speech.task and speech.task is not asyncio.current_task():
                speech.task.cancel()
        else:
            self._act(self._core.finished(self._loop.time()))

    def _ended(self, speech: _Speech) -> None:
        """The turn's record is complete."""
        if self._answering is speech:
            self._answering = None
        assert speech.record
        self.records.append(speech.record)
        record = speech.record.as_json()
        log.info("turn %s", json.dumps(record, ensure_ascii=False))
        self._emit({"type": "turn", **record})

    def _end_open_turns(self) -> None:
        """The call is over in the middle of something: what was heard of it is recorded."""
        waiting = self._answering
        if self._speaking and self._speaking.audible:
            self._end_speech(interrupted=not self._playout.done)
        if waiting and waiting.record and not waiting.audible and waiting.user_text:
            waiting.record.error = "the call ended before the answer"
            self._ended(waiting)

    # What the caller's program sees.

    def _caption(self, role: str, text: str, turn: int, *, final: bool, interrupted: bool = False) -> None:
        event = {"type": "transcript", "role": role, "text": text.strip(), "final": final, "turn": turn}
        self._emit({**event, "interrupted": True} if interrupted else event)

    def _publish_state(self) -> None:
        names = {core.Bot.AUDIBLE: "speaking", core.Bot.PENDING: "thinking"}
        state = names.get(self._core.bot, "listening")
        if state != self._state:
            self._state = state
            self._emit({"type": "state", "state": state})

    def _emit(self, event: dict[str, Any]) -> None:
        self._transport.emit(event)


async def with_pauses(stream: AsyncGenerator[str, None], pause_s: float) -> AsyncGenerator[str | None, None]:
    """The stream's items, and None once whenever nothing has come for `pause_s`. Closes the stream."""
    upcoming: asyncio.Task[str] | None = None
    try:
        while True:
            upcoming = asyncio.ensure_future(anext(stream))
            done, _ = await asyncio.wait({upcoming}, timeout=pause_s)
            if not done:
                yield None
            try:
                item = await upcoming
            except StopAsyncIteration:
                return
            yield item
    finally:
        if upcoming and not upcoming.done():
            upcoming.cancel()
            await asyncio.wait({upcoming})
        await stream.aclose()


@contextmanager
def _worked(record: TurnRecord, stage: str, *, once: bool = False) -> Iterator[None]:
    """Records the real time that a stage's engine worked; with `once`, leaves an earlier figure alone."""
    started = time.perf_counter()
    try:
        yield
    finally:
        if not once:
            record.work[stage] = time.perf_counter() - started


def _first(group: BaseExceptionGroup[_Over]) -> _Over:
    first = group.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first
