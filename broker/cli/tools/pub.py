"""`twinwire pub`: publishes its arguments or the lines of stdin, as to_nsq does."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections import deque
from collections.abc import AsyncIterator
from concurrent.futures import CancelledError
from typing import Any, Final

import click

from broker.cli.tools.topics import ADDRESS, NAME, Ending, nsq_options, print_error, run
from broker.client.nsq import Options, Writer
from broker.client.nsq.limits import PORT

READ_BYTES: Final = 65_536
# Publishes without an answer: enough for a distant server, too few to fill the memory.
WINDOW_MSGS: Final = 1000
WINDOW_BYTES: Final = 4 * 1024 * 1024
CHUNKS_AHEAD: Final = 4


@click.command("pub")
@click.argument("topic", type=NAME)
@click.argument("messages", metavar="[MESSAGE]...", nargs=-1)
@click.option(
    "--nsqd-tcp-address",
    "nsqd",
    type=ADDRESS,
    multiple=True,
    default=[f"127.0.0.1:{PORT}"],
    show_default=True,
    help="Server to publish to; may be repeated.",
)
@click.option(
    "--mode",
    type=click.Choice(["all", "round-robin"]),
    default="all",
    show_default=True,
    help="With several servers: publish each message to all, or to one in turn.",
)
@click.option("--delimiter", default="\\n", show_default=True, help="End of a message on stdin.")
@click.option(
    "--rate", type=click.FloatRange(0, min_open=True), help="Maximum messages per second."
)
@click.option(
    "--producer-opt",
    "options",
    metavar="KEY=VALUE",
    multiple=True,
    callback=nsq_options,
    help="Setting of the connections, such as tls_v1 or snappy; may be repeated.",
)
def pub(topic: str, messages: tuple[str, ...], delimiter: str, **given: Any) -> None:
    """Publish each MESSAGE to TOPIC, or without a MESSAGE each line of stdin; empty lines are
    skipped.

    Exit code 0 means that the server has acknowledged every message.
    """
    ends = delimiter.encode("utf-8", "surrogateescape").decode("unicode_escape").encode("latin-1")
    if not ends:
        raise click.BadParameter("must not be empty", param_hint="--delimiter")
    bodies = _given(messages) if messages else _split(_stdin(), ends)
    run(lambda ending: _publish(topic, bodies, ending, **given))


async def _given(messages: tuple[str, ...]) -> AsyncIterator[bytes]:
    for message in messages:
        yield os.fsencode(message)


async def _stdin() -> AsyncIterator[bytes]:
    """Chunks of stdin, read by a thread: a file cannot be polled, and a terminal may never end."""
    loop = asyncio.get_running_loop()
    chunks: asyncio.Queue[bytes | OSError] = asyncio.Queue(CHUNKS_AHEAD)

    def read() -> None:
        while True:
            chunk: bytes | OSError
            try:
                chunk = os.read(sys.stdin.fileno(), READ_BYTES)
            except OSError as error:
                chunk = error
            put = chunks.put(chunk)
            try:
                asyncio.run_coroutine_threadsafe(put, loop).result()
            except CancelledError:
                return  # the loop ends
            except RuntimeError:
                put.close()
                return  # it has ended
            if not chunk or isinstance(chunk, OSError):
                return

    threading.Thread(target=read, daemon=True).start()
    while chunk := await chunks.get():
        if isinstance(chunk, OSError):
            raise chunk
        yield chunk


async def _split(chunks: AsyncIterator[bytes], ends: bytes) -> AsyncIterator[bytes]:
    """Messages without their delimiter; the last one may lack it."""
    held = bytearray()
    async for chunk in chunks:
        known = max(0, len(held) - len(ends) + 1)  # no delimiter begins before this
        held += chunk
        if held.find(ends, known) >= 0:
            *whole, rest = bytes(held).split(ends)
            held = bytearray(rest)
            for body in whole:
                if body:
                    yield body
    if held:
        yield bytes(held)


async def _publish(
    topic: str,
    bodies: AsyncIterator[bytes],
    ending: Ending,
    *,
    nsqd: tuple[str, ...],
    mode: str,
    rate: float | None,
    options: Options,
) -> None:
    groups = [[address] for address in nsqd] if mode == "all" else [list(nsqd)]
    window = _Window([Writer(group, options) for group in groups])
    for writer in window.writers:
        await writer.connect()
    try:
        await ending.during(window.publish(topic, bodies, rate))
        await window.settle()
    finally:
        if window.refused:
            print_error(
                f"{window.answered} messages published, {window.refused} without an acknowledgement"
            )
        for writer in window.writers:
            await writer.close()


class _Window:
    """Publishes that wait for their answer."""

    def __init__(self, writers: list[Writer]) -> None:
        self.writers = writers
        self.answered = self.refused = 0
        self._waiting: deque[tuple[asyncio.Future[Any], int]] = deque()
        self._bytes = 0

    async def publish(self, topic: str, bodies: AsyncIterator[bytes], rate: float | None) -> None:
        loop = asyncio.get_running_loop()
        due_s = loop.time()
        async for body in bodies:
            if rate is not None:
                await asyncio.sleep(max(0.0, due_s - loop.time()))
                due_s = max(due_s, loop.time() - 1) + 1 / rate
            for writer in self.writers:
                self._waiting.append((writer.send(topic, body), len(body)))
                self._bytes += len(body)
            while len(self._waiting) >= WINDOW_MSGS or self._bytes >= WINDOW_BYTES:
                await self._oldest()

    async def settle(self) -> None:
        """Wait for every answer; raise the first error."""
        while self._waiting:
            await self._oldest()

    async def _oldest(self) -> None:
        future, size = self._waiting[0]
        try:
            await asyncio.shield(future)
        except Exception:
            self.refused = len(self._waiting)
            for other, _ in self._waiting:
                if not other.done():
                    other.cancel()
                elif not other.cancelled():
                    other.exception()
            raise
        self._waiting.popleft()
        self._bytes -= size
        self.answered += 1
