"""Mappings on a real server, with a real client.

Each scenario runs against the original as well (TWINWIRE_TEST_TARGET=original). What each function
makes of a subject is in tests/golden/nats/mappings.json.
"""

from __future__ import annotations

from collections.abc import Callable

import nats
import pytest
from nats.errors import NoRespondersError
from support.clients.nats import NatsClient
from support.nats_file import FileServer

Start = Callable[[str], FileServer]
ROUNDS = 300

SHARES = """
cluster { name: EAST }
mappings {
  "half": [ {destination: "left", weight: 50}, {destination: "right", weight: 50} ]
  "part": [ {destination: "fresh", weight: "30%"} ]
  "near": [
    {destination: "far", weight: 100}
    {destination: "here", weight: 100, cluster: EAST}
  ]
  "elsewhere": [
    {destination: "main", weight: 100}
    {destination: "other", weight: 100, cluster: WEST}
  ]
}
"""


def counted(subscriber: NatsClient) -> dict[str, int]:
    """Subjects that came up to now, and how often."""
    found: dict[str, int] = {}
    subscriber.send(b"PING\r\n")
    while (line := subscriber.read_line()) != b"PONG\r\n":
        subject = line.split()[1].decode()
        found[subject] = found.get(subject, 0) + 1
        subscriber.read_line()
    return found


def test_shares(start_nats: Start) -> None:
    server = start_nats(SHARES)
    with NatsClient(server.address) as a, NatsClient(server.address) as b:
        b.sub(">")
        for subject in ("half", "part", "near", "elsewhere"):
            for _ in range(ROUNDS):
                a.pub(subject, b"x")
        a.ping()
        found = counted(b)
        assert found.pop("here") == ROUNDS
        assert found.pop("main") == ROUNDS
        assert found.keys() == {"left", "right", "fresh", "part"}
        assert sum(found.values()) == 2 * ROUNDS
        assert abs(found["left"] - ROUNDS / 2) < ROUNDS / 6
        assert abs(found["fresh"] - ROUNDS * 0.3) < ROUNDS / 6


def test_each_account_has_its_own(start_nats: Start) -> None:
    server = start_nats("""
      accounts {
        A { users: [{user: a, password: a}], mappings: { "one.*": "uno.$1" } }
        B { users: [{user: b, password: b}], mappings: { "one.*": "ein.{{wildcard(1)}}" } }
        C { users: [{user: c, password: c}] }
      }""")
    for user, mapped in (("a", "uno.x"), ("b", "ein.x"), ("c", "one.x")):
        with NatsClient(server.address, user) as client:
            client.sub(">")
            client.pub("one.x", b"1")
            assert client.got() == (mapped, b"1")


async def test_requests_are_mapped_too(start_nats: Start) -> None:
    server = start_nats('mappings { "ask": "service", "nowhere": "nobody" }')
    client = await nats.connect(f"nats://{server.address}")
    try:

        async def answer(message: nats.aio.msg.Msg) -> None:
            await message.respond(message.subject.encode())

        await client.subscribe("service", cb=answer)
        assert (await client.request("ask", b"", 5)).data == b"service"
        with pytest.raises(NoRespondersError):
            await client.request("nowhere", b"", 5)
    finally:
        await client.close()


def test_a_reload_changes_them(start_nats: Start) -> None:
    server = start_nats('mappings { "a": "b" }')
    with NatsClient(server.address) as client:
        client.sub(">")
        for number, (text, subject) in enumerate([("a: c", "c"), ('"*": "all.$1"', "all.a")], 1):
            server.reload(f"mappings {{ {text} }}")
            server.await_log("Reloaded server configuration", number)
            client.pub("a", b"x")
            assert client.got() == (subject, b"x")


@pytest.mark.only_ours
def test_a_reload_takes_them_away(start_nats: Start) -> None:
    """The original keeps the last mappings of its global account."""
    server = start_nats('mappings { "a": "b" }')
    with NatsClient(server.address) as client:
        client.sub(">")
        server.reload("")
        server.await_log("Reloaded server configuration")
        client.pub("a", b"x")
        assert client.got() == ("a", b"x")
