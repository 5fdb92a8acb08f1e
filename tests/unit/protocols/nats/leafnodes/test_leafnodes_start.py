"""What leaf nodes cost a server that has had subscriptions for long."""

from __future__ import annotations

from support.live.nats import LiveNats

from broker.protocols.nats.server import NatsServer

TEXT = """
accounts { A { users: [ {user: a, password: p} ] }, B { users: [ {user: b, password: p} ] } }
leafnodes { %s }
"""


def counting(server: NatsServer) -> set[str]:
    """The accounts where what is wanted has been counted all along."""
    if server.leafs is None:
        return set()
    return {account.name for account in server.leafs.handshake.interests.accounts}


def test_what_is_wanted_is_counted_before_the_first_link() -> None:
    """To walk through all of it when the link comes would stop everybody."""
    with LiveNats(TEXT % 'listen: "127.0.0.1:-1"') as live:
        assert live.ask(counting) == {"$G", "$SYS", "A", "B"}
    remote = 'remotes: [ {url: "nats-leaf://127.0.0.1:1", account: B} ]'
    with LiveNats(TEXT % remote) as live:
        assert live.ask(counting) == {"B"}
    with LiveNats() as live:
        assert live.ask(counting) == set()
