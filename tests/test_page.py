"""The caller's page in a real headless Chromium, against a scripted server.

No models: a small aiohttp app serves ``web/`` under the same content security policy as the
real server, answers ``/api/config``, and does with an offer what the test says: refuse it,
let it hang, or answer it with an aiortc peer through which the test plays the bot's messages.
"""

import asyncio
import inspect
import json
import re
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web
from aiortc import RTCDataChannel, RTCPeerConnection, RTCSessionDescription
from aiortc.mediastreams import AudioStreamTrack

playwright_api = pytest.importorskip("playwright.async_api", reason="playwright is not installed")
expect = playwright_api.expect

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

pytestmark = [
    pytest.mark.browser,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium, chromium-browser or google-chrome on PATH"),
]

WEB = Path(__file__).resolve().parent.parent / "web"
CSP = "default-src 'self'; connect-src 'self'; media-src 'self' blob:; img-src 'self' data:"
NOT_LOCALHOST = "voicebot.test"  # resolves to 127.0.0.1 in this browser, but is not a secure address
ARGS = [
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--use-fake-device-for-media-stream", f"--host-resolver-rules=MAP {NOT_LOCALHOST} 127.0.0.1",
]  # fmt: skip

# Remembers what the page opened, so that a test can see it all closed again.
WATCH = """
(() => {
  const seen = { tracks: [], peers: [], contexts: [] };
  Object.defineProperty(window, "seenByTest", { value: seen, enumerable: false });
  if (navigator.mediaDevices) {
    const open = navigator.mediaDevices.getUserMedia.bind(navigator.mediaDevices);
    navigator.mediaDevices.getUserMedia = async (...args) => {
      const stream = await open(...args);
      seen.tracks.push(...stream.getTracks());
      return stream;
    };
  }
  for (const [name, list] of [["RTCPeerConnection", seen.peers], ["AudioContext", seen.contexts]]) {
    const Real = window[name];
    window[name] = class extends Real { constructor(...args) { super(...args); list.push(this); } };
  }
})();
"""
RELEASED = """
() => seenByTest.tracks.every((t) => t.readyState === "ended")
   && seenByTest.peers.every((p) => p.connectionState === "closed")
   && seenByTest.contexts.every((c) => c.state === "closed")
   && document.querySelectorAll("audio").length === 0
"""


@dataclass
class Peer:
    """The server's side of one call."""

    connection: RTCPeerConnection
    channel: asyncio.Future[RTCDataChannel]
    received: list[Any] = field(default_factory=list)

    async def send(self, *messages: dict[str, Any]) -> None:
        channel = await asyncio.wait_for(self.channel, 20)
        for message in messages:
            channel.send(json.dumps(message))


