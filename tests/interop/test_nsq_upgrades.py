"""TLS and compression with the classic NSQ client."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nsq
import pytest
from support import Server
from support.authority import Authority

WAIT_S = 15.0
StartBroker = Callable[..., Server]
WISHES: list[dict[str, Any]] = [
    {"snappy": True},
    {"deflate": True},
    {"deflate": True, "deflate_level": 1},
    {"tls_v1": True},
    {"tls_v1": True, "snappy": True},
    {"tls_v1": True, "deflate": True},
]


def settings_of(authority: Authority, **more: object) -> dict[str, Any]:
    cert, key = map(str, authority.issue("server"))
    return {"nsq": {"tls_cert": cert, "tls_key": key, "https": "127.0.0.1:0", **more}}


@pytest.mark.parametrize("wish", WISHES, ids="+".join)
async def test_pynsq(
    start_broker: StartBroker, tmp_path: Path, uniq: str, wish: dict[str, Any]
) -> None:
    authority = Authority(tmp_path)
    server = start_broker(settings_of(authority))
    options = dict(wish)
    if "tls_v1" in wish:
        options["tls_options"] = {"ca_certs": str(authority.file), "cert_reqs": ssl.CERT_REQUIRED}
    got: asyncio.Queue[bytes] = asyncio.Queue()

    def take(message: Any) -> bool:
        got.put_nowait(message.body)
        return True

    ready = asyncio.Event()
    connected = ready.set

    class Writer(nsq.Writer):  # type: ignore[misc]
        def _on_connection_ready(self, conn: Any, **rest: Any) -> None:
            super()._on_connection_ready(conn, **rest)
            connected()

    writer = Writer([str(server.nsq)], **options)
    reader = nsq.Reader(
        uniq, "c", message_handler=take, nsqd_tcp_addresses=[str(server.nsq)], **options
    )
    try:
        await asyncio.wait_for(ready.wait(), WAIT_S)
        bodies = [b"small", b"compressible " * 50_000, *(b"%d" % n for n in range(100))]
        for body in bodies:
            answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            writer.pub(uniq, body, callback=lambda _, data, answer=answer: answer.set_result(data))
            assert await asyncio.wait_for(answer, WAIT_S) == b"OK"
        found = [await asyncio.wait_for(got.get(), WAIT_S) for _ in bodies]
        assert sorted(found) == sorted(bodies)
    finally:
        reader.close()
        for conn in list(writer.conns.values()):
            conn.off("close", writer._on_connection_close)  # else it reconnects after the test
            conn.close()
