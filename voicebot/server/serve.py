"""`voicebot serve`: loads the engines, listens, and stops cleanly on SIGINT or SIGTERM."""

from __future__ import annotations

import asyncio
import signal
import ssl

from aiohttp import web
from rich.console import Console

from voicebot.call import Phrases
from voicebot.config import Config
from voicebot.engines import open_engines
from voicebot.server.app import make_app
from voicebot.server.calls import Switchboard


class CannotListen(Exception):
    """The address, port or certificate cannot be used; the message says which and the mend."""


async def serve(config: Config, console: Console) -> None:
    """Runs until a signal. Raises CannotListen, EngineDead, ModelError or ConfigError."""
    agent = config.load_agent()
    tls = _tls(config)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    console.print("Loading the models ...")
    async with open_engines(config, agent, lines=config.server.max_calls) as engines:
        phrases = await Phrases.make(engines, agent)
        runner = web.AppRunner(make_app(Switchboard(config, agent, engines, phrases)), access_log=None)
        await runner.setup()
        try:
            await _listen(runner, config, tls)
            port = runner.addresses[0][1]
            scheme = "https" if tls else "http"
            console.print(
                f"{agent.name} answers at [bold]{scheme}://{_host(config)}:{port}/[/bold]  "
                f"(up to {config.server.max_calls} calls at once; Ctrl-C stops)"
            )
            await stop.wait()
            console.print("Stopping: calls in progress get a moment to end ...")
        finally:
            await runner.cleanup()


async def _listen(runner: web.AppRunner, config: Config, tls: ssl.SSLContext | None) -> None:
    host, port = config.server.host, config.server.port
    try:
        await web.TCPSite(runner, host, port, ssl_context=tls).start()
    except OSError as error:
        raise CannotListen(
            f"server.host {host}, server.port {port}: {error.strerror or error}; "
            "choose another, e.g. VOICEBOT_SERVER__PORT=8081"
        ) from None


def _host(config: Config) -> str:
    return "localhost" if config.server.host in ("0.0.0.0", "::", "127.0.0.1") else config.server.host


def _tls(config: Config) -> ssl.SSLContext | None:
    cert, key = config.server.tls_cert, config.server.tls_key
    if cert is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(cert, key)
    except (OSError, ssl.SSLError) as error:
        raise CannotListen(f"server.tls_cert {cert}, server.tls_key {key}: {error}") from None
    return context