class Server:
    """Scripted: set ``answer`` to what the next offers get."""

    def __init__(self) -> None:
        self.origin = ""
        self.port = 0
        self.peers: list[Peer] = []
        self.offers: list[dict[str, Any]] = []
        self.reset()

    def reset(self) -> None:
        self.answer: Callable[[dict[str, Any]], Any] = self.refuse(400, {"error": "no answer scripted"})
        self.offers.clear()

    @staticmethod
    def refuse(status: int, body: Any = None, **headers: str) -> Callable[[dict[str, Any]], Any]:
        async def handler(_: dict[str, Any]) -> web.Response:
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            return web.json_response(body, status=status, headers=named)

        return handler

    @staticmethod
    async def hang(_: dict[str, Any]) -> web.Response:
        await asyncio.sleep(60)
        return web.json_response({})

    async def accept(self, offer: dict[str, Any]) -> web.Response:
        connection = RTCPeerConnection()
        peer = Peer(connection, asyncio.get_running_loop().create_future())
        self.peers.append(peer)
        connection.addTrack(AudioStreamTrack())

        @connection.on("datachannel")
        def opened(channel: RTCDataChannel) -> None:
            assert channel.label == "events"
            channel.on("message", lambda data: peer.received.append(json.loads(data)))
            peer.channel.set_result(channel)

        await connection.setRemoteDescription(RTCSessionDescription(offer["sdp"], offer["type"]))
        await connection.setLocalDescription(await connection.createAnswer())
        local = connection.localDescription
        return web.json_response({"sdp": local.sdp, "type": local.type, "call_id": "test"})

    async def serve(self, stack: AsyncExitStack) -> None:
        @web.middleware
        async def policy(request: web.Request, handler: Any) -> web.StreamResponse:
            response = await handler(request)
            response.headers["Content-Security-Policy"] = CSP
            return response

        async def index(_: web.Request) -> web.FileResponse:
            return web.FileResponse(WEB / "index.html")

        async def config(_: web.Request) -> web.Response:
            return web.json_response(
                {
                    "agent": {"name": "Harbour Hotel"},
                    "ice_servers": [],
                    "budget_ms": 200,
                    "mouth_to_ear_objective_ms": 700,
                    "version": "0.1.0",
                }
            )

        async def offer(request: web.Request) -> web.Response:
            body = await request.json()
            self.offers.append(body)
            return await self.answer(body)

        app = web.Application(middlewares=[policy])
        app.router.add_get("/", index)
        app.router.add_static("/web", WEB)
        app.router.add_get("/api/config", config)
        app.router.add_post("/api/offer", offer)
        runner = web.AppRunner(app, shutdown_timeout=1)
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.port = runner.addresses[0][1]
        self.origin = f"http://127.0.0.1:{self.port}"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world() -> AsyncIterator[tuple[Server, Any]]:
    async with AsyncExitStack() as stack:
        server = Server()
        await server.serve(stack)
        driver = await stack.enter_async_context(playwright_api.async_playwright())
        browser = await driver.chromium.launch(executable_path=CHROMIUM, args=ARGS)
        stack.push_async_callback(browser.close)
        yield server, browser


@pytest_asyncio.fixture(loop_scope="module")
async def server(world: tuple[Server, Any]) -> AsyncIterator[Server]:
    server, _ = world
    server.reset()
    yield server
    for peer in server.peers:
        await peer.connection.close()
    server.peers.clear()


@pytest_asyncio.fixture(loop_scope="module")
async def visit(world: tuple[Server, Any], server: Server) -> AsyncIterator[Callable[..., Any]]:
    """Opens the page; afterwards checks that it complained of nothing and asked nobody else."""
    _, browser = world
    async with AsyncExitStack() as stack:
        complaints: list[str] = []
        requests: list[str] = []
        ours = (server.origin, f"http://{NOT_LOCALHOST}:{server.port}")

        def note(message: Any) -> None:
            # Chromium itself reports a refused offer; anything else is the page's fault.
            if not message.location["url"].endswith("/api/offer"):
                complaints.append(message.text)

        async def open_page(
            *scripts: str, microphone: bool = True, origin: str = "", width: int = 1280, **options: Any
        ) -> Any:
            origin = origin or server.origin
            context = await browser.new_context(viewport={"width": width, "height": 800}, **options)
            stack.push_async_callback(context.close)
            await context.grant_permissions(["microphone"] if microphone else [], origin=origin)
            page = await context.new_page()
            page.on("pageerror", lambda error: complaints.append(str(error)))
            page.on("console", note)
            page.on("request", lambda request: requests.append(request.url))
            for script in (WATCH, *scripts):
                await page.add_init_script(script)
            await page.goto(origin)
            await expect(page.get_by_role("heading", level=1)).to_have_text("Harbour Hotel")
            return page

        yield open_page
        assert complaints == []
        assert [url for url in requests if not url.startswith(ours)] == []


def call_button(page: Any) -> Any:
    return page.get_by_role("button", name="Call", exact=True)


def hangup_button(page: Any) -> Any:
    return page.get_by_role("button", name="Hang up", exact=True)


async def connect(page: Any, server: Server) -> Peer:
    server.answer = server.accept
    await call_button(page).click()
    await expect(page.locator("#state")).to_have_text("Listening", timeout=20_000)
    return server.peers[-1]


