"""Sends the body of a range in a thread instead of the loop.

Copying 128 KiB into a socket takes 25 to 200 us, in which the loop could not serve other clients. A
thread writes without the interpreter lock until the socket is full. The loop then waits until the
socket is writable, so slow clients occupy no thread.
"""

from __future__ import annotations

import asyncio
import os
import socket
from functools import partial
from typing import TYPE_CHECKING

from broker.base.units import SECOND
from broker.bulk import limits

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiohttp import web

    from broker.engine.bulk.background import Outgoing

    Send = Callable[[socket.socket, Outgoing], asyncio.Future[bool]]


async def duplicate_socket(request: web.Request) -> socket.socket | None:
    """A duplicate of the connection's socket, after all earlier output is in the socket. The caller
    closes it. None: the connection uses TLS.

    TimeoutError: the client has read nothing for BULK_STALL. ConnectionError: it has disconnected.
    OSError: no descriptor is free.
    """
    transport = request.transport
    if transport is None:
        raise ConnectionResetError
    original = transport.get_extra_info("socket")
    if original is None or transport.get_extra_info("ssl_object") is not None:
        return None
    transport.set_write_buffer_limits(0)
    try:
        async with asyncio.timeout(limits.BULK_STALL / SECOND):
            await request.writer.drain()
    finally:
        transport.set_write_buffer_limits()
    if original.fileno() < 0:
        raise ConnectionResetError
    # Duplicated, because the number of a closed connection's socket may be used again.
    return socket.socket(original.family, original.type, original.proto, os.dup(original.fileno()))


async def send_in_thread(sock: socket.socket, outgoing: Outgoing, send: Send) -> None:
    """Send the rest of `outgoing`, and close `sock`. TimeoutError: the client has read nothing for
    BULK_STALL. ConnectionError: it has disconnected. OSError: the body cannot be read."""
    job: asyncio.Future[bool] | None = None
    try:
        while True:
            job = send(sock, outgoing)
            if await asyncio.shield(job):
                break
            await _wait_writable(sock)
    finally:
        if job is None or job.done():
            sock.close()
        else:  # the thread still uses it
            job.add_done_callback(partial(_close, sock))
        job = None  # its exception refers to this frame, which would keep the body in memory


def _close(sock: socket.socket, job: asyncio.Future[bool]) -> None:
    if not job.cancelled():
        job.exception()  # retrieved, because no other code does
    sock.close()


async def _wait_writable(sock: socket.socket) -> None:
    """Wait until the socket is writable. TimeoutError."""
    loop = asyncio.get_running_loop()
    ready = loop.create_future()
    loop.add_writer(sock, _set_ready, ready)
    try:
        async with asyncio.timeout(limits.BULK_STALL / SECOND):
            await ready
    finally:
        loop.remove_writer(sock)


def _set_ready(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)
