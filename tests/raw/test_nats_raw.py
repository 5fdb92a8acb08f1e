"""NATS traps that are a matter of counting or of buffers, not of exact bytes."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

from support import RawPeer, Server, nats_peer

if TYPE_CHECKING:
    from conftest import BrokerFor

DRAWS = 3000
SLOW = {"nats": {"max_pending": 1 << 20, "max_payload": 1 << 16, "write_deadline": "2s"}}
SLOW_BODY = b"z" * (1 << 16)
SLOW_MESSAGES = 400


def _sids(peer: RawPeer, count: int) -> Counter[bytes]:
    """How many of the next `count` one-byte messages each sid got."""
    sids: Counter[bytes] = Counter()
    for _ in range(count):
        found = re.fullmatch(rb"MSG \S+ (\S+) 1\r\n", peer.read_line())
        assert found
        assert peer.read_line() == b"x\r\n"
        sids[found[1]] += 1
    return sids


def test_trap_18_queue_choice_is_per_subscription(broker: Server, uniq: str) -> None:
    """Two members on one connection get twice the share of one."""
    with nats_peer(broker.nats) as two, nats_peer(broker.nats) as one:
        two.send(f"SUB {uniq} q a\r\nSUB {uniq} q b\r\n".encode())
        two.ping()
        one.send(f"SUB {uniq} q c\r\n".encode())
        one.ping()
        with nats_peer(broker.nats) as publisher:
            publisher.send(f"PUB {uniq} 1\r\nx\r\n".encode() * DRAWS)
            publisher.ping()
        shares: Counter[bytes] = Counter()
        for peer in (one, two):
            peer.send(b"PING\r\n")
            data = peer.read_until(b"PONG\r\n")
            shares.update(re.findall(rb"MSG \S+ (\S+) 1\r\n", data))
    assert sum(shares.values()) == DRAWS
    for sid in (b"a", b"b", b"c"):  # 1000 expected each, standard deviation 26
        assert 800 < shares[sid] < 1200, shares


def test_a_wildcard_and_a_literal_member_share_evenly(broker: Server, uniq: str) -> None:
    with nats_peer(broker.nats) as peer:
        peer.send(f"SUB {uniq}.* q a\r\nSUB {uniq}.x q b\r\nSUB {uniq}.> q c\r\n".encode())
        peer.send(f"PUB {uniq}.x 1\r\nx\r\n".encode() * DRAWS)
        shares = _sids(peer, DRAWS)
        peer.ping()
    assert all(800 < count < 1200 for count in shares.values()), shares
    assert len(shares) == 3


def test_trap_35_a_slow_consumer_sees_only_the_end(broker_for: BrokerFor, uniq: str) -> None:
    """Nobody else is hurt, and what did arrive is whole messages in order."""
    server = broker_for(SLOW)
    slow = RawPeer(server.nats, receive_buffer=4096, deadline_s=30, skips_pings=True)
    with slow, nats_peer(server.nats) as publisher, nats_peer(server.nats) as bystander:
        slow.read_until(b"\r\n")
        slow.send(f'CONNECT {{"verbose":false}}\r\nSUB {uniq} 1\r\n'.encode())
        slow.ping()
        bystander.send(f"SUB {uniq}.calm 1\r\n".encode())
        bystander.ping()
        publisher.deadline_s = 40
        message = f"PUB {uniq} {len(SLOW_BODY)}\r\n".encode() + SLOW_BODY + b"\r\n"
        for _ in range(SLOW_MESSAGES):
            publisher.send(message)
        publisher.send(f"PUB {uniq}.calm 1\r\nx\r\n".encode())
        publisher.ping()
        bystander.expect(f"MSG {uniq}.calm 1 1\r\nx\r\n".encode())
        rest = slow.read_to_eof()
    assert b"-ERR" not in rest
    whole = f"MSG {uniq} 1 {len(SLOW_BODY)}\r\n".encode() + SLOW_BODY + b"\r\n"
    count, cut = divmod(len(rest), len(whole))
    assert rest == whole * count + whole[:cut]
    assert count < SLOW_MESSAGES


def test_a_large_fan_out_reaches_everyone(broker: Server, uniq: str) -> None:
    peers = [nats_peer(broker.nats) for _ in range(40)]
    for peer in peers:
        peer.send(f"SUB {uniq}.* s\r\n".encode())
        peer.ping()
    body = b"y" * 5000
    with nats_peer(broker.nats) as publisher:
        for number in range(20):
            publisher.send(f"PUB {uniq}.{number} {len(body)}\r\n".encode() + body + b"\r\n")
        publisher.ping()
    for peer in peers:
        for number in range(20):
            peer.expect(f"MSG {uniq}.{number} s {len(body)}\r\n".encode() + body + b"\r\n")
        peer.close()


def test_a_reader_that_pauses_within_the_limit_loses_nothing(broker: Server, uniq: str) -> None:
    with nats_peer(broker.nats) as peer, nats_peer(broker.nats) as publisher:
        peer.send(f"SUB {uniq} 1\r\n".encode())
        peer.ping()
        body = b"b" * 1000
        message = f"PUB {uniq} 1000\r\n".encode() + body + b"\r\n"
        publisher.send(message * 10_000)
        publisher.ping()
        peer.expect((f"MSG {uniq} 1 1000\r\n".encode() + body + b"\r\n") * 10_000)
        peer.ping()


def test_a_client_that_disappears_leaves_the_others(broker: Server, uniq: str) -> None:
    """Half a message, then a close: nothing of it is delivered."""
    with nats_peer(broker.nats) as watcher:
        watcher.send(f"SUB {uniq} 1\r\n".encode())
        watcher.ping()
        with nats_peer(broker.nats) as publisher:
            publisher.send(f"PUB {uniq} 2\r\nok\r\nPUB {uniq} 100\r\nhalf".encode())
        watcher.expect(f"MSG {uniq} 1 2\r\nok\r\n".encode())
        with nats_peer(broker.nats) as other:
            other.send(f"PUB {uniq} 3\r\nnew\r\n".encode())
            other.ping()
        watcher.expect(f"MSG {uniq} 1 3\r\nnew\r\n".encode())
        watcher.ping()
