"""Twinwire's NSQ client against pynsq on the same server: messages per second, Writer to Reader.

Each client publishes single messages, with at most WINDOW of them unanswered, and another one of
the same library reads and finishes them in the same process. Rounds alternate between the libraries
and the ratio is taken within a round.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import statistics
import time
from collections.abc import Awaitable, Callable
from typing import Any

import nsq
import report
import servers

from broker.client.nsq import Message, Reader, Writer

ROUNDS = 3
MSGS = 20_000
SIZE_BYTES = 200
WINDOW = 500
IN_FLIGHT = 500
SILENT_SECONDS = 60.0


async def ours(address: str, topic: str, msgs: int) -> float:
    """Seconds from the first publish to the last finish."""
    body, done, left = bytes(SIZE_BYTES), asyncio.Event(), msgs

    def handle(_: Message) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            done.set()

    async with Writer(address) as writer:
        reader = Reader(topic, "ch", handle, nsqd=address, max_in_flight=IN_FLIGHT)
        await reader.start()
        await reader.connected()
        started = time.perf_counter()
        for _ in range(0, msgs, WINDOW):
            await asyncio.gather(*[writer.send(topic, body) for _ in range(WINDOW)])
        await asyncio.wait_for(done.wait(), SILENT_SECONDS)
        taken = time.perf_counter() - started
        await reader.close()
    return taken


async def theirs(address: str, topic: str, msgs: int) -> float:
    """The same with pynsq."""
    body, done, left = bytes(SIZE_BYTES), asyncio.Event(), msgs
    writing, reading = asyncio.Event(), asyncio.Event()

    def handle(_: Any) -> bool:
        nonlocal left
        left -= 1
        if left == 0:
            done.set()
        return True

    def noting(event: asyncio.Event, kind: type) -> Any:
        class Noting(kind):  # type: ignore[misc]
            def _on_connection_ready(self, conn: Any, **rest: Any) -> None:
                super()._on_connection_ready(conn, **rest)
                event.set()

        return Noting

    writer = noting(writing, nsq.Writer)([address])
    reader = noting(reading, nsq.Reader)(
        topic, "ch", message_handler=handle, nsqd_tcp_addresses=[address], max_in_flight=IN_FLIGHT
    )
    await asyncio.wait_for(asyncio.gather(writing.wait(), reading.wait()), SILENT_SECONDS)
    started = time.perf_counter()
    for _ in range(0, msgs, WINDOW):
        await _window(writer, topic, body)
    await asyncio.wait_for(done.wait(), SILENT_SECONDS)
    taken = time.perf_counter() - started
    for client in (writer, reader):
        for conn in list(client.conns.values()):
            conn.off("close", client._on_connection_close)  # otherwise it reconnects
            conn.close()
    reader.close()
    return taken


async def _window(writer: Any, topic: str, body: bytes) -> None:
    answered, waiting = asyncio.Event(), WINDOW

    def count(_: Any, data: Any) -> None:
        nonlocal waiting
        if isinstance(data, Exception):
            raise data
        waiting -= 1
        if waiting == 0:
            answered.set()

    for _ in range(WINDOW):
        writer.pub(topic, body, callback=count)
    await asyncio.wait_for(answered.wait(), SILENT_SECONDS)


Run = Callable[[str, str, int], Awaitable[float]]


async def measure(address: str, rounds: int, msgs: int) -> list[tuple[float, float]]:
    """Messages per second of Twinwire's client and of pynsq, for each round."""
    runs: list[Run] = [ours, theirs]
    for number, run in enumerate(runs):
        await run(address, f"warm-{number}", WINDOW)
    found = []
    for number in range(rounds):
        rates = [msgs / await run(address, f"t-{number}-{run.__name__}", msgs) for run in runs]
        found.append((rates[0], rates[1]))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--msgs", type=int, default=MSGS)
    parser.add_argument(
        "--server",
        default=servers.OURS,
        help="command of the server; {nsq} and {data} are replaced",
    )
    given = parser.parse_args()
    logging.getLogger("nsq").setLevel(logging.CRITICAL)  # otherwise it logs that it closes
    msgs = max(1, given.msgs // WINDOW) * WINDOW
    with servers.running(given.server, ("nsq",)) as run:
        found = asyncio.run(measure("{}:{}".format(*run.nsq), given.rounds, msgs))
    rows = [[f"{a:,.0f}", f"{b:,.0f}", f"{a / b:.1f}"] for a, b in found]
    ratio = statistics.median(a / b for a, b in found)
    print(report.about())
    print(report.table(["ours msgs/s", "pynsq msgs/s", "ratio"], rows))
    print(f"median ratio {ratio:.1f}")


if __name__ == "__main__":
    main()
