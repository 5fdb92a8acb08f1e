"""Connections that are gone: what is remembered of them, and how much."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from broker.protocols.nats.auth.authenticator import Identity, TlsPeer
from broker.protocols.nats.monitoring.closed import (
    HIDDEN,
    ClosedConnections,
    closed_connection,
    raw_user,
)
from broker.protocols.nats.wire.options import ClientOptions

Sub = tuple[bytes, bytes, bytes, int, int]


@dataclass
class Gone:
    client_id: int = 1
    subs: int = 0
    kind: str = "STANDARD"
    host: str = "127.0.0.1"
    port: int = 5
    account: Any = None
    identity: Identity | None = None
    options: ClientOptions | None = None
    tls_peer: TlsPeer | None = None
    start_ns: int = 1
    active_ns: int = 1
    rtt_ns: int = 2
    pending_bytes: int = 3
    in_msgs: int = 4
    out_msgs: int = 5
    in_bytes: int = 6
    out_bytes: int = 7
    closed_because: str | None = "Kicked"
    listed: list[int] = field(default_factory=list)

    @property
    def subscriptions(self) -> int:
        return self.subs

    def list_subs(self, most: int = -1) -> list[Sub]:
        raise AssertionError(most)

    def list_removed_subs(self, most: int) -> list[Sub]:
        self.listed.append(most)
        return [(b"a", b"", b"%d" % sid, 0, 0) for sid in range(min(self.subs, most))]


def ids(ring: ClosedConnections) -> list[int]:
    return [record.client_id for record in ring]


def test_the_last_ones_are_kept() -> None:
    ring = ClosedConnections(3)
    for client_id in range(1, 6):
        ring.add(Gone(client_id))
    assert ids(ring) == [3, 4, 5]
    assert ring.total == 5
    ring.resize(1)
    assert ids(ring) == [5]


def test_none_are_kept() -> None:
    ring = ClosedConnections(0)
    assert ring.add(Gone()) is None
    assert len(ring) == 0


def test_subscriptions_are_bounded_in_all() -> None:
    ring = ClosedConnections(10, subs_most=100)
    ring.add(Gone(1, subs=60))
    ring.add(Gone(2, subs=30))
    assert ring.subs_total == 90
    ring.add(Gone(3, subs=40))
    assert [len(record.subs) for record in ring] == [0, 30, 40]
    assert [record.subscriptions for record in ring] == [60, 30, 40]
    ring.add(Gone(4, subs=1_000_000))
    assert [len(record.subs) for record in ring] == [0, 0, 0, 100]
    assert ring.subs_total == 100


def test_a_million_subscriptions_are_not_even_listed() -> None:
    gone = Gone(subs=1_000_000)
    ClosedConnections(10, subs_most=100).add(gone)
    assert gone.listed == [100]


def test_the_count_of_subscriptions_follows_those_that_leave_the_ring() -> None:
    ring = ClosedConnections(2, subs_most=100)
    for client_id in range(50):
        ring.add(Gone(client_id, subs=7 if client_id % 2 else 0))
    assert ring.subs_total == sum(len(record.subs) for record in ring) == 7


def options(**given: str) -> ClientOptions:
    made = ClientOptions()
    for name, value in given.items():
        setattr(made, name, value)
    return made


@pytest.mark.parametrize(
    ("options", "known", "shown"),
    [
        (options(user="u", password="secret"), "", "u"),
        (options(nkey="UKEY", user="u"), "UKEY", "UKEY"),
        (options(token="secret"), "", HIDDEN),
        (options(jwt="ey", token="secret"), "UJWT", "UJWT"),
        (options(), "default", "default"),
        (None, "", ""),
    ],
)
def test_who_it_was_without_secrets(options: ClientOptions | None, known: str, shown: str) -> None:
    gone = Gone(options=options, identity=Identity(user=known))
    assert raw_user(gone) == shown
    assert "secret" not in repr(closed_connection(gone))
