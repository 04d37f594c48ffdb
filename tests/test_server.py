"""The running server, from outside: offers, WHIP, a spoken call, an interruption, and what stays behind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest
from aiortc import RTCSessionDescription

from tests.conftest import RunningServer
from voicebot.bench.caller import Caller, calling

pytestmark = pytest.mark.models

H264 = "m=video 9 UDP/TLS/RTP/SAVPF 96\r\nc=IN IP4 0.0.0.0\r\na=rtpmap:96 H264/90000\r\n"
SESSION = "v=0\r\no=- 1 1 IN IP4 0.0.0.0\r\ns=-\r\nt=0 0\r\n"
ICE = "a=ice-ufrag:abcd\r\na=ice-pwd:abcdefghijklmnopqrstuvwx\r\na=fingerprint:sha-256 " + ":".join(
    ["AA"] * 32
)


def audio(payload: str, attributes: str = ICE) -> str:
    media = "m=audio 9 UDP/TLS/RTP/SAVPF 97\r\nc=IN IP4 0.0.0.0\r\n"
    return f"{SESSION}{media}a=rtpmap:97 {payload}\r\na=mid:0\r\na=sendrecv\r\na=rtcp-mux\r\n{attributes}\r\na=setup:actpass\r\n"


BAD_OFFERS: list[tuple[str, Any, int, str]] = [
    ("empty body", b"", 400, "JSON"),
    ("not JSON", b"{sdp", 400, "JSON"),
    ("not UTF-8", b'{"sdp": "\xff\xfe"}', 400, "JSON"),
    ("a list", b"[]", 400, '"sdp"'),
    ("a number", b'{"sdp": 5}', 400, '"sdp"'),
    ("an answer", {"sdp": SESSION, "type": "answer"}, 400, '"offer"'),
    ("empty SDP", {"sdp": ""}, 400, "empty"),
    ("not SDP", {"sdp": "hello"}, 400, "not SDP"),
    ("broken SDP", {"sdp": "v=0\r\nm=audio x"}, 400, "not valid SDP"),
    ("no media", {"sdp": SESSION}, 422, "no audio"),
    ("video only", {"sdp": SESSION + H264}, 422, "video"),
    ("a codec we lack", {"sdp": audio("AMR-WB/16000")}, 422, "amr-wb"),
    ("no ICE", {"sdp": audio("opus/48000/2", "a=inactive")}, 400, "ICE"),
    ("1 MiB", {"sdp": "v=0" + "x" * 2**20}, 413, "larger"),
]


@pytest.mark.parametrize(
    ("body", "status", "reason"), [case[1:] for case in BAD_OFFERS], ids=[c[0] for c in BAD_OFFERS]
)
async def test_bad_offers(server: RunningServer, body: Any, status: int, reason: str) -> None:
    async with aiohttp.ClientSession() as http:
        sent = {"data": body} if isinstance(body, bytes) else {"json": body}
        async with http.post(f"{server.url}/api/offer", **sent) as response:
            assert response.status == status
            assert reason in (await response.json())["error"]
        async with http.get(f"{server.url}/healthz") as response:
            assert (await response.json())["calls"] == 0


async def test_page_and_its_configuration(server: RunningServer) -> None:
    async with aiohttp.ClientSession() as http:
        async with http.get(f"{server.url}/") as response:
            assert "/web/app.js" in await response.text()
            assert "default-src 'self'" in response.headers["Content-Security-Policy"]
        async with http.get(f"{server.url}/api/config") as response:
            config = await response.json()
            assert config["agent"] == {"name": "Harbour Hotel"}
            assert config["ice_servers"] == []
        async with http.get(f"{server.url}/web/../pyproject.toml") as response:
            assert response.status in (403, 404)


async def test_a_spoken_call(server: RunningServer, say: Callable[..., Path]) -> None:
    """Greeting, question, captions, answer, record: and the record adds up."""
    question = say("What time is check in?")
    async with calling(f"{server.url}/api/offer") as caller:
        await caller.until(
            lambda: caller.of("transcript", role="assistant", turn=0, final=True), "the greeting"
        )
        assert any(loud for _, loud in caller.heard)
        caller.microphone.say(question)
        [record] = await caller.until(lambda: caller.of("turn"), "the answer")
        [user] = caller.of("transcript", role="user", final=True)
        assert "check" in user["text"].lower()
        assert record["user_text"] == user["text"]
        [answer] = caller.of("transcript", role="assistant", final=True, turn=1)
        assert answer["text"] == record["bot_text"] != ""
        assert caller.states()[:2] == ["listening", "speaking"]
        await caller.until(
            lambda: caller.states()[-3:] == ["thinking", "speaking", "listening"], "the states"
        )
        assert record["interrupted"] is False
        assert record["error"] is None
        assert sum(record["stages_ms"].values()) == pytest.approx(record["mouth_to_ear_ms"], abs=1e-6)
        marks = record["marks_ms"]  # the answer is worked on while the turn may still go on
        for path in (
            ("speech_end", "ingested", "commit", "first_packet"),
            ("ingested", "transcript", "first_token", "first_chunk", "first_audio", "first_packet"),
        ):
            assert [marks[name] for name in path] == sorted(marks[name] for name in path)
        caller.channel.send('{"type": "hangup"}')
        await caller.until(lambda: caller.of("state", state="ended", reason="hangup"), "the end", 10)


async def test_interruption(server: RunningServer, say: Callable[..., Path]) -> None:
    """The caller speaks over the answer: it stops, and what was not heard is not in the record."""
    question = say("Please tell me everything about the hotel and its pool.")
    interruption = say("No, stop. Can I bring my dog?", lead_s=0.0)
    async with calling(f"{server.url}/api/offer") as caller:
        await caller.until(
            lambda: caller.of("transcript", role="assistant", turn=0, final=True), "the greeting"
        )
        caller.microphone.say(question)
        await caller.until(
            lambda: caller.of("transcript", role="assistant", turn=1), "the answer's first words"
        )
        caller.microphone.say(interruption)
        await caller.until(lambda: len(caller.of("turn")) >= 2, "both turns")
        first, second = caller.of("turn")[:2]
        assert first["turn"] == 1
        assert first["interrupted"] is True
        assert first["bot_text"] != ""
        assert second["turn"] == 2
        assert "dog" in second["user_text"].lower()
        assert second["bot_text"] != ""


async def test_a_listening_caller_stops_nothing(server: RunningServer, say: Callable[..., Path]) -> None:
    """ "Yeah, right" over the answer: it is said to its end, and is the only turn."""
    async with calling(f"{server.url}/api/offer") as caller:
        await caller.until(
            lambda: caller.of("transcript", role="assistant", turn=0, final=True), "the greeting"
        )
        caller.microphone.say(say("Please tell me everything about the hotel and its pool."))
        await caller.until(
            lambda: caller.of("transcript", role="assistant", turn=1), "the answer's first words"
        )
        caller.microphone.say(say("Yeah, right.", lead_s=0.0))
        [record] = await caller.until(lambda: caller.of("turn"), "the answer's end")
        assert caller.microphone.spoken.is_set(), "the answer was over before the caller spoke"
        assert record["interrupted"] is False
        await asyncio.sleep(3)
        assert len(caller.of("turn")) == 1
        assert caller.states()[-1] == "listening"


async def test_whip(server: RunningServer) -> None:
    """RFC 9725: POST gives 201 with a Location, DELETE there hangs up."""
    caller = Caller()
    try:
        async with aiohttp.ClientSession() as http:
            headers = {"Content-Type": "application/sdp"}
            async with http.post(
                f"{server.url}/whip", data=await caller.offer(), headers=headers
            ) as response:
                assert response.status == 201
                assert response.content_type == "application/sdp"
                session, sdp = response.headers["Location"], await response.text()
            await caller.pc.setRemoteDescription(RTCSessionDescription(sdp, "answer"))
            await caller.until(lambda: any(loud for _, loud in caller.heard), "the greeting")
            async with http.delete(server.url + session) as response:
                assert response.status == 200
            await caller.until(lambda: caller.of("state", state="ended"), "the end", 10)
            await no_calls(http, server)
            async with http.delete(server.url + session) as response:
                assert response.status == 404
            async with http.post(
                f"{server.url}/whip", data="x", headers={"Content-Type": "text/plain"}
            ) as response:
                assert response.status == 415
            async with http.post(f"{server.url}/whip", data="x", headers=headers) as response:
                assert response.status == 400
            async with http.options(f"{server.url}/whip") as response:
                assert response.headers["Accept-Post"] == "application/sdp"
            async with http.patch(server.url + session) as response:
                assert response.status == 405
    finally:
        await caller.close()


async def test_a_caller_without_microphone_hears_the_greeting(server: RunningServer) -> None:
    async with calling(f"{server.url}/api/offer", microphone=False) as caller:
        await caller.until(
            lambda: caller.of("transcript", role="assistant", turn=0, final=True), "the greeting"
        )
        assert any(loud for _, loud in caller.heard)


async def test_full_house_and_abandoned_offers(server: RunningServer) -> None:
    """A fifth call is refused at once; offers that never connect give their places back."""
    callers = [Caller() for _ in range(5)]
    try:
        async with aiohttp.ClientSession() as http:
            await no_calls(http, server)
            for number, caller in enumerate(callers, 1):
                body = {"sdp": await caller.offer(), "type": "offer"}
                async with http.post(f"{server.url}/api/offer", json=body) as response:
                    assert response.status == (200 if number <= 4 else 503)
                    if number == 5:
                        assert "busy" in (await response.json())["error"]
                        assert int(response.headers["Retry-After"]) > 0
            await no_calls(http, server)
    finally:
        for caller in callers:
            await caller.close()


async def no_calls(http: aiohttp.ClientSession, server: RunningServer) -> dict[str, Any]:
    """Waits until every line is free and says what the server then holds."""
    async with asyncio.timeout(30):
        while True:
            async with http.get(f"{server.url}/healthz") as response:
                health: dict[str, Any] = await response.json()
            if health["calls"] == 0:
                return health
            await asyncio.sleep(0.05)


async def greeting_heard(server: RunningServer) -> None:
    async with calling(f"{server.url}/api/offer") as caller:
        await caller.until(lambda: any(loud for _, loud in caller.heard), "the greeting")


@pytest.mark.timeout(900)
async def test_a_hundred_calls_leave_nothing_behind(server: RunningServer, say: Callable[..., Path]) -> None:
    """Memory, tasks, threads and file descriptors, after 100 calls in a row and 4 at once."""
    process = psutil.Process(server.pid)
    async with aiohttp.ClientSession() as http:

        async def resources() -> dict[str, int]:
            health = await no_calls(http, server)
            threads, files = process.num_threads(), process.num_fds()
            return {
                "tasks": health["tasks"],
                "threads": threads,
                "files": files,
                "rss": process.memory_info().rss,
            }

        async def four_at_once() -> None:
            await asyncio.gather(*(spoken_call(server, say("Can I bring my dog?")) for _ in range(4)))

        for _ in range(3):  # pools, caches and the engines' working memory grow to their size first
            await four_at_once()
        before = await resources()
        for _ in range(100):
            await greeting_heard(server)
        after_hundred = await resources()
        await four_at_once()
        after = await resources()
    for now in (after_hundred, after):
        assert now["tasks"] <= before["tasks"], (before, now)
        assert now["threads"] <= before["threads"] + 2, (before, now)  # the executor's last idle workers
        assert now["files"] <= before["files"] + 2, (before, now)
    assert after_hundred["rss"] <= before["rss"] + 60 * 2**20, (before, after_hundred)
    # How far four calls' work overlaps in the engines is chance, and so is the most memory it takes.
    assert after["rss"] <= before["rss"] + 120 * 2**20, (before, after)


async def spoken_call(server: RunningServer, speech: Path) -> None:
    async with calling(f"{server.url}/api/offer") as caller:
        await caller.until(
            lambda: caller.of("transcript", role="assistant", turn=0, final=True), "the greeting"
        )
        caller.microphone.say(speech)
        [record] = await caller.until(lambda: caller.of("turn"), "the answer")
        assert "dog" in record["user_text"].lower()
        assert record["bot_text"]
