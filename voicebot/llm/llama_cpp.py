"""llama.cpp in process, through xllamacpp: the embedded language model.

llama.cpp runs its own thread; a request blocks one worker thread of ours, whose callback hands each
token to the event loop and returns True to stop the request. Each of its slots keeps the prompt it
saw last, so a call finds its system prompt and history computed.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import threading
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import xllamacpp

from voicebot.config import LlamaCppConfig
from voicebot.engines import EngineDead, EngineError, LanguageModel, Message
from voicebot.llm.requantize import requantized
from voicebot.models import file_in
from voicebot.priority import yield_cores

log = logging.getLogger(__name__)

NICE = 10
"""Lower priority for the language model's threads: the caller waits for the first words to be spoken
while the rest is being thought of. On two cores the first piece's speech takes 180 ms instead of 270."""


@asynccontextmanager
async def open_llama(
    config: LlamaCppConfig, path: Path, warm: Sequence[Message], lines: int = 1, cache: Path | None = None
) -> AsyncIterator[LanguageModel]:
    """Loads the model; `path` is a GGUF file or a folder holding exactly one, `cache` the
    model cache, for `config.requantize`.

    Computes the prompt `warm` in as many slots as `lines` calls will use. Raises EngineDead.
    """
    executor = ThreadPoolExecutor(config.parallel, "llm")
    try:
        loop = asyncio.get_running_loop()
        try:
            server = await loop.run_in_executor(executor, _load, config, path, cache)
        except (RuntimeError, ValueError) as error:
            raise EngineDead(f"llama.cpp cannot load {path}: {error}") from error
        engine = LlamaCpp(server, executor, config)
        await asyncio.gather(*(engine.warm(warm, slot) for slot in range(min(lines, config.parallel))))
        yield engine
    finally:
        executor.shutdown(wait=True, cancel_futures=True)  # closed streams stop within a token


def _load(config: LlamaCppConfig, path: Path, cache: Path | None) -> Any:
    # llama.cpp's threads inherit the niceness of the one that loads it (on Linux it is a thread's own).
    yield_cores(NICE)
    path = file_in(path, ".gguf")
    if config.requantize and cache:
        path = requantized(path, config.requantize, cache)
    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.n_parallel = config.parallel
    params.n_ctx = config.context_tokens * config.parallel
    params.n_gpu_layers = config.gpu_layers
    for cpu in (params.cpuparams, params.cpuparams_batch):
        cpu.n_threads = config.threads
        cpu.poll = 0  # its threads wait by sleeping, not spinning: recognizer and voice need the cores
    params.cache_ram_mib = 0  # no second prompt cache beside the slots' own: by default it may grow to 8 GiB
    # The binding always opens llama.cpp's HTTP port on loopback; with a key that nobody knows it is shut.
    params.api_keys = [secrets.token_hex(16)]
    params.use_jinja = True
    params.verbosity = -1  # its progress lines are nobody's to read; errors are raised
    return xllamacpp.Server(params)


class LlamaCpp:
    def __init__(self, server: Any, executor: ThreadPoolExecutor, config: LlamaCppConfig) -> None:
        self._server, self._executor, self._config = server, executor, config
        self._slots = OrderedDict((f"free {slot}", slot) for slot in range(config.parallel))

    async def warm(self, messages: Sequence[Message], slot: int) -> None:
        """Has a slot read a prompt. No deadline: a slow machine may take its time before the first call."""
        failures: list[EngineError] = []

        def deliver(item: str | EngineError | None) -> None:
            if isinstance(item, EngineError):
                failures.append(item)

        loop, stop = asyncio.get_running_loop(), threading.Event()
        await loop.run_in_executor(self._executor, self._request, messages, deliver, stop, 1, slot)
        if failures:
            raise EngineDead(f"the first request failed: {failures[0]}")

    async def prepare(self, messages: Sequence[Message], *, call_id: str = "") -> None:
        """The chat template closes the last message, so a few tokens are read in vain; the rest is kept."""
        async with aclosing(self._stream(messages, 1, call_id)) as tokens:
            async for _ in tokens:
                pass

    def stream(self, messages: Sequence[Message], *, call_id: str = "") -> AsyncGenerator[str, None]:
        return self._stream(messages, self._config.max_tokens, call_id)

    def _slot(self, call_id: str) -> int:
        """The slot that has read this call's prompt so far; a new call gets the one unused for longest.

        Left to itself llama.cpp takes any idle slot while the call's own still stops a dropped answer,
        and reads the whole conversation again.
        """
        if call_id not in self._slots:
            spent, slot = self._slots.popitem(last=False)
            log.debug("call %s takes slot %d from %s", call_id, slot, spent)
            self._slots[call_id] = slot
        self._slots.move_to_end(call_id)
        return self._slots[call_id]

    async def _stream(
        self, messages: Sequence[Message], max_tokens: int, call_id: str
    ) -> AsyncGenerator[str, None]:
        loop = asyncio.get_running_loop()
        stopped = threading.Event()
        # Bounded by max_tokens, which the engine enforces.
        tokens: asyncio.Queue[str | EngineError | None] = asyncio.Queue()

        def deliver(item: str | EngineError | None) -> None:
            if not stopped.is_set():
                loop.call_soon_threadsafe(tokens.put_nowait, item)

        work = loop.run_in_executor(
            self._executor, self._request, messages, deliver, stopped, max_tokens, self._slot(call_id)
        )
        timeout_s = self._config.first_token_timeout_s
        try:
            while True:
                try:
                    async with asyncio.timeout(timeout_s):
                        item = await tokens.get()
                except TimeoutError:
                    raise EngineError(f"no token from the language model for {timeout_s:g} s") from None
                if item is None:
                    return
                if isinstance(item, EngineError):
                    raise item
                timeout_s = self._config.token_timeout_s
                yield item
        finally:
            stopped.set()
            work.cancel()  # a request still waiting for a worker never starts

    def _request(
        self,
        messages: Sequence[Message],
        deliver: Callable[[str | EngineError | None], None],
        stopped: threading.Event,
        max_tokens: int,
        slot: int,
    ) -> None:
        """Runs in a worker thread until the answer is complete or `stopped` is set."""
        failure: list[str] = []

        def on_chunk(chunk: Any) -> bool:
            if isinstance(chunk, dict) and chunk.get("error"):
                failure.append(str(chunk["error"].get("message", chunk["error"])))
            elif isinstance(chunk, dict):
                for choice in chunk.get("choices") or ():
                    text = (choice.get("delta") or {}).get("content")
                    if text:
                        deliver(text)
            return stopped.is_set()

        body = {
            "messages": [{"role": message.role, "content": message.content} for message in messages],
            "stream": True,
            "max_tokens": max_tokens,
            "temperature": self._config.temperature,
            "seed": self._config.seed,
            "cache_prompt": True,
            "id_slot": slot,
        }
        if stopped.is_set():
            return
        try:
            answer = self._server.handle_chat_completions(body, on_chunk)
        except Exception as error:  # the binding raises what llama.cpp throws, of several types
            deliver(EngineError(f"llama.cpp: {error}"))
            return
        if isinstance(answer, dict) and answer.get("error"):
            failure.append(str(answer["error"].get("message", answer["error"])))
        deliver(EngineError(f"llama.cpp: {failure[0]}") if failure else None)
