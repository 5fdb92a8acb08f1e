"""Which broker a topic is written to."""

from __future__ import annotations

from broker.spark.sink.options import server_of


def test_the_first_unless_configured_otherwise() -> None:
    assert {server_of(f"t{n}", ("b:1", "a:1"), "first") for n in range(50)} == {0}


def test_by_topic_the_order_of_servers_is_nothing() -> None:
    one, other = ("b:1", "a:1", "c:1"), ("c:1", "b:1", "a:1")
    chosen = [one[server_of(f"t{n}", one, "topic")] for n in range(90)]
    assert chosen == [other[server_of(f"t{n}", other, "topic")] for n in range(90)]
    assert {chosen.count(server) > 15 for server in one} == {True}
