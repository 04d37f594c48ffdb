"""WebRTC by aiortc: an SDP offer in, an answer out, frames and a data channel for the call."""

from __future__ import annotations

import asyncio
import fractions
import json
import logging
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import av
import numpy as np
from aiortc import (
    MediaStreamTrack,
    RTCConfiguration,
    RTCDataChannel,
    RTCIceServer,
    RTCPeerConnection,
    RTCSessionDescription,
)
from aiortc.mediastreams import MediaStreamError
from aiortc.sdp import SessionDescription

from voicebot.audio.frames import Frame, Pcm, channels_of
from voicebot.config import IceServer
from voicebot.transports.prompt_receiver import deliver_at_once

log = logging.getLogger(__name__)

RATE = 48_000
CODECS = ("opus", "pcmu", "pcma", "g722")
WAITING_FRAMES = 5
"""Frames that may wait for the peer connection to fetch them; older ones are dropped."""
WAITING_EVENTS = 100
"""Events kept until the data channel opens."""
CLOSE_S = 5.0


class BadOffer(Exception):
    """The offer cannot be answered. `status` is the HTTP status that says so."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


def check_offer(sdp: str) -> None:
    """Raises BadOffer for what is not an SDP offer of audio that we can speak."""
    if not sdp.strip():
        raise BadOffer(400, "the offer is empty; send the SDP of RTCPeerConnection.createOffer()")
    if not sdp.lstrip().startswith("v=0"):
        raise BadOffer(400, "the offer is not SDP: it does not begin with v=0")
    try:
        parsed = SessionDescription.parse(sdp)
    except Exception as error:  # aiortc's parser raises whatever the malformed line makes it stumble on
        raise BadOffer(400, f"the offer is not valid SDP ({type(error).__name__}: {error})") from None
    audio = [media for media in parsed.media if media.kind == "audio" and media.port]
    if not audio:
        kinds = ", ".join(sorted({media.kind for media in parsed.media})) or "nothing"
        raise BadOffer(422, f"the offer has no audio (it offers {kinds})")
    codecs = {codec.name.lower() for media in audio for codec in media.rtp.codecs}
    if not codecs.intersection(CODECS):
        offered = ", ".join(sorted(codecs)) or "none"
        raise BadOffer(422, f"no audio codec in common: offered {offered}; spoken here {', '.join(CODECS)}")
    ice = audio[0].ice
    if ice is None or not ice.usernameFragment or not audio[0].dtls:
        raise BadOffer(400, "the offer has no ICE credentials or DTLS fingerprint: is it from WebRTC?")


class _BotTrack(MediaStreamTrack):
    """The bot's voice: whatever `WebRTCTransport.send` was given, as fast as it was given."""

    kind = "audio"

    def __init__(self) -> None:
        super().__init__()
        self._frames: deque[Pcm] = deque(maxlen=WAITING_FRAMES)
        self._more = asyncio.Event()
        self._sent = 0

    def put(self, pcm: Pcm) -> None:
        self._frames.append(pcm)
        self._more.set()

    async def recv(self) -> av.AudioFrame:
        while not self._frames:
            self._more.clear()
            await self._more.wait()
        pcm = self._frames.popleft()
        frame = av.AudioFrame.from_ndarray(pcm[np.newaxis], "s16", "mono")
        frame.sample_rate = RATE
        frame.pts = self._sent
        frame.time_base = fractions.Fraction(1, RATE)
        self._sent += len(pcm)
        return frame


class WebRTCTransport:
    rate = RATE

    def __init__(self, ice_servers: Sequence[IceServer]) -> None:
        self._loop = asyncio.get_running_loop()
        servers = [RTCIceServer(list(s.urls), s.username, s.credential) for s in ice_servers]
        # An empty list means none: with no argument aiortc would ask a public STUN server.
        self._pc = RTCPeerConnection(RTCConfiguration(iceServers=servers))
        self._voice = _BotTrack()
        self._ears: MediaStreamTrack | None = None
        self._connected = asyncio.Event()
        self._closed = asyncio.Event()
        self._channel: RTCDataChannel | None = None
        self._waiting: deque[str] = deque(maxlen=WAITING_EVENTS)
        self._pc.on("track", self._on_track)
        self._pc.on("datachannel", self._on_channel)
        self._pc.on("connectionstatechange", self._on_state)

    async def answer(self, sdp: str) -> str:
        """The SDP answer, all candidates in it. Raises BadOffer; close the transport all the same."""
        check_offer(sdp)
        try:
            await self._pc.setRemoteDescription(RTCSessionDescription(sdp, "offer"))
            self._pc.addTrack(self._voice)
            await self._pc.setLocalDescription(await self._pc.createAnswer())
        except Exception as error:  # what check_offer let through and aiortc stumbles on
            raise BadOffer(400, f"the offer cannot be answered ({type(error).__name__}: {error})") from None
        return str(self._pc.localDescription.sdp)

    async def connected(self) -> bool:
        """Waits until media can flow; False if the connection was closed or failed instead."""
        await self._connected.wait()
        return not self._closed.is_set()

    async def frames(self) -> AsyncGenerator[Frame, None]:
        closed = asyncio.ensure_future(self._closed.wait())
        try:
            while not self._closed.is_set():
                if self._ears is None:  # nothing to hear: the caller only listens
                    await self._closed.wait()
                    return
                received = asyncio.ensure_future(self._ears.recv())
                await asyncio.wait({received, closed}, return_when=asyncio.FIRST_COMPLETED)
                if not received.done():
                    received.cancel()
                    await asyncio.wait({received})
                    return
                try:
                    frame = received.result()
                except MediaStreamError:
                    return
                assert isinstance(frame, av.AudioFrame)
                channels = channels_of(frame)
                pcm = channels[0] if len(channels) == 1 else channels.mean(axis=0).astype(np.int16)
                yield Frame(pcm, frame.sample_rate, self._loop.time())
        finally:
            closed.cancel()

    async def send(self, pcm: Pcm) -> None:
        self._voice.put(pcm)

    def emit(self, event: dict[str, Any]) -> None:
        self._waiting.append(json.dumps(event, ensure_ascii=False))
        self._flush_events()

    def hang_up(self) -> None:
        """Ends `frames` and `connected`; the call does the rest."""
        self._closed.set()
        self._connected.set()

    async def close(self) -> None:
        """Releases sockets, threads and tasks of the connection."""
        self.hang_up()
        try:
            async with asyncio.timeout(CLOSE_S):
                await self._pc.close()
        except TimeoutError:
            log.warning("a peer connection did not close within %g s", CLOSE_S)
        self._voice.stop()

    def _on_track(self, track: MediaStreamTrack) -> None:
        if track.kind == "audio" and self._ears is None:
            for transceiver in self._pc.getTransceivers():
                if transceiver.receiver.track is track:
                    deliver_at_once(transceiver.receiver)
            self._ears = track

    def _on_channel(self, channel: RTCDataChannel) -> None:
        if channel.label != "events":
            return
        self._channel = channel
        channel.on("message", self._on_message)
        channel.on("open", self._flush_events)
        self._flush_events()

    def _on_message(self, message: str | bytes) -> None:
        try:
            event = json.loads(message)
        except ValueError:
            return
        if isinstance(event, dict) and event.get("type") == "hangup":
            self.hang_up()

    def _on_state(self) -> None:
        if self._pc.connectionState == "connected":
            self._connected.set()
        elif self._pc.connectionState in ("failed", "closed"):
            self.hang_up()

    def _flush_events(self) -> None:
        while self._waiting and self._channel and self._channel.readyState == "open":
            self._channel.send(self._waiting.popleft())