def said(role: str, text: str, turn: int, final: bool = True, **more: Any) -> dict[str, Any]:
    return {"type": "transcript", "role": role, "text": text, "turn": turn, "final": final, **more}


STAGES = {"ingress": 40, "endpointing": 160, "asr": 70, "llm": 100, "chunking": 20, "tts": 60, "egress": 40}


def timed(turn: int, **more: Any) -> dict[str, Any]:
    return {
        "type": "turn",
        "turn": turn,
        "user_text": f"Question {turn}",
        "bot_text": "Answer",
        "interrupted": False,
        "stages_ms": dict(STAGES),
        "mouth_to_ear_ms": 490,
        "response_ms": 410,
        "budget_ms": 200,
        "over_budget": [],
        **more,
    }


# --- before a call ------------------------------------------------------------------------


async def test_everything_has_a_name(visit: Any) -> None:
    page = await visit()
    await expect(page).to_have_title("Call Harbour Hotel")
    assert await page.evaluate("document.documentElement.lang") == "en"
    await expect(call_button(page)).to_have_attribute("id", "call")
    await expect(page.locator("#state")).to_have_text("Ready")
    await expect(page.get_by_label("Microphone", exact=True)).to_have_attribute("id", "microphone")
    await expect(page.get_by_role("meter", name="Microphone level")).to_have_attribute("id", "level")
    await expect(page.get_by_role("log", name="Captions")).to_have_attribute("aria-live", "polite")
    await expect(page.locator("#error")).to_have_role("alert")
    await expect(page.locator("#error")).to_be_empty()


async def test_page_puts_nothing_on_window(visit: Any) -> None:
    page = await visit("Object.defineProperty(window, 'before', {value: Object.getOwnPropertyNames(window)})")
    assert await page.evaluate(
        "Object.getOwnPropertyNames(window).filter((n) => n !== 'before' && !before.includes(n))"
    ) == []  # fmt: skip


async def test_microphones_are_listed_and_the_choice_is_remembered(visit: Any) -> None:
    page = await visit()
    select = page.locator("#microphone")
    await expect(select.locator("option")).to_contain_text(["System default", "Fake"])
    label = await select.locator("option").nth(1).text_content()
    await select.select_option(label=label)
    await page.reload()
    await expect(select.locator("option:checked")).to_have_text(label)


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_a_phone_needs_no_sideways_scrolling(visit: Any, server: Server, scheme: str) -> None:
    page = await visit(width=360, color_scheme=scheme)
    fits = "document.documentElement.scrollWidth <= window.innerWidth"
    assert await page.evaluate(fits)
    server.answer = server.refuse(503, {"error": "busy"}, Retry_After="20")
    await call_button(page).click()
    await expect(page.locator("#error")).to_contain_text("busy")
    assert await page.evaluate(fits)
    peer = await connect(page, server)
    await peer.send(
        said("user", "word" * 60, 1), said("assistant", "Sure. " * 60, 1), timed(1, over_budget=["llm"])
    )
    await expect(page.locator("#latency [data-turn]")).to_have_count(1)
    assert await page.evaluate(fits)
    small = await page.evaluate(
        """() => [...document.querySelectorAll("button, select, summary")]
             .filter((e) => e.offsetParent !== null || getComputedStyle(e).position === "fixed")
             .map((e) => [e.tagName, e.getBoundingClientRect()])
             .filter(([, box]) => box.width && (box.width < 44 || box.height < 44))
             .map(([tag, box]) => `${tag} ${box.width}x${box.height}`)"""
    )
    assert small == []


async def test_no_motion_for_those_who_ask_for_none(visit: Any, server: Server) -> None:
    page = await visit(reduced_motion="reduce")
    server.answer = server.hang
    await call_button(page).click()
    await expect(page.locator("#state")).to_have_text("Connecting")
    assert await page.evaluate("document.getAnimations().length") == 0
    await hangup_button(page).click()


# --- calls that do not come about ---------------------------------------------------------


