"""The client of a request, and its connection."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.net.http.connections import HttpConnection

if TYPE_CHECKING:
    from aiohttp import web

UNIX_CLIENT = "@"  # Go's name of a client of a unix socket


def client_address(request: web.Request) -> str:
    """HOST:PORT of the client, for logs."""
    peer = request.transport.get_extra_info("peername") if request.transport is not None else None
    if not isinstance(peer, tuple):
        return UNIX_CLIENT
    host, port = peer[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def continue_until_left(request: web.Request) -> None:
    """The answer to this request has no end: it stops when the client ends its side."""
    connection = request.transport and request.transport.get_protocol()
    if isinstance(connection, HttpConnection):
        connection.continue_until_left()
