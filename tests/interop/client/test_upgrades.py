"""TLS and compression, alone and together, wherever the server offers them."""

from __future__ import annotations

import asyncio
import gc
import ssl
from pathlib import Path
from typing import Any

import pytest
from support import Server, ServerError
from support.certificates import make_certificate
from support.clients.inbox import Inbox, Open
from support.servers.nsqd import StartNsq, identify, supports_upgrades

from broker.client.nsq import ConnectError, Options, Writer

WAYS: dict[str, dict[str, Any]] = {
    "snappy": {"snappy": True},
    "deflate": {"deflate": True},
    "deflate at 1": {"deflate": True, "deflate_level": 1},
    "tls": {"tls": True},
    "tls and snappy": {"tls": True, "snappy": True},
    "tls and deflate": {"tls": True, "deflate": True},
}


def _options(wishes: dict[str, Any], certificate: Path) -> Options:
    if "tls" not in wishes:
        return Options(**wishes)
    context = ssl.create_default_context(cafile=str(certificate))
    return Options(**{**wishes, "tls": context})


@pytest.mark.parametrize("way", WAYS)
async def test_both_directions(
    start_nsq: StartNsq, tmp_path: Path, opened: Open, uniq: str, way: str
) -> None:
    certificate, key = make_certificate(tmp_path)
    try:
        server = start_nsq({"nsq": {"tls_cert": str(certificate), "tls_key": str(key)}})
    except ServerError:
        pytest.skip("the server knows no TLS")
    if not supports_upgrades(server):
        pytest.skip("the server offers no upgrades")
    options = _options(WAYS[way], certificate)
    bodies = [b"%d " % n * (n * 37 % 3000 + 1) for n in range(200)] + [bytes(200_000)]
    async with Writer(str(server.nsq), options) as writer:
        await asyncio.gather(*[writer.pub(uniq, body) for body in bodies])
    inbox = Inbox()
    await opened(server, uniq, inbox, options=options, max_in_flight=50)
    got = []
    for _ in bodies:
        message = await inbox.next()
        got.append(message.body)
        message.finish()
    assert sorted(got) == sorted(bodies)


async def test_no_tls_no_connection(server: Server) -> None:
    """What was to be secret is not sent in the open."""
    if identify(server.nsq, tls_v1=True).get("tls_v1"):
        pytest.skip("this server has a certificate")
    options = Options(tls=ssl.create_default_context(), auth_secret="secret")
    with pytest.raises(ConnectError, match="no TLS"):
        await Writer(str(server.nsq), options).connect()


async def test_a_stranger_with_a_certificate(start_nsq: StartNsq, tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    try:
        server = start_nsq({"nsq": {"tls_cert": str(certificate), "tls_key": str(key)}})
    except ServerError:
        pytest.skip("the server knows no TLS")
    unhandled: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, what: unhandled.append(what))
    with pytest.raises(ConnectError):
        await Writer(str(server.nsq), Options(tls=ssl.create_default_context())).connect()
    await asyncio.sleep(0)  # the transport of the refused handshake ends in another turn
    gc.collect()  # which is when a failure that nobody has looked at is reported
    assert unhandled == []