async def test_keyboard_alone_starts_a_call(visit: Any, server: Server) -> None:
    page = await visit()
    server.answer = server.refuse(400, {"error": "the offer has no audio"})
    await page.keyboard.press("Tab")
    await expect(call_button(page)).to_be_focused()
    assert await call_button(page).evaluate("(b) => getComputedStyle(b).outlineStyle") == "solid"
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("alert")).to_contain_text("The server said: the offer has no audio")
    await expect(call_button(page)).to_be_focused()
    assert len(server.offers) == 1
    assert server.offers[0]["type"] == "offer"
    assert "m=audio" in server.offers[0]["sdp"]
    assert "m=application" in server.offers[0]["sdp"]
    await until(lambda: page.evaluate(RELEASED))


async def test_refused_microphone(visit: Any, server: Server) -> None:
    page = await visit(microphone=False)
    await call_button(page).click()
    await expect(page.get_by_role("alert")).to_contain_text("The microphone is blocked")
    await expect(page.locator("#state")).to_have_text("Ready")
    await expect(call_button(page)).to_be_enabled()
    assert server.offers == []
    await until(lambda: page.evaluate(RELEASED))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("NotFoundError", "No microphone found"),
        ("NotReadableError", "The microphone is in use"),
        ("SecurityError", "The microphone is blocked"),
        ("TypeError", "didn’t start"),
    ],
)
async def test_microphone_that_does_not_open(visit: Any, name: str, words: str) -> None:
    page = await visit(
        f"navigator.mediaDevices.getUserMedia = () => Promise.reject(new DOMException('no', '{name}'))"
    )
    await call_button(page).click()
    await expect(page.get_by_role("alert")).to_contain_text(words)
    await expect(call_button(page)).to_be_visible()


async def test_address_that_is_not_secure(visit: Any, server: Server) -> None:
    page = await visit(origin=f"http://{NOT_LOCALHOST}:{server.port}", microphone=False)
    await expect(page.get_by_role("alert")).to_contain_text("https://")
    await call_button(page).click()
    await expect(page.get_by_role("alert")).to_contain_text("https://")
    await expect(call_button(page)).to_be_visible()


@pytest.mark.parametrize(
    ("retry_after", "words"),
    [
        ("20", "again in about 20 seconds"),
        ("120", "again in about 2 minutes"),
        (None, "again in a moment"),
        ("soon", "again in a moment"),
    ],
)
async def test_all_lines_busy(visit: Any, server: Server, retry_after: str | None, words: str) -> None:
    page = await visit()
    headers = {"Retry_After": retry_after} if retry_after else {}
    server.answer = server.refuse(503, {"error": "all lines are busy"}, **headers)
    await call_button(page).click()
    await expect(page.get_by_role("alert")).to_contain_text("All lines are busy")
    await expect(page.get_by_role("alert")).to_contain_text(words)
    await expect(call_button(page)).to_be_enabled()
    await until(lambda: page.evaluate(RELEASED))


async def test_busy_line_with_a_date_says_when_it_is_over(visit: Any, server: Server) -> None:
    page = await visit()
    free = format_datetime(datetime.now(UTC) + timedelta(seconds=3), usegmt=True)
    server.answer = server.refuse(503, {"error": "all lines are busy"}, Retry_After=free)
    await call_button(page).click()
    await expect(page.get_by_role("alert")).to_contain_text("A line may be free now", timeout=20_000)


async def test_server_that_cannot_be_reached(visit: Any) -> None:
    page = await visit()
    await page.route("**/api/offer", lambda route: route.abort())
    await call_button(page).click()
    await expect(page.get_by_role("alert")).to_contain_text("We can’t reach the server")


@pytest.mark.parametrize("status", [200, 500])
async def test_server_that_answers_nonsense(visit: Any, server: Server, status: int) -> None:
    page = await visit()
    server.answer = server.refuse(status, {"what": "?"})
    await call_button(page).click()
    await expect(page.get_by_role("alert")).to_contain_text("Something went wrong on our side")


