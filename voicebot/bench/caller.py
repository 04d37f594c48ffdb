"""A caller over real WebRTC: speaks recordings, hears the bot, reads the events."""

from __future__ import annotations

import asyncio
import fractions
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import av
import numpy as np
from aiortc import MediaStreamTrack, RTCConfiguration, RTCPeerConnection, RTCSessionDescription
from aiortc.mediastreams import MediaStreamError

from voicebot.audio.frames import Pcm, audible, channels_of
from voicebot.audio.recordings import read_recording

RATE, SIZE = 48_000, 960
SPOKEN = 300
"""Of 32768 (-41 dBFS): the last sample above it is the last of speech."""


class Microphone(MediaStreamTrack):
    """Silence, and what `say` was given, at 20 ms a frame."""

    kind = "audio"

    def __init__(self) -> None:
        super().__init__()
        self._left: Pcm = np.zeros(0, np.int16)
        self._sent = 0
        self._start: float | None = None
        self._speech_left = 0
        self.spoken = asyncio.Event()
        self.speech_end: float | None = None
        """When the last speech sample of what was said last was sent."""
        self.background: Callable[[int], Pcm] | None = None
        """So many samples at RATE to be heard beside what is said: an echo, noise."""

    def say(self, path: Path) -> None:
        """Speaks a recording from now on. Raises RecordingError."""
        self._left = read_recording(path).at(RATE)
        loud = np.flatnonzero(np.abs(self._left.astype(np.int32)) > SPOKEN)
        self._speech_left = int(loud[-1]) + 1 if loud.size else 0
        self.speech_end = None
        self.spoken.clear()

    async def recv(self) -> av.AudioFrame:
        loop = asyncio.get_running_loop()
        self._start = self._start or loop.time()
        await asyncio.sleep(max(0.0, self._start + self._sent / RATE - loop.time()))
        part, self._left = self._left[:SIZE], self._left[SIZE:]
        if 0 < self._speech_left <= SIZE:
            self.speech_end = loop.time()
        self._speech_left -= SIZE
        if len(part) and not len(self._left):
            self.spoken.set()
        pcm = np.concatenate([part, np.zeros(SIZE - len(part), np.int16)])
        if self.background:
            mixed = pcm.astype(np.int32) + self.background(SIZE)
            pcm = np.clip(mixed, -32768, 32767).astype(np.int16)
        frame = av.AudioFrame.from_ndarray(pcm[np.newaxis], "s16", "mono")
        frame.sample_rate, frame.pts, frame.time_base = RATE, self._sent, fractions.Fraction(1, RATE)
        self._sent += SIZE
        return frame


class Caller:
    def __init__(self, *, microphone: bool = True) -> None:
        self.pc = RTCPeerConnection(RTCConfiguration(iceServers=[]))
        self.microphone = Microphone()
        self.events: list[dict[str, Any]] = []
        self.heard: list[tuple[float, bool]] = []
        """(time, audible) of each frame received."""
        self.play: Callable[[Pcm], None] = lambda _: None
        """Is given what is heard."""
        self.changed = asyncio.Event()
        self._pump: asyncio.Task[None] | None = None
        if microphone:
            self.pc.addTrack(self.microphone)
        else:
            self.pc.addTransceiver("audio", direction="recvonly")
        self.channel = self.pc.createDataChannel("events")
        self.channel.on("message", self._on_message)
        self.pc.on("track", self._on_track)
        self.pc.on("connectionstatechange", self.changed.set)

    def _on_message(self, message: str) -> None:
        self.events.append(json.loads(message))
        self.changed.set()

    def _on_track(self, track: MediaStreamTrack) -> None:
        self._pump = asyncio.ensure_future(self._hear(track))

    async def _hear(self, track: MediaStreamTrack) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                frame = await track.recv()
            except MediaStreamError:
                return
            assert isinstance(frame, av.AudioFrame)
            pcm = channels_of(frame)[0]
            self.heard.append((loop.time(), audible(pcm)))
            self.play(pcm)
            self.changed.set()

    async def offer(self) -> str:
        await self.pc.setLocalDescription(await self.pc.createOffer())
        return self.pc.localDescription.sdp

    async def until(self, condition: Callable[[], Any], what: str, timeout_s: float = 60.0) -> Any:
        """Waits for something to come true, woken by every event, frame and state change. Raises TimeoutError
        with `what` was waited for."""
        try:
            async with asyncio.timeout(timeout_s):
                while not (result := condition()):
                    self.changed.clear()
                    await self.changed.wait()
                return result
        except TimeoutError:
            raise TimeoutError(f"{what} did not happen; events: {self.events}") from None

    def of(self, kind: str, **fields: Any) -> list[dict[str, Any]]:
        return [e for e in self.events if e["type"] == kind and fields.items() <= e.items()]

    def states(self) -> list[str]:
        return [event["state"] for event in self.of("state")]

    async def close(self) -> None:
        await self.pc.close()
        if self._pump:
            await asyncio.wait({self._pump})


@asynccontextmanager
async def calling(url: str, *, microphone: bool = True) -> AsyncIterator[Caller]:
    """A connected call; hung up at the end by closing the connection. `url` takes the offer.

    Raises ConnectionError, TimeoutError or aiohttp.ClientError.
    """
    caller = Caller(microphone=microphone)
    try:
        body = {"sdp": await caller.offer(), "type": "offer"}
        async with aiohttp.ClientSession() as http, http.post(url, json=body) as response:
            if response.status != 200:
                raise ConnectionError(f"{url} answered {response.status}: {await response.text()}")
            answer = await response.json(content_type=None)
        await caller.pc.setRemoteDescription(RTCSessionDescription(answer["sdp"], answer["type"]))
        await caller.until(lambda: caller.pc.connectionState == "connected", "connecting", 20)
        yield caller
    finally:
        await caller.close()
