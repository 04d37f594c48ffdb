"""The calls in progress: admission, one task per call, and their end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from voicebot.call import Call, Phrases
from voicebot.config import AgentConfig, Config
from voicebot.engines import Engines
from voicebot.transports.webrtc import WebRTCTransport

log = logging.getLogger(__name__)


class Busy(Exception):
    """Every line is taken."""


@dataclass
class _Line:
    transport: WebRTCTransport
    task: asyncio.Task[None] | None = None


class Switchboard:
    """Every accepted offer holds a line from before its answer until everything of it is released."""

    def __init__(self, config: Config, agent: AgentConfig, engines: Engines, phrases: Phrases) -> None:
        self.config, self.agent = config, agent
        self._engines, self._phrases = engines, phrases
        self._lines: dict[str, _Line] = {}
        self._tasks: asyncio.TaskGroup
        self._draining = False

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Switchboard]:
        """Calls can come in while this is open; at the end they get `server.drain_s` to finish."""
        async with asyncio.TaskGroup() as self._tasks:
            try:
                yield self
            finally:
                self._draining = True
                if running := {line.task for line in self._lines.values() if line.task}:
                    _, late = await asyncio.wait(running, timeout=self.config.server.drain_s)
                    for task in late:
                        task.cancel()

    @property
    def active(self) -> int:
        return len(self._lines)

    async def answer(self, sdp: str) -> tuple[str, str]:
        """(call id, SDP answer). Raises Busy or BadOffer; a refused offer leaves nothing behind."""
        if self._draining or self.active >= self.config.server.max_calls:
            raise Busy
        call_id = secrets.token_hex(8)
        transport = WebRTCTransport(self.config.server.ice_servers)
        self._lines[call_id] = line = _Line(transport)
        try:
            answer = await transport.answer(sdp)
        except BaseException:
            del self._lines[call_id]
            await transport.close()
            raise
        line.task = self._tasks.create_task(self._carry(call_id, transport), name=f"call {call_id}")
        return call_id, answer

    def hang_up(self, call_id: str) -> bool:
        """Ends a call; False if there is none of that id."""
        line = self._lines.get(call_id)
        if line:
            line.transport.hang_up()
        return line is not None

    async def _carry(self, call_id: str, transport: WebRTCTransport) -> None:
        reason = "not_connected"
        try:
            connected = False
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.config.server.connect_timeout_s):
                    connected = await transport.connected()
            if connected:
                log.info("call %s began", call_id)
                call = Call(call_id, self.config, self.agent, self._engines, self._phrases, transport)
                reason = await call.run()
        except Exception:
            log.exception("call %s failed", call_id)  # and only this one: the others share the TaskGroup
            reason = "internal_error"
        finally:
            await transport.close()
            del self._lines[call_id]
            log.info("call %s ended: %s", call_id, reason)
