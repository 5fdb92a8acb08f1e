"""The common part of nsqd's HTTP APIs: routes, redirects, queries, JSON errors.

* known path, known method: the handler; it returns None for an empty answer, str for plain text,
  anything else for JSON
* known path, other method: 405 with Allow (HEAD as well), 200 for OPTIONS
* path in another case or with surplus slashes, known method: 301 for GET, 307 for the rest
* anything else: 404

A route whose path ends in `/:` matches any single name there.
"""

from __future__ import annotations

import logging
import posixpath
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from html import escape
from http import HTTPStatus
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote, unquote

import orjson
from aiohttp import ClientError, web

from broker.base.gotext import duration_text
from broker.net.http.errors import HttpError, http_error
from broker.net.http.requests import client_address
from broker.protocols.nsq.http import errors

if TYPE_CHECKING:
    from broker.engine.log.log import Log
    from broker.protocols.nsq.topics import Topics

LOG = logging.getLogger("broker.nsq.http")

CONTENT_TYPE = "X-Nsq-Content-Type"  # if set, go-nsq expects JSON without a wrapper
CONTENT_TYPE_VALUE = "nsq; version=1.0"
_PERCENT = re.compile(rb"%(?![0-9A-Fa-f]{2})")
_TEXT = "text/plain; charset=utf-8"
_JSON = "application/json; charset=utf-8"


class ApiError(Exception):
    """Raised by a handler to answer with an error."""

    def __init__(self, error: HttpError, *, close: bool = False, text: str | None = None) -> None:
        """`close`: do not read the rest of the request. `text`: the answer instead of JSON."""
        super().__init__(error.code)
        self.error = error
        self.close = close
        self.text = text


def reason_of(problem: OSError) -> str:
    """The system's text for an error, without the file's name if that is possible."""
    return problem.strerror or str(problem)


def find_topic(topics: Topics, name: str, *rights: int) -> Log:
    """The topic of that name; ApiError if it is unknown or a stream of JetStream, or if the request
    lacks one of `rights`."""
    log = topics.log(name)
    if log is None:
        if name in topics.streams:
            raise ApiError(errors.NSQ_HTTP_STREAM)
        raise ApiError(errors.NSQ_HTTP_UNKNOWN_TOPIC)
    if not all(topics.access.may_topic(log, right) for right in rights):
        raise ApiError(errors.NSQ_HTTP_FORBIDDEN)
    return log


class Query:
    """The arguments of a request, decoded as Go's url.ParseQuery does; the first value is used.

    They are parsed at the first access, because some requests must fail before that.
    """

    def __init__(self, raw: str) -> None:
        self._raw = raw
        self._values: dict[str, str] | None = None

    def get(self, name: str) -> str | None:
        """The value; None if the argument is missing."""
        if self._values is None:
            self._values = _parse(self._raw)
        return self._values.get(name)

    def flag(self, name: str, default: bool) -> bool:
        """The value of true, 1, false or 0; the default for anything else."""
        flags = {"true": True, "1": True, "false": False, "0": False}
        return flags.get(self.get(name) or "", default)


def _parse(raw: str) -> dict[str, str]:
    values: dict[str, str] = {}
    for pair in raw.encode("utf-8", "surrogateescape").split(b"&"):
        if b";" in pair or _PERCENT.search(pair):
            raise ApiError(errors.NSQ_HTTP_REQUEST)
        if pair:
            key, _, value = pair.partition(b"=")
            values.setdefault(_unquote(key), _unquote(value))
    return values


def _unquote(text: bytes) -> str:
    text = text.replace(b"+", b" ")
    raw = re.sub(rb"%([0-9A-Fa-f]{2})", lambda m: bytes([int(m[1], 16)]), text)
    return raw.decode("utf-8", "surrogateescape")


class Encoded(bytes):
    """Encoded JSON."""


Answer = str | float | dict[str, object] | list[str | float] | Encoded | None
Handler = Callable[[web.Request, Query], Awaitable[Answer]]


class Route(NamedTuple):
    """The handler for one method of one path."""

    handler: Handler
    versioned: bool = True  # whether the answer has the API's version in a header
    publishes: bool = False  # such requests are too frequent to be logged


Routes = Mapping[str, Mapping[str, Route]]  # path -> method -> route
_ANY = ":"


def _respond(answer: Answer, *, versioned: bool = True, status: int = 200) -> web.Response:
    headers = {CONTENT_TYPE: CONTENT_TYPE_VALUE} if versioned else {}
    if answer is None:
        return web.Response(status=status, headers=headers)
    body: bytes
    if isinstance(answer, Encoded):
        body, kind = answer, _JSON
    elif isinstance(answer, str):
        body, kind = answer.encode("utf-8", "surrogateescape"), _TEXT
    else:
        body, kind = orjson.dumps(answer), _JSON
    return web.Response(status=status, body=body, headers={**headers, "Content-Type": kind})


def _refuse(error: HttpError, refusal: ApiError | None = None) -> web.Response:
    if refusal is not None and refusal.text is not None:
        return _respond(refusal.text, versioned=False, status=error.status)
    response = _respond({"message": error.code}, status=error.status)
    if refusal is not None and refusal.close:
        response.force_close()
    return response


def _log_change(request: web.Request, uri: str, status: int, elapsed_ns: int) -> None:
    """Log who changed something, in nsqd's format."""
    client, elapsed = client_address(request), duration_text(elapsed_ns)
    LOG.info("%d %s %s (%s) %s", status, request.method, uri, client, elapsed)


