"""HTTP routes: the page, its configuration, `POST /api/offer`, WHIP (RFC 9725), health."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

from aiohttp import web

from voicebot import __version__
from voicebot.config import share_dir
from voicebot.server.calls import Busy, Switchboard
from voicebot.transports.webrtc import BadOffer

SWITCHBOARD = web.AppKey("switchboard", Switchboard)
RETRY_AFTER_S = "10"

# Only our own scripts, styles and connections; the page needs nothing from elsewhere.
SECURITY_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; connect-src 'self'; media-src 'self' blob:; "
    "img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}

routes = web.RouteTableDef()


def make_app(switchboard: Switchboard) -> web.Application:
    """The application; its start and end are the switchboard's."""
    app = web.Application(
        client_max_size=switchboard.config.server.max_offer_bytes, middlewares=[_errors_as_json]
    )
    app[SWITCHBOARD] = switchboard
    app.add_routes(routes)
    app.router.add_static("/web", share_dir("web"))
    app.on_response_prepare.append(_secure)

    async def lifetime(_: web.Application) -> AsyncIterator[None]:
        async with switchboard.open():
            yield

    app.cleanup_ctx.append(lifetime)
    return app


@routes.get("/")
async def page(_: web.Request) -> web.FileResponse:
    return web.FileResponse(share_dir("web") / "index.html")


@routes.get("/healthz")
async def health(request: web.Request) -> web.Response:
    """For load balancers and for finding leaks: with no call, `tasks` is the same number every time."""
    calls = request.app[SWITCHBOARD].active
    return web.json_response({"status": "ok", "calls": calls, "tasks": len(asyncio.all_tasks())})


@routes.get("/api/config")
async def page_config(request: web.Request) -> web.Response:
    """What the page needs to know before it calls."""
    board = request.app[SWITCHBOARD]
    return web.json_response(
        {
            "agent": {"name": board.agent.name},
            "ice_servers": [
                server.model_dump(exclude_none=True) for server in board.config.server.ice_servers
            ],
            "budget_ms": board.config.latency.budget_ms,
            "mouth_to_ear_objective_ms": board.config.latency.mouth_to_ear_objective_ms,
            "version": __version__,
        }
    )


@routes.post("/api/offer")
async def offer(request: web.Request) -> web.Response:
    """`{"sdp", "type": "offer"}` in, `{"sdp", "type": "answer", "call_id"}` out."""
    try:
        body = await request.json()
    except ValueError:
        raise BadOffer(400, 'the body is not JSON; send {"sdp": "...", "type": "offer"}') from None
    sdp = body.get("sdp") if isinstance(body, dict) else None
    if not isinstance(sdp, str):
        raise BadOffer(400, 'the body has no text field "sdp"')
    if body.get("type", "offer") != "offer":
        raise BadOffer(400, f'"type" must be "offer" (given: {body["type"]!r})')
    call_id, answer = await request.app[SWITCHBOARD].answer(sdp)
    return web.json_response({"sdp": answer, "type": "answer", "call_id": call_id})


@routes.post("/whip")
async def whip(request: web.Request) -> web.Response:
    """RFC 9725. An offer that is sendrecv is answered sendrecv, so that the client hears the bot."""
    if request.content_type != "application/sdp":
        raise BadOffer(415, f"Content-Type must be application/sdp (given: {request.content_type})")
    call_id, answer = await request.app[SWITCHBOARD].answer(await request.text())
    headers = {"Location": f"/whip/{call_id}", "Access-Control-Expose-Headers": "Location"}
    return web.Response(status=201, text=answer, content_type="application/sdp", headers=headers)


@routes.options("/whip")
async def whip_options(_: web.Request) -> web.Response:
    return web.Response(headers={"Accept-Post": "application/sdp"})


@routes.delete("/whip/{call_id}")
async def whip_hang_up(request: web.Request) -> web.Response:
    if not request.app[SWITCHBOARD].hang_up(request.match_info["call_id"]):
        return web.json_response({"error": "no such call"}, status=404)
    return web.Response()


@web.middleware
async def _errors_as_json(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    try:
        return await handler(request)
    except BadOffer as error:
        return web.json_response({"error": str(error)}, status=error.status)
    except Busy:
        body = {"error": "all lines are busy; please call again in a moment"}
        return web.json_response(body, status=503, headers={"Retry-After": RETRY_AFTER_S})
    except web.HTTPRequestEntityTooLarge:
        limit = request.app[SWITCHBOARD].config.server.max_offer_bytes
        return web.json_response({"error": f"the body is larger than {limit} bytes"}, status=413)
    except UnicodeDecodeError:
        return web.json_response({"error": "the body is not UTF-8 text"}, status=400)


async def _secure(_: web.Request, response: web.StreamResponse) -> None:
    for name, value in SECURITY_HEADERS.items():
        response.headers.setdefault(name, value)
