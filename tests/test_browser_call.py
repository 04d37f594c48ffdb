"""A real headless Chromium, with a recorded microphone, calls the real server through the page."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import RunningServer

playwright = pytest.importorskip("playwright.async_api", reason="playwright is not installed (extra: dev)")
expect = playwright.expect
pytestmark = [pytest.mark.models, pytest.mark.browser]

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
PATIENCE_MS = 60_000
# The page keeps its peer connection to itself; this keeps a reference for getStats.
WATCH = """
const Real = window.RTCPeerConnection;
window.connections = [];
window.RTCPeerConnection = function (...args) {
  const pc = new Real(...args);
  window.connections.push(pc);
  return pc;
};
window.RTCPeerConnection.prototype = Real.prototype;
"""
ENERGY = """
async () => {
  let energy = 0;
  for (const pc of window.connections)
    (await pc.getStats()).forEach((s) => { if (s.type === "inbound-rtp") energy += s.totalAudioEnergy ?? 0; });
  return energy;
}
"""


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine (Debian: apt-get install chromium)")
async def test_a_browser_calls_is_heard_and_hears(server: RunningServer, say: Callable[..., Path]) -> None:
    # Chromium repeats the file from its end; the long silence keeps it to one question per call.
    speech = say("What time is check in?", lead_s=6.0, tail_s=60.0)
    async with playwright.async_playwright() as driver:
        browser = await driver.chromium.launch(
            executable_path=CHROMIUM,
            args=[
                "--no-sandbox",
                "--disable-gpu",
                "--disable-background-networking",
                "--use-fake-ui-for-media-stream",
                "--use-fake-device-for-media-stream",
                f"--use-file-for-fake-audio-capture={speech}",
            ],
        )
        try:
            page = await browser.new_page()
            complaints: list[str] = []
            page.on("pageerror", lambda error: complaints.append(str(error)))
            await page.add_init_script(WATCH)
            await page.goto(server.url)
            await expect(page.get_by_role("button", name="Call", exact=True)).to_be_visible()
            await page.get_by_role("button", name="Call", exact=True).click()
            greeting = page.locator("#captions [data-role=assistant]").first
            await expect(greeting).to_contain_text("how can I help you", timeout=PATIENCE_MS)
            question = page.locator("#captions [data-role=user]").first
            await expect(question).to_contain_text("check", timeout=PATIENCE_MS)
            answer = page.locator("#captions [data-role=assistant]").nth(1)
            await expect(answer).to_have_attribute("data-final", "true", timeout=PATIENCE_MS)
            assert len((await answer.inner_text()).split()) > 2
            await expect(page.locator("#latency [data-turn]").first).to_contain_text("s", timeout=PATIENCE_MS)
            assert await page.evaluate(ENERGY) > 0.001  # sound came out of the speaker
            await page.get_by_role("button", name="Hang up").click()
            await expect(page.get_by_role("button", name="Call", exact=True)).to_be_visible()
            assert complaints == []
        finally:
            await browser.close()
