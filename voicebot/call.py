"""A call, from the wire to the wire.

    transport.frames -> Ear -> VAD -> TurnCore -> recognizer -> language model -> SentenceChunker
        -> Speakable -> synthesizer -> Playout -> transport.send

Two loops run for the length of a call: `_listen` feeds the caller's audio to the turn-taking core,
`_pace` sends 20 ms of the bot's audio every 20 ms. The core's events are carried out in `_act`. `_read`
recognizes the caller's turn again and again while it grows. At the first hint of a pause `_answer` begins
to make an answer to the words so far; nobody hears it before the core has committed to the turn and the
whole was read as just these words, and it is dropped if the caller goes on. All of this lives in one
TaskGroup: when the call is over, for whatever reason, so is everything that it started.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Coroutine, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from voicebot.audio.ear import Ear
from voicebot.audio.echo import EchoCanceller
from voicebot.audio.frames import FRAME_S, Pcm, audible, silence
from voicebot.config import AgentConfig, Config
from voicebot.engines import EngineDead, EngineError, Engines, Message, Speech, TurnModel
from voicebot.history import History
from voicebot.latency import TurnRecord
from voicebot.playout import Playout
from voicebot.reply import Reply, compose
from voicebot.speakable import Speakable
from voicebot.transports import Transport
from voicebot.turns import core
from voicebot.turns.reading import Reading, same_words
from voicebot.turns.vad import SileroVad
from voicebot.turns.words import SECOND_JUDGEMENT_S, completeness, is_backchannel

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
class Phrases:
    """The agent's fixed phrases as audio, made once: they are there even if the engines are not."""

    speech: Mapping[str, tuple[str, list[Speech]]]
    """By the phrase as it is written: as it is spoken, and its audio."""

    @classmethod
    async def make(cls, engines: Engines, agent: AgentConfig) -> Phrases:
        made: dict[str, tuple[str, list[Speech]]] = {}
        texts = (agent.greeting, agent.idle_question, agent.goodbye, agent.apology, agent.apology_hangup)
        for text in filter(None, texts):
            spoken = Speakable(lexicon=agent.lexicon)(text)
            async with aclosing(engines.synthesizer.stream(spoken)) as parts:
                made[text] = spoken, [part async for part in parts]
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
        self._echo = EchoCanceller(transport.rate) if config.turns.echo_cancellation else None
        self._ear = Ear(self._echo.heard) if self._echo else Ear()
        self._vad = vad or SileroVad()
        self._silence = silence(round(transport.rate * FRAME_S))
        self._history = History(agent.system_prompt, config.call.history_max_chars)
        self._reading = Reading(self._start)
        self._news = asyncio.Event()
        """Something happened that may be a reason to recognize."""
        self._playing: Reply | None = None
        """What the caller hears, or will as soon as there is audio."""
        self._next: Reply | None = None
        """What is made beside it: speculation, or an answer whose words are not recognized yet."""
        self._prepared: asyncio.Task[None] | None = None
        self._started = 0
        """Answers begun for the turn that the caller is in."""
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
                self._tasks.create_task(self._read(), name=f"{self.call_id} read")
                self._tasks.create_task(self._pace(), name=f"{self.call_id} pace")
        except* _Over as over:
            reason = _first(over).reason
        except* Exception:
            log.exception("%s ended by a fault of this program", self.call_id)
            reason = "internal_error"
        finally:
            self._engines.load.update(self.call_id, waiting=False, shed=None)
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
            playing = self._playing
            frame = playing.playout.next_frame() if playing else self._silence
            await self._transport.send(frame)
            if self._echo:
                self._echo.played(frame)
            if playing and playing is self._playing:
                self._sent(playing, frame)
            due += FRAME_S
            if due < self._loop.time() - RESYNC_S:
                due = self._loop.time()
            await asyncio.sleep(max(0.0, due - self._loop.time()))

    def _sent(self, reply: Reply, frame: Pcm) -> None:
        """A frame of it went out: what follows from its being heard."""
        if not reply.audible and audible(frame):
            now = self._loop.time()
            reply.audible = True
            if reply.record:
                reply.record.mark("first_packet", now)
                self._history.user(reply.text or "")
                self._caption("user", reply.text or "", reply.turn, final=True)
            self._act(self._core.audible(now, interruptible=reply.interruptible))
        begun = reply.playout.playing
        if reply.audible and begun != reply.captions:
            reply.captions = begun
            self._caption("assistant", begun, reply.turn, final=False)
        if reply.playout.done:
            self._end_reply(reply, interrupted=False)

    # What the core decides.

    def _act(self, events: list[core.Event]) -> None:
        for event in events:
            match event:
                case core.SpeechStarted():
                    self._hear(event.since)
                case core.Dip():
                    self._hold()
                case core.BargeIn():
                    self._hold()
                    self._hear(event.since)
                case core.Resume():
                    if self._playing:
                        self._playing.playout.resume()
                case core.Pause():
                    self._begin(event)
                case core.Resumed() | core.Retract():
                    self._drop()
                case core.Commit():
                    self._commit(event)
                case core.IdleQuestion():
                    self._say(self._agent.idle_question)
                case core.IdleHangup():
                    self._say(self._agent.goodbye, interruptible=False, then="silence")
        self._news.set()
        self._publish_state()
        self._engines.load.update(self.call_id, waiting=self._waited_for(), shed=self._shed_if_any())

    def _hold(self) -> None:
        if self._playing:
            self._playing.playout.hold()

    def _hear(self, since: float) -> None:
        """A turn begins."""
        self._started = 0
        self._reading = Reading(since)
        self._prepare()

    def _begin(self, pause: core.Pause | core.Commit) -> Reply:
        """The caller has paused: finds out whether the turn sounds over, and starts to answer it."""
        record = TurnRecord(self.call_id, pause.turn, self._start, self._config.latency)
        record.mark("speech_end", pause.speech_end)
        record.mark("ingested", pause.ingested)
        playout = self._new_playout()
        if self._config.turns.speculation:
            record.work_start = self._loop.time()
        self._next = reply = Reply(playout, pause.turn, record, committed=False, speech_end=pause.speech_end)
        if self._engines.turn_model:
            self._spawn(reply, self._judge(reply, self._engines.turn_model), "judge")
        self._words(reply)
        return reply

    def _commit(self, event: core.Commit) -> None:
        reply = self._next or self._begin(event)
        assert reply.record
        reply.committed = True
        reply.record.mark("commit", self._loop.time())
        self._advance(reply)

    def _spawn(self, reply: Reply, work: Coroutine[Any, Any, None], name: str) -> None:
        reply.tasks[name] = self._tasks.create_task(work, name=f"{self.call_id} turn {reply.turn} {name}")

    def _heard_since(self) -> float:
        """Where the audio of the present turn begins."""
        return (self._core.since or self._core.speech_end) - self._config.turns.pre_roll_ms / 1000

    def _drop(self) -> None:
        """The caller goes on: nothing of the answer in the making was heard, nothing of it stays."""
        if self._next:
            self._next.cancel()
            self._next = None
        elif self._playing and not self._playing.audible:
            self._playing.cancel()
            self._playing = None

    def _advance(self, reply: Reply) -> None:
        """Lets an answer out once its turn is over and its words are known."""
        if reply is not self._next or not reply.committed or reply.text is None:
            return
        self._next = None
        if reply.failure:
            self._failed(reply, reply.failure)
            return
        words = self._says_something(reply.text)
        self._act(self._core.recognized(self._loop.time(), reply.turn, words=words))
        if not words:
            return
        if self._playing:
            self._end_reply(self._playing, interrupted=True)
        self._playing = reply
        self._caption("user", reply.text, reply.turn, final=False)
        self._answer(reply, reply.text)

    def _says_something(self, said: str) -> bool:
        """Words that want an answer; over the bot, "uh-huh" does not."""
        held = self._core.bot is core.Bot.HELD
        return _has_words(said) and not (held and is_backchannel(said, self._config.turns.backchannels))

    # Recognizing.

    async def _read(self) -> None:
        """Recognizes the turn while it grows, and all of it when it pauses."""
        while True:
            if not self._reading_due():
                self._news.clear()
                await self._news.wait()
                continue
            reading, until = self._reading, self._ear.newest
            if self._next:
                until = min(until, self._next.speech_end + SETTLING_S)
            pcm = self._ear.utterance(self._heard_since(), until)
            started, worked = self._loop.time(), time.perf_counter()
            failure = None
            try:
                text = await self._engines.recognizer.transcribe(pcm)
            except EngineError as error:
                text, failure = "", error
            if reading is not self._reading:
                continue  # another turn has begun
            reading.worked_s = time.perf_counter() - worked
            reading.done(until, text, self._loop.time() - started, failure)
            if self._next:
                self._words(self._next)

    def _reading_due(self) -> bool:
        turn = self._core
        if not turn.in_turn:
            return False
        spoken = self._next.speech_end if self._next else turn.speech_end
        speculation = self._config.turns.speculation
        if not (speculation or (self._next and self._next.committed)):
            return False
        spare = speculation and self._engines.recognizer.spare
        return self._reading.due(
            self._ear.newest,
            spoken,
            paused=self._next is not None or self._ear.newest > spoken,  # a silent window was heard
            spare=spare and not self._engines.load.others_wait(self.call_id),
        )

    def _words_so_far(self, reply: Reply) -> str | None:
        """All words of its turn, or a guess as long as they are not known."""
        return reply.text if reply.text is not None else self._reading.guess(reply.speech_end)

    def _words(self, reply: Reply) -> None:
        """What is known of the words of a turn that has paused, or is over."""
        reading = self._reading
        if reply.text is not None or not reply.record:
            return
        if reading.covers(reply.speech_end):
            reply.record.mark("transcript", self._loop.time())
            reply.record.work["asr"] = reading.worked_s
            reply.text = reply.record.user_text = reading.text
            if reading.failure:
                reply.stop_answer()
                reply.failure = reading.failure
        words = self._words_so_far(reply)
        if words is not None and not reading.failure:
            if self._says_something(words):  # asked before a held bot goes on
                self._answer(reply, words)
            elif reply.answers:
                reply.stop_answer()
            self._report_completeness(reply)
        self._advance(reply)

    # Answering.

    async def _judge(self, reply: Reply, model: TurnModel) -> None:
        """Tells the core how complete the turn sounds, and again when more silence says more."""
        try:
            while not reply.committed:
                pcm = self._ear.utterance(self._heard_since(), self._loop.time())
                reply.sounds = await model.completeness(pcm)
                self._report_completeness(reply)
                wait_s = reply.speech_end + SECOND_JUDGEMENT_S - self._loop.time()
                if wait_s <= 0:
                    return
                await asyncio.sleep(wait_s)
        except EngineError as error:
            log.warning("%s turn %d: %s", self.call_id, reply.turn, error)

    def _report_completeness(self, reply: Reply) -> None:
        """Sound and words together; an unfinished phrase is not a finished turn, however it sounds."""
        if reply.sounds is None or reply is not self._next or not reply.record:
            return
        text = self._words_so_far(reply)
        listening = bool(text) and not self._says_something(text or "")
        complete = 1.0 if listening else completeness(reply.sounds, text)
        self._act(self._core.completeness(self._loop.time(), reply.turn, reply.speech_end, complete))

    def _answer(self, reply: Reply, words: str) -> None:
        """Begins to make an answer to these words, unless that is being done, or others go first."""
        assert reply.record
        if reply.answers is not None and same_words(reply.answers, words):
            return
        load, record = self._engines.load, reply.record
        if not reply.committed:
            if not self._config.turns.speculation:
                return
            if not load.may_speculate(self.call_id):
                record.shed = True
                return
        reply.stop_answer()
        self._started += 1
        record.started = self._started
        record.work_start = record.work_start or self._loop.time()
        record.kept, record.guessed = not reply.committed, reply.text is None
        reply.answers = words
        self._spawn(reply, self._compose(reply, words), "answer")

    def _waited_for(self) -> bool:
        """The caller's turn is over, and no sound of an answer was heard."""
        if self._next and self._next.committed:
            return True
        playing = self._playing
        return playing is not None and playing.record is not None and not playing.audible

    def _shed_if_any(self) -> Callable[[], None] | None:
        reply = self._next
        return self._shed if reply and reply.answers is not None and not reply.committed else None

    def _shed(self) -> None:
        """Others wait: the answer is made when this caller's turn is over."""
        if self._next and self._next.record and not self._next.committed:
            self._next.stop_answer()
            self._next.record.shed = True

    def _prepare(self) -> None:
        """While the caller speaks the language model reads the conversation so far."""
        if not self._prepared or self._prepared.done():
            work = self._read_ahead()
            self._prepared = self._tasks.create_task(work, name=f"{self.call_id} prepare")

    async def _read_ahead(self) -> None:
        try:
            await self._engines.llm.prepare(self._prompt(""), call_id=self.call_id)
        except EngineError as error:  # the answer will meet it again, and say so
            log.warning("%s: %s", self.call_id, error)

    def _prompt(self, user_text: str, reply: Reply | None = None) -> list[Message]:
        held = self._playing if self._playing and self._playing is not reply else None
        cut = held.playout.heard() if held and held.remembered else ""
        return self._history.prompt(user_text, cut)

    async def _compose(self, reply: Reply, words: str) -> None:
        try:
            await compose(reply, self._prompt(words, reply), self._engines, self._config, self._agent)
            self._errors = 0
        except EngineError as error:
            reply.failure = error
            if reply is self._playing:
                self._failed(reply, error)
            self._advance(reply)

    def _failed(self, reply: Reply, error: EngineError) -> None:
        """An apology, kept out of the history; none when the caller has heard part of an answer."""
        log.warning("%s turn %d: %s", self.call_id, reply.turn, error)
        assert reply.record
        reply.record.error = str(error)
        self._errors += 1
        last = isinstance(error, EngineDead) or self._errors >= self._config.call.max_engine_errors
        if reply.audible and not last:
            reply.playout.end()
            return
        if self._playing and self._playing.audible:
            self._end_reply(self._playing, interrupted=True)
        if not reply.audible:
            self._ended(reply)
        if last:
            self._say(self._agent.apology_hangup, interruptible=False, then="engine_failed", remembered=False)
        else:
            self._say(self._agent.apology, remembered=False)

    def _say(
        self, text: str, *, interruptible: bool = True, remembered: bool = True, then: str | None = None
    ) -> None:
        """Speaks one of the agent's phrases, instead of whatever was being said. An agent may lack one."""
        if not text:
            self._playing = None
            if then:
                self._over = (self._loop.time(), then)
            self._act(self._core.finished(self._loop.time()))
            return
        playout = self._new_playout()
        spoken, parts = self._phrases.speech[text]
        piece = playout.add(text, spoken)
        for part in parts:
            playout.feed(piece, part)
        playout.end_piece(piece)
        playout.end()
        self._playing = Reply(playout, interruptible=interruptible, remembered=remembered, then=then)

    def _new_playout(self) -> Playout:
        return Playout(self._engines.synthesizer.rate, self._transport.rate)

    # Ends.

    def _end_reply(self, reply: Reply, *, interrupted: bool) -> None:
        """What is playing was sent to its end, or the caller's words have ended it."""
        self._playing = None
        heard = reply.playout.heard().strip()
        if reply.remembered:
            self._history.assistant(heard)
        self._caption("assistant", heard, reply.turn, final=True, interrupted=interrupted)
        if reply.record:
            reply.record.bot_text, reply.record.interrupted = heard, interrupted
            self._ended(reply)
        if reply.then:
            self._over = (self._loop.time() + LAST_WORDS_S, reply.then)
        if interrupted:
            reply.cancel()
        else:
            self._act(self._core.finished(self._loop.time()))

    def _ended(self, reply: Reply) -> None:
        """The turn's record is complete."""
        assert reply.record
        self.records.append(reply.record)
        record = reply.record.as_json()
        log.info("turn %s", json.dumps(record, ensure_ascii=False))
        self._emit({"type": "turn", **record})

    def _end_open_turns(self) -> None:
        """The call is over in the middle of something: what was heard of it is recorded."""
        for reply in (self._playing, self._next):
            if reply and reply.audible:
                self._end_reply(reply, interrupted=not reply.playout.done)
            elif reply and reply.record and reply.committed and reply.text:
                reply.record.error = "the call ended before the answer"
                self._ended(reply)

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


def _has_words(text: str | None) -> bool:
    return any(character.isalnum() for character in text or "")


def _first(group: BaseExceptionGroup[_Over]) -> _Over:
    first = group.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first
