"""The HTTP application of the console: checks requests, calls their handlers, and logs changes.

Each path of openapi.json has one handler with the name of its operation. Other paths are files of
the page, or addresses of nsqadmin, which are redirected to the page.
"""

from __future__ import annotations

import asyncio
import logging
import time
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, quote, unquote, urlsplit

import orjson
from aiohttp import web

from broker import __version__
from broker.base.gotext import duration_text
from broker.base.logs import fields
from broker.base.units import SECOND
from broker.console import assets, errors, limits
from broker.console.api import handlers_of
from broker.console.api.jetstream.objects import stored_object
from broker.console.api.tail import tail
from broker.console.context import Call
from broker.console.errors import RefusedError
from broker.console.events import Streams
from broker.console.schema import FILE, Operations
from broker.net.http.requests import client_address

if TYPE_CHECKING:
    from broker.console.access import Caller
    from broker.console.context import ConsoleContext, Handlers
    from broker.console.schema import Operation

log = logging.getLogger("broker.console")

# Browsers require that a cookie with the prefix __Host- is Secure, with the path / and no domain.
SECURE_COOKIE: Final = "__Host-twinwire"
PLAIN_COOKIE: Final = "twinwire"  # over plain HTTP, where browsers refuse SECURE_COOKIE
CHANGE_HEADER: Final = "Twinwire-Console"  # a page of another site cannot set it
PREFIX: Final = "/v1/"
DOCUMENT: Final = FILE.read_bytes()
_SECURITY: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "font-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_QUIET: Final = frozenset({"login", "logout"})  # their handlers log them
# Fields of a request's body that are not logged, because they have the contents of messages.
_UNLOGGED: Final = frozenset({"body", "headers", "encoding", "password"})


def answer(found: object, status: int = 200) -> web.Response:
    """A response with this value as JSON."""
    return web.Response(
        body=orjson.dumps(found),
        status=status,
        content_type="application/json",
        headers={"Cache-Control": "no-store"},
    )