async def test_call_that_nobody_answers_is_given_up(visit: Any, server: Server) -> None:
    page = await visit()
    await page.clock.install()
    await page.reload()
    await expect(page.get_by_role("heading", level=1)).to_have_text("Harbour Hotel")
    server.answer = server.hang
    async with page.expect_request("**/api/offer"):
        await call_button(page).click()
        for _ in range(3):  # gathering may wait for the clock too
            await page.clock.run_for(1_000)
    await page.clock.run_for(16_000)
    await expect(page.get_by_role("alert")).to_contain_text("The call didn’t connect")
    await expect(call_button(page)).to_be_visible()


async def test_hanging_up_while_the_browser_asks(visit: Any, server: Server) -> None:
    page = await visit(
        """
        const open = navigator.mediaDevices.getUserMedia;
        navigator.mediaDevices.getUserMedia = (...args) => new Promise((resolve) => {
          document.addEventListener("allowed", () => resolve(open(...args)), { once: true });
        });
        """
    )
    await call_button(page).click()
    await expect(page.locator("#state-hint")).to_contain_text("Allow the microphone")
    await hangup_button(page).click()
    await expect(page.locator("#state")).to_have_text("Call ended")
    await page.evaluate("document.dispatchEvent(new Event('allowed'))")
    await until(lambda: page.evaluate("seenByTest.tracks.length === 1"))
    await until(lambda: page.evaluate(RELEASED))
    await expect(page.locator("#state")).to_have_text("Call ended")
    assert server.offers == []


async def test_double_click_makes_one_call_and_keeps_it(visit: Any, server: Server) -> None:
    page = await visit()
    server.answer = server.accept
    await call_button(page).dblclick()
    await expect(page.locator("#state")).to_have_text("Listening", timeout=20_000)
    assert len(server.offers) == 1


# --- calls --------------------------------------------------------------------------------


async def test_states_and_captions(visit: Any, server: Server) -> None:
    page = await visit()
    peer = await connect(page, server)
    await expect(page.get_by_role("timer")).to_be_visible()
    lines = page.locator("#captions > [data-role]")

    await peer.send({"type": "state", "state": "thinking"})
    await expect(page.locator("#state")).to_have_text("Thinking")
    await peer.send(
        {"type": "state", "state": "speaking"}, {"type": "of the future"}, said("user", "Is it", 1, False)
    )
    await expect(page.locator("#state")).to_have_text("Speaking")
    await expect(lines).to_have_count(1)
    await expect(lines.first).to_have_attribute("data-final", "false")

    await peer.send(said("user", "Is it <b>open</b>?", 1), said("user", "Is", 1, False))
    await expect(lines.first).to_have_attribute("data-final", "true")
    await expect(lines.first.locator(".said")).to_have_text("Is it <b>open</b>?")
    await expect(lines).to_have_count(1)

    await peer.send(said("assistant", "Yes, from seven until ten", 1, False))
    await expect(lines.nth(1).locator(".said")).to_have_text("Yes, from seven until ten")
    await peer.send(said("assistant", "Yes, from", 1, interrupted=True))
    await expect(lines.nth(1).locator(".said")).to_have_text("Yes, from")
    await expect(lines.nth(1)).to_contain_text("You interrupted here")

    # Interrupted before a word was said: no line is left.
    await peer.send(said("assistant", "It", 2, False))
    await expect(lines).to_have_count(3)
    await peer.send(said("assistant", "", 2, interrupted=True))
    await expect(lines).to_have_count(2)


async def test_captions_follow_until_the_reader_scrolls_up(visit: Any, server: Server) -> None:
    page = await visit()
    peer = await connect(page, server)
    newest = page.locator("#captions [data-role]").last
    await peer.send(*[said("user", f"Line {n}", n) for n in range(30)])
    await expect(newest).to_contain_text("Line 29")
    await expect(newest).to_be_in_viewport()
    await page.locator("#captions").evaluate("(box) => { box.scrollTop = 0; }")
    await expect(page.get_by_role("button", name="Newest")).to_be_visible()
    await peer.send(said("user", "Line 30", 30))
    await expect(newest).to_contain_text("Line 30")
    await expect(page.locator("#captions [data-role]").first).to_be_in_viewport()
    await page.get_by_role("button", name="Newest").click()
    await expect(newest).to_be_in_viewport()
    await expect(page.get_by_role("button", name="Newest")).to_be_hidden()


