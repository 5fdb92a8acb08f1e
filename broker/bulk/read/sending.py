"""Sends the body of a range past the loop: a thread copies it into the socket.

Copying 128 KiB into a socket takes 25 to 200 us, in which the loop would answer nobody. A thread
without the interpreter sends until the socket is full, and the loop waits for room: slow clients
hold no thread.
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


async def socket_past_loop(request: web.Request) -> socket.socket | None:
    """A second descriptor of the connection's socket, once all that was written is in the socket.
    Close it. None: this connection encrypts.

    TimeoutError: the client has read nothing for BULK_STALL. ConnectionError: it is gone. OSError:
    there is no descriptor for it.
    """
    transport = request.transport
    if transport is None:
        raise ConnectionResetError
    own = transport.get_extra_info("socket")
    if own is None or transport.get_extra_info("ssl_object") is not None:
        return None
    transport.set_write_buffer_limits(0)
    try:
        async with asyncio.timeout(limits.BULK_STALL / SECOND):
            await request.writer.drain()
    finally:
        transport.set_write_buffer_limits()
    if own.fileno() < 0:
        raise ConnectionResetError
    # If the connection is closed, its own number may soon be another connection's.
    return socket.socket(own.family, own.type, own.proto, os.dup(own.fileno()))


async def send_past_loop(sock: socket.socket, outgoing: Outgoing, send: Send) -> None:
    """Send what is left of `outgoing`, and close `sock`. TimeoutError: the client has read nothing
    for BULK_STALL. ConnectionError: it is gone. OSError: the body does not read."""
    job: asyncio.Future[bool] | None = None
    try:
        while True:
            job = send(sock, outgoing)
            if await asyncio.shield(job):
                break
            await _room(sock)
    finally:
        if job is None or job.done():
            sock.close()
        else:  # the thread still uses it
            job.add_done_callback(partial(_close, sock))


def _close(sock: socket.socket, job: asyncio.Future[bool]) -> None:
    if not job.cancelled():
        job.exception()  # nobody else asks for it
    sock.close()


async def _room(sock: socket.socket) -> None:
    """Wait until the socket takes more. TimeoutError."""
    loop = asyncio.get_running_loop()
    ready = loop.create_future()
    loop.add_writer(sock, _set, ready)
    try:
        async with asyncio.timeout(limits.BULK_STALL / SECOND):
            await ready
    finally:
        loop.remove_writer(sock)


def _set(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)
