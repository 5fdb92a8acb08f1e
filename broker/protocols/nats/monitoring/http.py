"""The monitoring listener: pages for NATS tools and load balancers over HTTP, HTTPS or both.

The pages are built in other modules; this one has paths, statuses, headers and the login, as in
nats-server. Services of the server may add pages (`/metrics` is one).
"""

from __future__ import annotations

import base64
import binascii
import html
import posixpath
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from aiohttp import web

from broker import __version__
from broker.protocols.nats import limits as nats_limits
from broker.protocols.nats.auth.passwords import same
from broker.protocols.nats.monitoring import errors, limits, options
from broker.protocols.nats.monitoring.accountz import accountz, accstatz
from broker.protocols.nats.monitoring.leafz import gatewayz, leafz, routez
from broker.protocols.nats.monitoring.options import PageError, Query, encode
from broker.protocols.nats.monitoring.process import stacks
from broker.protocols.nats.monitoring.varz import jsz

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from broker.protocols.nats.monitoring.lists import LongPage
    from broker.protocols.nats.monitoring.pages import MonitorPages

    Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
    Json = dict[str, Any]

_TEXT: Final = {"Content-Type": "text/plain; charset=utf-8"}
_NO_SNIFF: Final = {"X-Content-Type-Options": "nosniff"}
_HEALTHZ: Final = "/healthz"
# Links of the front page: path and title.
_LINKS: Final = (
    ("/varz", "General"),
    ("/jsz", "JetStream"),
    ("/connz", "Connections"),
    ("/accountz", "Accounts"),
    ("/accstatz", "Account Stats"),
    ("/subsz", "Subscriptions"),
    ("/routez", "Routes"),
    ("/leafz", "LeafNodes"),
    ("/gatewayz", "Gateways"),
    ("/raftz", "Raft Groups"),
    (_HEALTHZ, "Health Probe"),
)
_FRONT: Final = """<!doctype html>
<html lang="en">
<head><title>{name}</title>
<style>
body {{ font-family: system-ui, sans-serif; margin: 2rem }}
a {{ display: block; padding: .2rem .5rem; color: #334; text-decoration: none }}
a:hover {{ color: #33c }}
</style></head>
<body>
<h1>Twinwire {version}</h1>
<p>{name}, at the level of nats-server {level}</p>
{links}
</body>
</html>
"""