async def test_latency_of_the_last_five_turns(visit: Any, server: Server) -> None:
    page = await visit()
    peer = await connect(page, server)
    slow = timed(7, over_budget=["llm"], mouth_to_ear_ms=890, stages_ms={**STAGES, "llm": 500})
    await peer.send(*[timed(n) for n in range(1, 7)], slow)
    rows = page.locator("#latency > [data-turn]")
    await expect(rows).to_have_count(5)
    assert await rows.evaluate_all("(rows) => rows.map((row) => row.dataset.turn).join()") == "7,6,5,4,3"
    await expect(rows.first).to_contain_text("Answered after 0.89 s")
    await expect(rows.first).to_contain_text("slower than our aim")
    await expect(rows.first.locator("[data-stage=llm]")).to_contain_text("thinking of an answer ▲ over 0.2 s")
    await expect(rows.first.get_by_role("img")).to_have_attribute(
        "aria-label", re.compile(r"our aim of 0\.7 s.*thinking of an answer 0\.50 s, too slow")
    )
    await expect(rows.nth(1)).to_contain_text("within our aim")


async def test_latency_that_is_only_partly_known(visit: Any, server: Server) -> None:
    page = await visit()
    peer = await connect(page, server)
    nothing = dict.fromkeys(STAGES)
    await peer.send(
        timed(1, mouth_to_ear_ms=None),
        timed(2, mouth_to_ear_ms=None, response_ms=None, stages_ms=nothing, interrupted=True),
    )
    rows = page.locator("#latency > [data-turn]")
    await expect(rows.nth(0)).to_contain_text("You spoke again before it answered")
    await expect(rows.nth(1)).to_contain_text("Answered after 0.41 s")
    await expect(rows.nth(1)).to_contain_text("measured at our end only")


async def test_call_after_call_leaves_nothing_behind(visit: Any, server: Server) -> None:
    page = await visit()
    for count in range(1, 4):
        peer = await connect(page, server)
        await expect(page.locator("#captions [data-role]")).to_have_count(0)
        await expect(page.locator("#latency [data-turn]")).to_have_count(0)
        await peer.send(said("assistant", f"Call {count}", 0), timed(1))
        await expect(page.locator("#captions")).to_contain_text(f"Call {count}")
        await hangup_button(page).click()
        await expect(page.locator("#state")).to_have_text("Call ended")
        await expect(page.locator("#state-hint")).to_have_text("You hung up.")
        await until(lambda: page.evaluate(RELEASED))
        await until(lambda peer=peer: {"type": "hangup"} in peer.received)
        assert len(server.offers) == count


@pytest.mark.parametrize(
    ("reason", "words"),
    [("silence", "Nothing was heard"), ("engine_failed", "went wrong on our side"), ("news", ""), (None, "")],
)
async def test_server_ends_the_call(visit: Any, server: Server, reason: str | None, words: str) -> None:
    page = await visit()
    peer = await connect(page, server)
    await peer.send({"type": "state", "state": "ended", **({"reason": reason} if reason else {})})
    await expect(page.locator("#state")).to_have_text("Call ended")
    await expect(page.locator("#state-hint")).to_contain_text(words or "The assistant hung up.")
    await expect(call_button(page)).to_be_visible()
    await until(lambda: page.evaluate(RELEASED))


