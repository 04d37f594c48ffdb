"""The engine protocols, their errors, and how the configured ones are opened.

An engine module is imported only when the configuration names it. An engine that is broken for good
raises `EngineDead`: the call apologizes and ends. One failed request raises `EngineError`: the
call apologizes and goes on.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Literal, Protocol

from threadpoolctl import threadpool_limits

from voicebot.audio.frames import Pcm
from voicebot.config import AgentConfig, Config
from voicebot.load import Load


class EngineError(Exception):
    """One request failed; the engine may serve the next."""


class EngineDead(EngineError):
    """The engine serves no more requests."""


@dataclass(frozen=True)
class Message:
    role: Literal["system", "user", "assistant"]
    content: str


class Recognizer(Protocol):
    @property
    def spare(self) -> bool:
        """Whether a pass would start at once and leave room for another: else none is begun that can wait."""
        ...

    async def transcribe(self, pcm: Pcm) -> str:
        """Text of 16 kHz speech of any length, "" when nothing was said. Raises EngineError."""
        ...


class LanguageModel(Protocol):
    def stream(self, messages: Sequence[Message], *, call_id: str = "") -> AsyncGenerator[str, None]:
        """Text deltas as the model makes them. Prompts of one call begin alike: an engine may keep what
        it has read of them. Closing the generator (`aclose`, or cancellation of the
        task that iterates) stops the request in the engine. Raises EngineError."""
        ...

    async def prepare(self, messages: Sequence[Message], *, call_id: str = "") -> None:
        """Reads a prompt without answering, so that one that begins like it is answered sooner.
        Cancelling stops it. Raises EngineError."""
        ...


@dataclass(frozen=True)
class Speech:
    """A part of what a text sounds like, and which words it brings to their end."""

    pcm: Pcm
    ends: tuple[float, ...]
    """When each word that ends in this part has been spoken: seconds from its first sample, never falling.
    Words are what `str.split` gives; the parts of a text together have one for each, in order."""


class Synthesizer(Protocol):
    @property
    def rate(self) -> int:
        """Samples per second of what `stream` gives."""
        ...

    def stream(self, text: str) -> AsyncGenerator[Speech, None]:
        """Speech as it is made, leading silence trimmed. Closing stops the work. Raises EngineError."""
        ...


class TurnModel(Protocol):
    async def completeness(self, pcm: Pcm) -> float:
        """Probability, 0..1, that the caller's turn ends with this 16 kHz audio. Raises EngineError."""
        ...


@dataclass(frozen=True)
class Engines:
    recognizer: Recognizer
    llm: LanguageModel
    synthesizer: Synthesizer
    turn_model: TurnModel | None = None
    load: Load = field(default_factory=lambda: Load(1))


@asynccontextmanager
async def open_engines(config: Config, agent: AgentConfig, lines: int = 1) -> AsyncIterator[Engines]:
    """Loads the configured engines for `lines` calls at once, and closes them at the end.

    The language model has read the agent's system prompt and greeting when this yields, as often as
    it has contexts for calls, so that no caller waits for that. Raises EngineDead, EngineError or
    ModelError.
    """
    from voicebot.asr.faster_whisper import open_whisper
    from voicebot.history import History  # which needs Message from here
    from voicebot.llm.llama_cpp import open_llama
    from voicebot.models import load_catalogue, resolve
    from voicebot.speakable import Speakable
    from voicebot.tts.kept import KeptSpeech
    from voicebot.tts.piper import open_piper
    from voicebot.turns.smart_turn import open_smart_turn

    catalogue = load_catalogue(config.models.catalogues)
    cache = config.models.cache
    asr = resolve(config.asr.model, cache, catalogue)
    llm = resolve(config.llm.model, cache, catalogue)
    voice = resolve(config.voice(agent), cache, catalogue)
    turn = resolve(config.turns.model, cache, catalogue) if config.turns.model else None
    async with AsyncExitStack() as stack:
        # NumPy's BLAS threads spin for a while after each product (the recognizer's features, Smart
        # Turn's); on two cores the encoder then takes 125 ms instead of 65. Products here are small.
        stack.enter_context(threadpool_limits(1, user_api="blas"))
        history = History(agent.system_prompt, config.call.history_max_chars)
        history.assistant(agent.greeting)
        warm = history.prompt("Hello.")
        recognizer = await stack.enter_async_context(open_whisper(config.asr, asr))
        model = await stack.enter_async_context(open_llama(config.llm, llm, warm, lines, cache))
        speech = KeptSpeech(await stack.enter_async_context(open_piper(config.tts, voice)))
        await speech.learn(Speakable(lexicon=agent.lexicon)(text) for text in agent.openings)
        yield Engines(
            recognizer,
            model,
            speech,
            await stack.enter_async_context(open_smart_turn(turn)) if turn else None,
            Load(config.turns.answers_at_once),
        )