def refuse(refusal: RefusedError) -> web.Response:
    """The response of an error."""
    response = answer(refusal.page(), refusal.status)
    if refusal.status == HTTPStatus.UNAUTHORIZED:
        response.headers["WWW-Authenticate"] = "Bearer"
    if refusal.status == HTTPStatus.TOO_MANY_REQUESTS:
        response.headers["Retry-After"] = str(limits.LOGIN_WINDOW // SECOND)
    return response


class ConsoleApp:
    """The routes of one listener."""

    def __init__(self, context: ConsoleContext) -> None:
        self.context = context
        self.access = context.access
        self.operations = Operations(DOCUMENT)
        self.streams = Streams()
        self.handlers: Handlers = handlers_of(context)
        # These need the request itself.
        self.request_handlers = {
            "session": self._session,
            "login": self._login,
            "logout": self._logout,
            "openapi": self._openapi,
            "events": self._events,
            "tail": self._tail,
            "streamObject": self._object,
        }
        context.history.begin()

    def build(self) -> web.Application:
        """The aiohttp application."""
        app = web.Application()
        app.on_response_prepare.append(_with_security)
        app.router.add_route("*", "/{path:.*}", self._serve)
        return app

    def stop(self) -> None:
        """End streams, and refuse new requests."""
        self.streams.stop()
        self.context.history.end()

    # --- every request

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        path = request.rel_url.raw_path
        if not path.startswith(PREFIX):
            return self._page(request, path)
        try:
            return await self._answer(request, path)
        except RefusedError as refusal:
            return refuse(refusal)
        except (ConnectionError, web.HTTPException):
            raise
        except Exception:
            log.exception("request failed: %s %s", request.method, path)
            return refuse(RefusedError(errors.INTERNAL))

    async def _answer(self, request: web.Request, path: str) -> web.StreamResponse:
        if self.streams.stopping:
            raise RefusedError(errors.STOPPING)
        operation, names = self.operations.find(request.method, path)
        caller = self.access.caller(request.headers.get("Authorization"), _cookie(request))
        changes = operation.method != "GET"
        start_ns = time.monotonic_ns()
        status = HTTPStatus.INTERNAL_SERVER_ERROR.value
        call = None
        try:
            if changes and not caller.by_token and request.headers.get(CHANGE_HEADER) != "1":
                raise RefusedError(errors.FORGED)
            call = await self._call(request, operation, names, caller)
            handler = self.request_handlers.get(operation.name)
            if handler is not None:
                response = await handler(request, call)
            else:
                response = answer(await self.handlers[operation.name](call))
            status = response.status
            return response
        except RefusedError as refusal:
            status = refusal.status
            raise
        finally:
            if changes and operation.name not in _QUIET:
                body = None if call is None else call.body
                self._audit(request, caller, body, status, time.monotonic_ns() - start_ns)

    async def _call(
        self, request: web.Request, operation: Operation, names: dict[str, str], caller: Caller
    ) -> Call:
        """The checked request. RefusedError."""
        self._permit(operation, caller)
        query = operation.arguments(request.query)
        body = None
        if operation.body is not None:
            if request.content_type != "application/json":
                raise RefusedError(errors.BODY_TYPE)
            body = operation.content(await _read(request))
        return Call(operation, names, query, body, caller, client_address(request))

    def _permit(self, operation: Operation, caller: Caller) -> None:
        if operation.role is not None and caller.role is None:
            raise RefusedError(errors.UNAUTHENTICATED)
        if not caller.may(operation.role):
            raise RefusedError(errors.FORBIDDEN, role=operation.role)
        if self.context.config.read_only and operation.method != "GET" and operation.role:
            raise RefusedError(errors.READ_ONLY)

    @staticmethod
    def _audit(
        request: web.Request, caller: Caller, body: Any, status: int, elapsed_ns: int
    ) -> None:
        """Log a change with its caller, in the form of the NSQ HTTP API."""
        fields_of_body = {} if body is None else body
        body = {k: v for k, v in fields_of_body.items() if v is not None and k not in _UNLOGGED}
        details = fields(**{**body, "user": caller.user or "-", "role": caller.role or "-"})
        client, elapsed = client_address(request), duration_text(elapsed_ns)
        uri = request.rel_url.raw_path_qs
        log.info("%d %s %s (%s) %s", status, request.method, uri, client, elapsed, extra=details)

    # --- logins

    def _session_page(self, caller: Caller) -> dict[str, Any]:
        return {
            "user": caller.user,
            "role": caller.role,
            "login": not self.access.is_open,
            "read_only": self.context.config.read_only,
            "server": self.context.server_name,
            "version": __version__,
        }

    async def _session(self, _request: web.Request, call: Call) -> web.Response:
        """The user and role of the caller."""
        return answer(self._session_page(call.caller))

    async def _login(self, request: web.Request, call: Call) -> web.Response:
        """Check a password and set the cookie."""
        user, host = call.body["user"], call.client.rpartition(":")[0]
        details = fields(user=user, client=call.client)
        try:
            value, caller = await self.access.login(user, call.body["password"], host)
        except RefusedError as refusal:
            log.warning("login refused: %s", refusal.code, extra=details)
            raise
        log.info("login", extra=details)
        response = answer(self._session_page(caller))
        secure = _is_secure(request)
        response.set_cookie(
            SECURE_COOKIE if secure else PLAIN_COOKIE,
            value,
            path="/",
            max_age=self.access.ttl_s,
            secure=secure,
            httponly=True,
            samesite="Strict",
        )
        return response

    async def _logout(self, request: web.Request, call: Call) -> web.Response:
        """End the login and remove the cookie."""
        self.access.logout(_cookie(request))
        self.streams.recheck()
        log.info("logout", extra=fields(user=call.caller.user or "-", client=call.client))
        response = answer({"done": True})
        for name, secure in ((SECURE_COOKIE, True), (PLAIN_COOKIE, False)):
            response.del_cookie(name, path="/", secure=secure, httponly=True, samesite="Strict")
        return response

    async def _openapi(self, _request: web.Request, _call: Call) -> web.Response:
        return web.Response(body=DOCUMENT, content_type="application/json")

    # --- live

    async def _events(self, request: web.Request, call: Call) -> web.StreamResponse:
        """Send the answers of another request whenever they change."""
        url = urlsplit(call.query["of"])
        operation, names = self.operations.find("GET", url.path)
        if not operation.live:
            raise RefusedError(errors.NOT_LIVE, path=url.path)
        self._permit(operation, call.caller)
        query = operation.arguments(dict(parse_qsl(url.query, keep_blank_values=True)))
        followed = Call(operation, names, query, None, call.caller, call.client)
        handler = self.handlers[operation.name]
        is_overview = operation.name == "overview"
        interval_ns = limits.OVERVIEW_INTERVAL if is_overview else limits.EVENTS_INTERVAL
        events = self.streams.follow(call.query["of"], lambda: handler(followed), interval_ns)
        return await self._stream(request, call, events)

    async def _tail(self, request: web.Request, call: Call) -> web.StreamResponse:
        """New messages of a topic or a subject."""
        return await self._stream(request, call, tail(self.context, call))

    async def _object(self, request: web.Request, call: Call) -> web.StreamResponse:
        """The content of an object. The connection is aborted if the object is damaged."""
        found = stored_object(self.context, call)
        name = quote(found.name.rsplit("/", 1)[-1], safe="")
        response = web.StreamResponse(
            headers={
                "Content-Type": "application/octet-stream",
                "Content-Length": str(found.size),
                "Content-Disposition": f"attachment; filename*=UTF-8''{name}",
                "Cache-Control": "no-store",
            }
        )
        await response.prepare(request)
        try:
            async for piece in found.pieces():
                await response.write(piece)
        except ValueError as problem:
            log.error("damaged object: %s", problem)
            if request.transport is not None:
                request.transport.abort()
        return response

    async def _stream(self, request: web.Request, call: Call, events: Any) -> web.StreamResponse:
        return await self.streams.serve(request, events, lambda: self.access.is_valid(call.caller))

    # --- files

    def _page(self, request: web.Request, path: str) -> web.Response:
        if request.method not in ("GET", "HEAD"):
            return refuse(RefusedError(errors.METHOD, method=request.method))
        name = unquote(path).lstrip("/") or assets.FRONT
        found = assets.ASSETS.get(name)
        if found is not None:
            return found.response(request)
        target = nsqadmin_target(path)
        if target is None:
            return refuse(RefusedError(errors.NOT_FOUND))
        return web.Response(status=HTTPStatus.FOUND, headers={"Location": target})


def nsqadmin_target(path: str) -> str | None:
    """The address in the console for one of nsqadmin; None if nsqadmin has no such page."""
    head, *names = path.strip("/").split("/")
    names = [quote(unquote(name), safe="") for name in names]
    found = None
    match head, names:
        case "topics", [topic]:
            found = f"/#topic?topic={topic}"
        case "topics", [topic, channel]:
            found = f"/#channel?topic={topic}&channel={channel}"
        case (("topics" | "lookup"), []):
            found = "/#topics"
        case "nodes", _:
            found = "/#nats"
        case "counter", []:
            found = "/#overview"
    return found


def _is_secure(request: web.Request) -> bool:
    # A proxy that ends TLS sets it. A client that sets it without TLS cannot use the cookie.
    return request.secure or request.headers.get("X-Forwarded-Proto", "") == "https"


def _cookie(request: web.Request) -> str | None:
    return request.cookies.get(SECURE_COOKIE) or request.cookies.get(PLAIN_COOKIE)


async def _read(request: web.Request) -> bytes:
    limit = limits.CONSOLE_BODY_BYTES_MAX
    try:
        async with asyncio.timeout(limits.CONSOLE_BODY_WAIT / SECOND):
            return await request.clone(client_max_size=limit).read()
    except web.HTTPRequestEntityTooLarge:
        raise RefusedError(errors.BODY_BIG, limit=limit) from None
    except TimeoutError:
        seconds = limits.CONSOLE_BODY_WAIT // SECOND
        raise RefusedError(errors.BODY_SLOW, seconds=seconds) from None


async def _with_security(_request: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(_SECURITY)
