"""What a reload does to connections that are open."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from support import RawPeer
from support.live.nats import LiveNats

from broker.protocols.nats.conf.reader import read_text

TEXT = """accounts {
    A { users: [ {user: a, password: p} ]%s }
    B { users: [ {user: b, password: p} ] }
}
"""
EXCEEDED = b"-ERR 'maximum account active connections exceeded'\r\n"


def login(user: str) -> bytes:
    return b'CONNECT {"user":"%b","pass":"p","verbose":false}\r\nPING\r\n' % user.encode()


def reload(server: LiveNats, text: str) -> None:
    settings, mistakes = read_text(text, {}, "server.conf")
    assert mistakes == []
    settings = replace(settings, listen=server.settings.listen, http=server.settings.http)
    asyncio.run_coroutine_threadsafe(server.server.reload(settings), server.loop).result(30)


def test_the_newest_connections_above_a_lowered_limit_of_an_account() -> None:
    with LiveNats(TEXT % "") as server:
        peers = []
        for user in ("a", "a", "b", "b", "a", "a"):
            peer = RawPeer(server.nats)
            peer.send(login(user))
            peer.read_until(b"PONG\r\n")
            peers.append(peer)
        reload(server, TEXT % ", limits: { max_connections: 2 }")
        for peer in peers[4:]:
            assert peer.read_until(EXCEEDED)
        for peer in peers[:4]:
            peer.send(b"PING\r\n")
            assert peer.read_until(b"PONG\r\n")
        for peer in peers:
            peer.close()