class _Dispatcher:
    def __init__(self, routes: Routes) -> None:
        self.routes = routes
        self.folded = {posixpath.normpath(path).lower(): path for path in routes}

    def _find(self, path: str) -> Mapping[str, Route] | None:
        head, _, name = path.rpartition("/")
        return self.routes.get(path) or (self.routes.get(f"{head}/{_ANY}") if name else None)

    def _known(self, clean: str) -> tuple[str, str] | None:
        """For a path in another case: its key in `routes`, and the path to redirect to."""
        if known := self.folded.get(clean.lower()):
            return known, known
        head, _, name = clean.rpartition("/")
        known = self.folded.get(f"{head}/{_ANY}".lower())
        return (known, known.removesuffix(_ANY) + name) if known else None

    async def serve(self, request: web.Request) -> web.Response:
        raw = request.raw_path
        if not raw.startswith("/"):  # the absolute form, which proxies send
            raw = "/" + raw.partition("://")[2].partition("/")[2]
        path, _, query = raw.partition("?")
        path = unquote(path, errors="surrogateescape")
        methods = self._find(path)
        if methods is None:
            return self._elsewhere(request.method, path, query)
        route = methods.get(request.method)
        if route is None:
            return self._other_method(request.method, methods)
        start_ns = time.monotonic_ns()
        response = await self._answer(route, request, path, query)
        if request.method != "GET" and not route.publishes:
            _log_change(request, raw, response.status, time.monotonic_ns() - start_ns)
        return response

    @staticmethod
    async def _answer(route: Route, request: web.Request, path: str, query: str) -> web.Response:
        try:
            return _respond(await route.handler(request, Query(query)), versioned=route.versioned)
        except ApiError as refusal:
            return _refuse(refusal.error, refusal)
        except OSError as problem:
            # A peer that has closed its connection or is silent is not an error of the disk.
            peer = isinstance(problem, ConnectionError | TimeoutError)
            if request.method == "GET" or peer:
                LOG.exception("%s %s failed", request.method, path)
                return _refuse(errors.NSQ_HTTP_INTERNAL)
            reason = reason_of(problem)
            LOG.error("%s %s failed: %s", request.method, path, reason)
            return _refuse(http_error(errors.NSQ_NOT_SAVED, reason=reason))
        except Exception:
            LOG.exception("%s %s failed", request.method, path)
            return _refuse(errors.NSQ_HTTP_INTERNAL)

    @staticmethod
    def _other_method(method: str, methods: Mapping[str, Route]) -> web.Response:
        allow = ", ".join(sorted([*methods, "OPTIONS"]))
        if method == "OPTIONS":
            response = _respond(None, versioned=False)
        else:
            response = _refuse(errors.NSQ_HTTP_METHOD)
        response.headers["Allow"] = allow
        return response

    def _elsewhere(self, method: str, path: str, query: str) -> web.Response:
        found = self._known(posixpath.normpath("/" + path.lstrip("/")))
        if found is None or method not in self.routes[found[0]]:
            return _refuse(errors.NSQ_HTTP_NOT_FOUND)
        clean = quote(found[1], errors="surrogateescape")
        location = f"{clean}?{query}" if query else clean
        if method != "GET":
            return web.Response(
                status=HTTPStatus.TEMPORARY_REDIRECT, headers={"Location": location}
            )
        return web.Response(
            status=HTTPStatus.MOVED_PERMANENTLY,
            headers={"Location": location, "Content-Type": "text/html; charset=utf-8"},
            body=f'<a href="{escape(location)}">Moved Permanently</a>.\n\n'.encode(),
        )


async def _plain_headers(request: web.Request, response: web.StreamResponse) -> None:
    response.headers.pop("Server", None)
    if isinstance(response, web.Response) and not response.body and request.method != "HEAD":
        response.headers.pop("Content-Type", None)


def make_app(routes: Routes, body_max: int) -> web.Application:
    """An application with these routes; handlers read bodies of up to `body_max` bytes."""
    app = web.Application(client_max_size=body_max)
    app.on_response_prepare.append(_plain_headers)
    app.router.add_route("*", "/{path:.*}", _Dispatcher(routes).serve)
    return app


def make_refusing_app(status: HTTPStatus, text: Callable[[], str]) -> web.Application:
    """An application that answers every request with this JSON."""

    async def refuse(_request: web.Request) -> web.Response:
        headers = {CONTENT_TYPE: CONTENT_TYPE_VALUE, "Content-Type": _JSON}
        return web.Response(status=status, body=text().encode(), headers=headers)

    app = web.Application()
    app.on_response_prepare.append(_plain_headers)
    app.router.add_route("*", "/{path:.*}", refuse)
    return app


async def read_body(request: web.Request, most: int, error: HttpError) -> bytes:
    """Read the body; ApiError as soon as it exceeds `most` bytes, or does not arrive."""
    if (request.content_length or 0) > most:
        raise ApiError(error, close=True)
    parts, size = [], 0
    try:
        async for part in request.content.iter_any():
            size += len(part)
            if size > most:
                raise ApiError(error, close=True)
            parts.append(part)
    except (ConnectionError, ClientError, web.RequestPayloadError) as problem:
        # the client has closed the connection, or its chunks are malformed
        raise ApiError(errors.NSQ_HTTP_INTERNAL, close=True) from problem
    return b"".join(parts)