async def test_connection_that_wavers_and_then_breaks(visit: Any, server: Server) -> None:
    page = await visit()
    peer = await connect(page, server)
    await peer.send({"type": "state", "state": "thinking"})
    await expect(page.locator("#state")).to_have_text("Thinking")
    become = """(state) => {
      const peer = seenByTest.peers.at(-1);
      Object.defineProperty(peer, "connectionState", { value: state, configurable: true });
      peer.dispatchEvent(new Event("connectionstatechange"));
      delete peer.connectionState;
    }"""
    await page.evaluate(become, "disconnected")
    await expect(page.locator("#state")).to_have_text("Reconnecting")
    await page.evaluate(become, "connected")
    await expect(page.locator("#state")).to_have_text("Thinking")
    await page.evaluate(become, "failed")
    await expect(page.locator("#state")).to_have_text("Call ended")
    await expect(page.get_by_role("alert")).to_contain_text("The connection was lost")
    await until(lambda: page.evaluate(RELEASED))


async def test_other_microphone_during_a_call(visit: Any, server: Server) -> None:
    page = await visit()
    await connect(page, server)
    select = page.locator("#microphone")
    await select.select_option(index=await select.locator("option").count() - 1)
    switched = """() => {
      const [sender] = seenByTest.peers.at(-1).getSenders();
      const [first, second] = seenByTest.tracks;
      return Boolean(second) && first.readyState === "ended" && sender.track === second;
    }"""
    await until(lambda: page.evaluate(switched))
    used = await page.evaluate("seenByTest.tracks.at(-1).getSettings().deviceId")
    assert used == await select.input_value()
    await expect(page.locator("#error")).to_be_empty()
    await hangup_button(page).click()
    await until(lambda: page.evaluate(RELEASED))


async def test_remembered_microphone_that_is_gone(visit: Any, server: Server) -> None:
    page = await visit("localStorage.setItem('voicebot.microphone', 'gone')")
    await connect(page, server)
    await expect(page.locator("#mic-hint")).to_contain_text("isn’t there")
    await expect(page.locator("#microphone option:checked")).to_have_text("System default")


async def test_hint_when_nothing_is_heard(visit: Any, server: Server) -> None:
    page = await visit(
        """
        navigator.mediaDevices.getUserMedia = async () => {
          const context = new AudioContext();
          document.addEventListener("speak", () => {
            const tone = new OscillatorNode(context);
            tone.connect(silence);
            tone.start();
          });
          const silence = context.createMediaStreamDestination();
          return silence.stream;
        };
        """
    )
    await connect(page, server)
    await expect(page.locator("#mic-hint")).to_contain_text("We can’t hear you", timeout=20_000)
    await page.evaluate("document.dispatchEvent(new Event('speak'))")
    await expect(page.locator("#mic-hint")).to_be_empty()
    await expect(page.get_by_role("meter")).to_have_attribute("aria-valuetext", re.compile("heard|very loud"))


async def test_playback_that_the_browser_blocks(visit: Any, server: Server) -> None:
    page = await visit(
        """
        const play = HTMLMediaElement.prototype.play;
        let allowed = false;
        document.addEventListener("pointerdown", (e) => { allowed ||= e.target.id === "hear"; }, true);
        HTMLMediaElement.prototype.play = function () {
          if (allowed) return play.call(this);
          return Promise.reject(new DOMException("no gesture", "NotAllowedError"));
        };
        """
    )
    await connect(page, server)
    tap = page.get_by_role("button", name="Tap to hear")
    await expect(tap).to_be_visible()
    await tap.click()
    await expect(tap).to_be_hidden()
    await until(lambda: page.evaluate("document.querySelector('audio').paused === false"))


async def test_leaving_the_page_hangs_up(visit: Any, server: Server) -> None:
    page = await visit()
    peer = await connect(page, server)
    await page.evaluate("window.dispatchEvent(new PageTransitionEvent('pagehide'))")
    await until(lambda: peer.connection.connectionState == "closed" or {"type": "hangup"} in peer.received)
    await until(lambda: page.evaluate(RELEASED))


# --- helpers ------------------------------------------------------------------------------


async def until(condition: Callable[[], Any]) -> None:
    """Polls from here: ``page.wait_for_function`` polls inside the page, where the policy forbids eval."""
    async with asyncio.timeout(20):
        while True:
            value = condition()
            if await value if inspect.isawaitable(value) else value:
                return
            await asyncio.sleep(0.02)
