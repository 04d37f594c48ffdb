"""The buffer that hands over audio packets as they arrive, and the aiortc internals that it needs."""

from __future__ import annotations

import pytest
from aiortc import RTCPeerConnection
from aiortc.jitterbuffer import JitterFrame
from aiortc.rtp import RtpPacket
from hypothesis import given, settings
from hypothesis import strategies as st

from voicebot.transports.prompt_receiver import _ATTRIBUTE, PromptBuffer, deliver_at_once


def packet(sequence: int) -> RtpPacket:
    made = RtpPacket(payload_type=96, sequence_number=sequence % 65536, timestamp=(sequence * 960) % 2**32)
    made._data = sequence.to_bytes(8, "big")  # type: ignore[attr-defined]  # as RTCRtpReceiver sets it
    return made


async def test_aiortc_still_has_what_is_replaced() -> None:
    connection = RTCPeerConnection()
    try:
        receiver = connection.addTransceiver("audio").receiver
        old = getattr(receiver, _ATTRIBUTE)
        assert type(old).__name__ == "JitterBuffer"
        assert callable(old.add)
        buffer = deliver_at_once(receiver)
        assert getattr(receiver, _ATTRIBUTE) is buffer
    finally:
        await connection.close()


async def test_a_real_jitter_buffer_and_ours_give_the_same_kind_of_frame() -> None:
    """The receiver unpacks (pli, frame), and hands frame.data and frame.timestamp to the decoder."""
    connection = RTCPeerConnection()
    try:
        real = getattr(connection.addTransceiver("audio").receiver, _ATTRIBUTE)
    finally:
        await connection.close()
    delayed = [real.add(packet(i)) for i in range(40)]
    prompt = [PromptBuffer().add(packet(i)) for i in range(40)]
    first = next(frame for _, frame in delayed if frame is not None)
    assert isinstance(first, JitterFrame)
    assert isinstance(prompt[0][1], JitterFrame)
    assert (prompt[0][1].data, prompt[0][1].timestamp) == (first.data, first.timestamp)
    assert delayed[0][1] is None  # the delay that is the reason for all this


def test_an_aiortc_that_has_changed_is_refused() -> None:
    class Receiver:
        pass

    with pytest.raises(RuntimeError, match="jitter_buffer"):
        deliver_at_once(Receiver())  # type: ignore[arg-type]


def test_packets_in_order_are_all_released_at_once_across_the_wrap() -> None:
    buffer = PromptBuffer()
    for sequence in range(65530, 65546):
        plea, frame = buffer.add(packet(sequence))
        assert plea is False
        assert frame is not None
        assert frame.data == sequence.to_bytes(8, "big")
        assert frame.timestamp == sequence * 960
    assert buffer.late == 0


def test_a_lost_packet_holds_nothing_back_and_a_late_one_is_dropped() -> None:
    buffer = PromptBuffer()
    released = [buffer.add(packet(s))[1] is not None for s in (1, 2, 4, 3, 4, 5)]
    assert released == [True, True, True, False, False, True]
    assert buffer.late == 2


@settings(max_examples=300, deadline=None)
@given(
    st.integers(0, 65535),
    st.lists(st.tuples(st.integers(-40, 40), st.booleans()), min_size=1, max_size=200),
)
def test_any_packet_order_is_released_once_in_order_without_delay(
    start: int, jumps: list[tuple[int, bool]]
) -> None:
    """Each packet is a few ahead of or behind the newest; the flag sends it twice."""
    buffer = PromptBuffer()
    at = newest = start + 65536
    released: list[int] = []
    late = 0
    for number, (jump, twice) in enumerate(jumps):
        at = newest + jump if number else newest
        for _ in range(2 if twice else 1):
            fresh = not released or at > newest
            plea, frame = buffer.add(packet(at))
            assert plea is False
            assert (frame is not None) == fresh, "released late, or never"
            if frame is None:
                late += 1
                continue
            newest = at
            released.append(int.from_bytes(frame.data, "big"))
            assert released[-1] == at
    assert released == sorted(set(released))
    assert buffer.late == late


def test_a_stream_that_restarts_elsewhere_is_heard_again_soon() -> None:
    """A sender that restarts (RFC 3550 A.1) goes on from any number; aiortc's own buffer starts over at once."""
    buffer = PromptBuffer()
    for sequence in range(40_000, 40_050):
        buffer.add(packet(sequence))
    heard = [buffer.add(packet(sequence))[1] is not None for sequence in range(20_000, 20_010)]
    assert any(heard)
