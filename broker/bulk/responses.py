"""Requests and responses of the bulk API: JSON bodies, arguments, and errors as JSON."""

from __future__ import annotations

import asyncio
import logging
import re
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import orjson
from aiohttp import web

from broker.base.units import SECOND
from broker.bulk import errors, limits
from broker.bulk.errors import RefusedError, wrong

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from broker.bulk.access import Caller

log = logging.getLogger("broker.bulk")

T = TypeVar("T")
CALLER: web.RequestKey[Caller] = web.RequestKey("caller")
_INCARNATION = re.compile("[0-9a-f]{32}")


def caller_of(request: web.Request) -> Caller:
    """The caller, whom the application's middleware has identified by the token."""
    return request[CALLER]


def answer(found: object, status: int = 200) -> web.Response:
    """A response with this value as JSON."""
    body = orjson.dumps(found)
    return web.Response(body=body, status=status, content_type="application/json")


def _refuse(refusal: RefusedError) -> web.Response:
    response = answer({"error": refusal.text, **refusal.facts}, refusal.status)
    if refusal.status == HTTPStatus.UNAUTHORIZED:
        response.headers["WWW-Authenticate"] = "Bearer"
    if refusal.status in (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE):
        response.headers["Retry-After"] = str(limits.BULK_RETRY_AFTER // SECOND)
    return response


@web.middleware
async def errors_as_json(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Convert every error to a response of the same form."""
    try:
        return await handler(request)
    except RefusedError as refusal:
        return _refuse(refusal)
    except web.HTTPMethodNotAllowed as problem:
        response = _refuse(RefusedError(errors.BULK_METHOD, method=request.method))
        response.headers["Allow"] = problem.headers["Allow"]
        return response
    except web.HTTPNotFound:
        return _refuse(RefusedError(errors.BULK_NO_PATH))
    except (ConnectionError, web.HTTPException):
        raise
    except Exception:
        log.exception("request failed: %s %s", request.method, request.rel_url.raw_path)
        return _refuse(RefusedError(errors.BULK_INTERNAL))


async def read_body(request: web.Request, limit: int) -> bytes:
    """The body, of at most `limit` bytes. RefusedError: too long or too slow."""
    try:
        async with asyncio.timeout(limits.BULK_BODY_WAIT / SECOND):
            return await request.clone(client_max_size=limit).read()
    except web.HTTPRequestEntityTooLarge:
        raise RefusedError(errors.BULK_BODY_BIG, limit=limit) from None
    except TimeoutError:
        seconds = limits.BULK_BODY_WAIT // SECOND
        raise RefusedError(errors.BULK_BODY_SLOW, seconds=seconds) from None


async def read_json(
    request: web.Request, kind: type[T], limit: int = limits.BULK_BODY_BYTES_MAX
) -> T:
    """The body as this type. RefusedError."""
    return from_json(await read_body(request, limit), kind)


def from_json(text: bytes | msgspec.Raw, kind: type[T]) -> T:
    """A client's JSON as this type. RefusedError."""
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as problem:
        raise RefusedError(errors.BULK_JSON, problem=problem) from None


def number(request: web.Request, name: str, default: int | None, low: int, high: int) -> int:
    """An integer argument of the query, from `low` to `high`. RefusedError."""
    text = request.query.get(name)
    if text is None:
        if default is None:
            raise wrong(name, errors.BULK_MISSING)
        return default
    if not re.fullmatch("[0-9]{1,20}", text) or not low <= int(text) <= high:
        raise wrong(name, errors.BULK_NUMBER.format(low=low, high=high, text=text))
    return int(text)


def incarnation_of(text: str | None, name: str = "inc") -> str | None:
    """The incarnation of a log, checked: 32 hexadecimal digits, or None. RefusedError."""
    if text is not None and not _INCARNATION.fullmatch(text):
        raise wrong(name, errors.BULK_HEX.format(text=text))
    return text


Answered = dict[str, Any]
