"""Clients that bring a secret: pynsq and go-nsq."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import nsq
import pytest
from conftest import BrokerFor
from support import Server
from support.clients.http import nsq_channel
from support.servers.authd import AuthServer, Reply, grant, row

WAIT_S = 15.0


@pytest.fixture(scope="module")
def authd() -> Iterator[AuthServer]:
    """Lets in whoever says `good`."""
    with AuthServer(Reply(b"", 403)) as server:
        server.replies["good"] = grant(row())
        yield server


@pytest.fixture(scope="module")
def guarded(authd: AuthServer, broker_for: BrokerFor) -> Server:
    return broker_for({"nsq": {"auth_http_addresses": [str(authd.address)]}})


def _end(client: Any) -> None:
    for conn in list(client.conns.values()):
        conn.off("close", client._on_connection_close)  # else it reconnects after the test
        conn.close()
    if isinstance(client, nsq.Reader):
        client.close()


async def test_pynsq_with_a_secret(guarded: Server, uniq: str) -> None:
    got: asyncio.Queue[bytes] = asyncio.Queue()

    def take(message: Any) -> bool:
        got.put_nowait(message.body)
        return True

    ready = asyncio.Event()

    class Writer(nsq.Writer):  # type: ignore[misc]
        def _on_connection_ready(self, conn: Any, **rest: Any) -> None:
            super()._on_connection_ready(conn, **rest)
            ready.set()

    writer = Writer([str(guarded.nsq)], auth_secret="good")
    reader = nsq.Reader(uniq, "c", take, nsqd_tcp_addresses=[str(guarded.nsq)], auth_secret="good")
    try:
        await asyncio.wait_for(ready.wait(), WAIT_S)
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        writer.pub(uniq, b"hello", callback=lambda _, data: answer.set_result(data))
        assert await asyncio.wait_for(answer, WAIT_S) == b"OK"
        assert await asyncio.wait_for(got.get(), WAIT_S) == b"hello"
        (client,) = nsq_channel(guarded.nsq_http, uniq, "c")["clients"]
        assert (client["authed"], client["auth_identity"]) == (True, "me")
    finally:
        _end(writer)
        _end(reader)


async def test_pynsq_with_a_wrong_secret_tries_again(
    guarded: Server, authd: AuthServer, uniq: str
) -> None:
    """Refused once, let in when it comes back: by itself it would after 15 s."""
    secret = f"late {uniq}"
    replies = iter([Reply(b"", 403)])
    authd.replies[secret] = lambda: next(replies, grant(row()))
    subscribed = asyncio.Event()

    class Reader(nsq.Reader):  # type: ignore[misc]
        def _on_connection_ready(self, conn: Any, **rest: Any) -> None:
            super()._on_connection_ready(conn, **rest)
            subscribed.set()

        def _on_connection_close(self, conn: Any, **rest: Any) -> None:
            super()._on_connection_close(conn, **rest)
            if not subscribed.is_set():
                self.connection_attempts.clear()
                self.connect_to_nsqd(conn.host, conn.port)

    reader = Reader(
        uniq,
        "c",
        lambda _: True,
        nsqd_tcp_addresses=[str(guarded.nsq)],
        auth_secret=secret,
        lookupd_poll_interval=1,
    )
    try:
        await asyncio.wait_for(subscribed.wait(), 2 * WAIT_S)
    finally:
        _end(reader)
    authd.wait_asked(secret, 2)


def test_go_nsq_with_a_secret(guarded: Server, go_nsq: Any, uniq: str) -> None:
    done = go_nsq(nsqd=guarded.nsq, topic=uniq, options="auth_secret=good")
    assert done.returncode == 0, done.stderr.decode()
    assert sorted(done.stdout.split()) == [b"0", b"1", b"2"]


def test_go_nsq_with_a_wrong_secret(guarded: Server, go_nsq: Any, uniq: str) -> None:
    done = go_nsq(nsqd=guarded.nsq, topic=uniq, options="auth_secret=bad")
    assert done.returncode == 1
    assert b"E_AUTH_FAILED" in done.stderr
