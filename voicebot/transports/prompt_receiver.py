"""Makes an aiortc receiver hand over audio packets as they arrive.

aiortc's receive jitter buffer releases nothing before four more frames are in: 80 ms added to every
turn, and 300 ms stalls for a lost packet. It smooths playback, which a recognizer does not need. The
buffer is a private attribute, so this is the one module that knows of it; `deliver_at_once` raises if
an aiortc has changed. The upstream fix would be a `prefetch` argument on RTCRtpReceiver.
"""

from __future__ import annotations

from aiortc import RTCRtpReceiver
from aiortc.jitterbuffer import JitterFrame
from aiortc.rtp import RtpPacket
from aiortc.utils import uint16_add

_ATTRIBUTE = "_RTCRtpReceiver__jitter_buffer"
MAX_MISORDER = 100
"""Packets (2 s) by which one can be late; the same as in aiortc's own buffer and in RFC 3550."""


class PromptBuffer:
    """Stands in for `aiortc.jitterbuffer.JitterBuffer`: every audio packet is a frame, released at once.

    A duplicate, or a packet somewhat older than one already released, is dropped and counted. A sequence
    that goes on far behind is a sender that started anew (RFC 3550, appendix A.1).
    """

    def __init__(self) -> None:
        self._newest: int | None = None
        self.late = 0

    def add(self, packet: RtpPacket) -> tuple[bool, JitterFrame | None]:
        """(whether to ask for a key frame: never, the frame to decode)"""
        sequence = packet.sequence_number
        if self._newest is not None and uint16_add(self._newest, -sequence) < MAX_MISORDER:
            self.late += 1
            return False, None
        self._newest = sequence
        return False, JitterFrame(packet._data, packet.timestamp)  # type: ignore[attr-defined]


def deliver_at_once(receiver: RTCRtpReceiver) -> PromptBuffer:
    """Replaces the receiver's jitter buffer; to be called before media flows."""
    if not hasattr(receiver, _ATTRIBUTE):
        raise RuntimeError(f"this aiortc's RTCRtpReceiver has no {_ATTRIBUTE}: audio would be 80 ms late")
    buffer = PromptBuffer()
    setattr(receiver, _ATTRIBUTE, buffer)
    return buffer
