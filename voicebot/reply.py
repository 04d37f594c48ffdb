"""One thing that the bot says or may say, and how an answer is made: language model to playout."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field

from voicebot.audio.frames import FRAME_S
from voicebot.chunking import SentenceChunker
from voicebot.config import AgentConfig, Config
from voicebot.engines import EngineError, Engines, Message, Synthesizer
from voicebot.latency import TurnRecord
from voicebot.playout import Playout
from voicebot.speakable import Speakable


@dataclass
class Reply:
    """Something the bot says or may say: an answer to a turn, or one of the agent's phrases."""

    playout: Playout
    turn: int = 0
    """0 for phrases that answer no turn."""
    record: TurnRecord | None = None
    committed: bool = True
    """False while it is speculation: it may not be heard or shown."""
    speech_end: float = 0.0
    """Arrival of the turn's last speech sample, in a turn's answer."""
    text: str | None = None
    """The caller's words, once all of them are recognized; "" if that failed."""
    answers: str | None = None
    """The words that an answer is being made to: a guess as long as `text` is not known."""
    failure: EngineError | None = None
    sounds: float | None = None
    """How complete the turn sounds, 0..1."""
    interruptible: bool = True
    remembered: bool = True
    """Goes into the history as far as it is heard."""
    then: str | None = None
    """The reason for which the call ends after it."""
    audible: bool = False
    fed: bool = False
    """Some audio was made."""
    captions: str = ""
    tasks: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    """What makes it: "answer", and "judge", which finds out whether the turn is over."""

    def cancel(self) -> None:
        """Stops what makes it, down into the engines; the task that calls this goes on."""
        for task in self.tasks.values():
            if task is not asyncio.current_task():
                task.cancel()

    def stop_answer(self) -> None:
        """Drops what was made of the answer so far; nothing of it was heard."""
        if answer := self.tasks.pop("answer", None):
            answer.cancel()
        self.answers = self.failure = None
        self.playout = self.playout.fresh()
        self.fed = False
        if self.record:
            self.record.restart()


async def compose(
    reply: Reply, prompt: Sequence[Message], engines: Engines, config: Config, agent: AgentConfig
) -> None:
    """Streams an answer into the reply's playout, piece by piece. Raises EngineError.

    Tokens that come while a piece is spoken wait in the engine's stream.
    """
    assert reply.record
    record, rules, loop = reply.record, config.chunking, asyncio.get_running_loop()
    chunker = SentenceChunker(
        first_min_chars=rules.first_min_chars,
        first_max_chars=rules.first_max_chars,
        min_chars=rules.min_chars,
        max_chars=rules.max_chars,
        openings=agent.openings,
    )
    speakable = Speakable(config.asr.language, lexicon=agent.lexicon)

    async def speak(pieces: list[str]) -> None:
        for piece in pieces:
            if spoken := speakable(piece):  # markup, reasoning: not heard, so not in the history either
                while reply.playout.buffered_s > config.call.lookahead_s:  # noqa: ASYNC110  it drains by the tick
                    await asyncio.sleep(FRAME_S)
                await _speak(reply, record, piece, spoken, engines.synthesizer)

    async with aclosing(
        with_pauses(engines.llm.stream(prompt, call_id=record.call_id), rules.idle_ms / 1000)
    ) as deltas:
        started = time.perf_counter()
        async for delta in deltas:
            if delta is None:
                await speak(chunker.idle())
            else:
                record.work.setdefault("llm", time.perf_counter() - started)
                record.mark("first_token", loop.time())
                await speak(chunker.feed(delta))
    await speak(chunker.flush())
    if not reply.fed:
        raise EngineError("the language model gave nothing that can be spoken")
    reply.playout.end()


async def _speak(reply: Reply, record: TurnRecord, text: str, spoken: str, voice: Synthesizer) -> None:
    """One piece through the synthesizer into the playout."""
    loop, playout = asyncio.get_running_loop(), reply.playout
    piece = playout.add(text, spoken)
    record.mark("first_chunk", loop.time())
    try:
        with worked(record, "tts"):
            async with aclosing(voice.stream(spoken)) as parts:
                async for part in parts:
                    record.mark("first_audio", loop.time())
                    reply.fed = True
                    playout.feed(piece, part)
    except EngineError:
        playout.cut_piece(piece)
        raise
    playout.end_piece(piece)


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
def worked(record: TurnRecord, stage: str) -> Iterator[None]:
    """Records the real time that a stage's engine worked the first time, if it came to an end."""
    started = time.perf_counter()
    yield
    record.work.setdefault(stage, time.perf_counter() - started)