class MonitorHttp:
    """The handlers of one server's listeners: HTTP, HTTPS or both."""

    def __init__(
        self,
        pages: MonitorPages,
        more: Mapping[str, Handler] | None = None,
        *,
        base: str = "",
        login: tuple[str, str] | None = None,
    ) -> None:
        """`more`: further paths. `login`: user and password; None: no login."""
        self.pages = pages
        self.more = dict(more or {})
        self.base = base.rstrip("/")
        self.login = login

    def app(self) -> web.Application:
        """The application with all pages for one listening socket."""
        server = self.pages.server
        app = web.Application(middlewares=[self._guard])
        simple: dict[str, Callable[[Query], Json]] = {
            "/varz": lambda _query: self.pages.varz(),
            "/routez": lambda query: routez(server, options.RoutezOptions.from_query(query)),
            "/gatewayz": lambda query: gatewayz(server, options.GatewayzOptions.from_query(query)),
            "/leafz": lambda query: leafz(server, options.LeafzOptions.from_query(query)),
            "/accountz": lambda query: accountz(server, options.AccountzOptions.from_query(query)),
            "/accstatz": lambda query: accstatz(server, options.AccstatzOptions.from_query(query)),
            "/jsz": lambda query: jsz(server, options.JszOptions.from_query(query)),
        }
        add = app.router.add_get
        for path, build in simple.items():
            add(self.base + path, self._simple(path, build))
        add(self.base + "/subsz", self._subsz)
        add(self.base + "/subscriptionsz", self._subsz)
        add(self.base + "/connz", self._connz)
        add(self.base + _HEALTHZ, self._healthz)
        add(self.base + "/stacksz", self._stacksz)
        add(self.base + "/ipqueuesz", self._ipqueuesz)
        add(self.base + "/raftz", self._raftz)
        add(self.base or "/", self._front)
        for path, handler in self.more.items():
            add(self.base + path, handler)
        return app

    # --- every request

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        authorized = self.login is None or self._is_authorized(request)
        if not authorized and request.path != self.base + _HEALTHZ:
            headers = {"WWW-Authenticate": 'Basic realm="monitoring", charset="UTF-8"'}
            return web.Response(status=401, text=errors.LOGIN, headers=headers)
        fault = request.match_info.http_exception
        if fault is not None and fault.status == 404:
            clean = posixpath.normpath("/" + request.path.lstrip("/"))
            if "//" in request.path and clean != request.path:
                query = request.rel_url.raw_query_string
                location = quote(clean) + (f"?{query}" if query else "")
                return web.Response(
                    status=307,
                    text=f'<a href="{html.escape(location)}">Temporary Redirect</a>.\n\n',
                    content_type="text/html",
                    headers={"Location": location},
                )
            return web.Response(
                status=404, body=errors.NOT_FOUND.encode(), headers=_TEXT | _NO_SNIFF
            )
        try:
            return await handler(request)
        except PageError as error:
            return web.Response(status=400, body=_bytes(str(error)), headers=_TEXT)

    def _is_authorized(self, request: web.Request) -> bool:
        assert self.login is not None
        scheme, _, credentials = request.headers.get("Authorization", "").partition(" ")
        try:
            user, colon, password = base64.b64decode(credentials).partition(b":")
        except (binascii.Error, ValueError):
            return False
        user_matches = same(self.login[0], user.decode("utf-8", "surrogateescape"))
        password_matches = same(self.login[1], password.decode("utf-8", "surrogateescape"))
        return scheme.lower() == "basic" and bool(colon) and user_matches and password_matches

    # --- pages

    def _simple(self, path: str, build: Callable[[Query], Json]) -> Handler:
        async def serve(request: web.Request) -> web.StreamResponse:
            self.pages.requests[path] += 1
            return json_answer(encode(build(Query(request.query))))

        return serve

    async def _connz(self, request: web.Request) -> web.StreamResponse:
        parsed = options.ConnzOptions.from_query(Query(request.query))
        self.pages.requests["/connz"] += 1
        return await _answer_page(request, self.pages.connz(parsed), private=parsed.auth)

    async def _subsz(self, request: web.Request) -> web.StreamResponse:
        self.pages.requests["/subsz"] += 1
        parsed = options.SubszOptions.from_query(Query(request.query))
        return await _answer_page(request, self.pages.subsz(parsed))

    async def _healthz(self, request: web.Request) -> web.StreamResponse:
        self.pages.requests[_HEALTHZ] += 1
        if Query(request.query).boolean("alive"):
            return json_answer(b'{"status":"ok"}')
        health = self.pages.healthz(options.HealthzOptions.from_query(Query(request.query)))
        page = health.page
        if self.login is not None and not self._is_authorized(request):
            page = {"status": page["status"]}  # probes have no login; reasons name files
        return json_answer(encode(page, indent=False), health.code)

    async def _stacksz(self, _request: web.Request) -> web.StreamResponse:
        return json_answer(stacks())

    async def _ipqueuesz(self, request: web.Request) -> web.StreamResponse:
        Query(request.query).boolean("all")
        return json_answer(b"{}")  # Twinwire has no queues between threads

    async def _raftz(self, _request: web.Request) -> web.StreamResponse:
        return web.Response(status=404, text=errors.NO_RAFT)

    async def _front(self, _request: web.Request) -> web.StreamResponse:
        self.pages.requests["/"] += 1
        paths = (*_LINKS, *((path, path.lstrip("/")) for path in self.more))
        links = "\n".join(f'<a href=".{self.base}{path}">{name}</a>' for path, name in paths)
        page = _FRONT.format(
            name=html.escape(self.pages.server.server_name),
            version=html.escape(__version__),
            level=nats_limits.NATS_VERSION,
            links=links,
        )
        return web.Response(text=page, content_type="text/html")


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _headers(private: bool) -> dict[str, str]:
    """The headers of a page; `private`: not for other sites."""
    if private:
        return {"Content-Type": "application/json", "Cache-Control": "no-store"} | _NO_SNIFF
    return {"Content-Type": "application/json", "Access-Control-Allow-Origin": "*"}


def json_answer(body: bytes, status: int = 200) -> web.Response:
    """Answer with an encoded page."""
    return web.Response(status=status, body=body, headers=_headers(private=False))


async def _answer_page(
    request: web.Request, page: LongPage, *, private: bool = False
) -> web.StreamResponse:
    """Answer with a page: short ones at once, long ones piece by piece as the client reads."""
    headers = _headers(private)
    ready = bytearray()
    answer: web.StreamResponse | None = None
    async for part in page.parts():
        ready += part
        if len(ready) < limits.MONITOR_PIECE:
            continue
        if answer is None:
            answer = web.StreamResponse(headers=headers)
            await answer.prepare(request)
        await answer.write(bytes(ready))
        ready.clear()
    if answer is None:
        return web.Response(body=bytes(ready), headers=headers)
    await answer.write_eof(bytes(ready))
    return answer
