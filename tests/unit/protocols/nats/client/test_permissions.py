"""Rights that end while somebody is connected, and what is denied inside of a wider wish."""

from __future__ import annotations

import orjson
from support import RawPeer
from support.live.nats import LiveNats

from broker.protocols.nats.client.permissions import permit_for
from broker.protocols.nats.settings import Permissions, Rules, SubjectRule

ACCOUNTS = """accounts {
    A { users: [
        {user: a, password: p}
        {user: asked, password: p, permissions: {subscribe: ">", allow_responses: {max: 5}}}
        {user: silent, password: p, permissions: {publish: {deny: ">"}}}
    ] }
    B { users: [ {user: b, password: p} ] }
}
"""


def login(user: str) -> bytes:
    fields = {"user": user, "pass": "p", "verbose": False, "pedantic": False}
    return b"CONNECT " + orjson.dumps(fields) + b"\r\n"


def talk(peer: RawPeer, data: bytes) -> bytes:
    """What is said up to the answer to a PING, without INFO."""
    peer.send(data + b"PING\r\n")
    lines = []
    while (line := peer.read_line().rstrip()) != b"PONG":
        lines.append(line)
    return b"\n".join(line for line in lines if not line.startswith(b"INFO "))


def test_who_moves_to_another_account_takes_nothing_along() -> None:
    """Also a subscription that has just had its last message, and waits to be removed."""
    with LiveNats(ACCOUNTS) as server:
        before = server.ask(lambda s: s.accounts["A"].router.size)
        for _ in range(20):
            with RawPeer(server.nats) as peer:
                wish = login("a") + b"SUB x 1\r\nSUB y 2\r\nUNSUB 1 1\r\nPUB x 1\r\nA\r\n"
                assert talk(peer, wish + login("b")) == b"MSG x 1 1\nA"
                assert talk(peer, b"SUB y 1\r\nPUB y 1\r\nB\r\n") == b"MSG y 1 1\nB"
                assert server.ask(lambda s: s.accounts["A"].router.size) == before


def test_who_may_answer_no_longer_does_not() -> None:
    with (
        LiveNats(ACCOUNTS) as server,
        RawPeer(server.nats) as peer,
        RawPeer(server.nats) as other,
    ):
        talk(peer, login("asked") + b"SUB help 1\r\n")
        talk(other, login("a") + b"SUB answer 1\r\nPUB help answer 1\r\n?\r\n")
        assert talk(peer, b"PUB answer 1\r\nA\r\n") == b"MSG help 1 answer 1\n?"
        assert talk(other, b"") == b"MSG answer 1 1\nA"
        refused = b"-ERR 'Permissions Violation for Publish to \"answer\"'"
        assert talk(peer, login("silent") + b"PUB answer 1\r\nB\r\n") == refused
        assert talk(other, b"") == b""


def test_what_is_denied_is_not_delivered_however_it_is_asked_for() -> None:
    rules = Rules(deny=(SubjectRule("foo.*.bar"),))
    permit = permit_for(Permissions(subscribe=rules))
    assert [permit.subscribe(subject) for subject in (b"foo.x.>", b"foo.x.bar", b"foo.y.b")] == [
        2, 0, 1,
    ]  # fmt: skip


def test_a_denied_subject_is_denied_to_all_queue_groups() -> None:
    """Also beside a rule that denies one group."""
    rules = Rules(deny=(SubjectRule("bar.x"), SubjectRule(">", "*.prod")))
    permit = permit_for(Permissions(subscribe=rules))
    asked = [(b"bar.x", b"foo"), (b"bar.x", b"a.prod"), (b"bar.y", b"a.prod"), (b"bar.y", b"foo")]
    assert [permit.subscribe(subject, queue) for subject, queue in asked] == [0, 0, 0, 1]
