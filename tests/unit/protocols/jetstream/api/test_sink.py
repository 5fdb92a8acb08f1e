"""API requests of an account: how many are handled in one turn, and how many may wait."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from support.fakes.loop import FakeLoop

from broker.base.units import MS
from broker.protocols.jetstream import limits
from broker.protocols.jetstream.api.sink import ApiSink
from broker.protocols.nats.accounts.account import Account, CurrentPublisher
from broker.routing.router import Router

if TYPE_CHECKING:
    from broker.protocols.jetstream.api.sink import Request


class Api:
    """A sink whose requests take as long as their bodies say, in milliseconds."""

    def __init__(self, waiting_max: int = 1_000, bytes_max: int = 1_000_000) -> None:
        self.loop = FakeLoop()
        self.account = Account("$G", self.loop.turn, CurrentPublisher(), Router())
        self.now_ns = 0
        self.handled: list[bytes] = []
        self.dropped = 0
        self.sink = ApiSink(
            self.account, self._handle, self._overflow, waiting_max, bytes_max, lambda: self.now_ns
        )
        self.sink.listen(b"$JS.API.")

    def _handle(self, request: Request) -> None:
        self.handled.append(request.verb)
        self.now_ns += int(request.data) * MS

    def _overflow(self, count: int) -> None:
        self.dropped += count

    def ask(self, verb: str, body: bytes) -> None:
        self.account.publish(f"$JS.API.{verb}".encode(), body)

    def turn(self) -> int:
        """End a turn; returns the number of requests that were handled in it."""
        before = len(self.handled)
        self.loop.run_once()
        return len(self.handled) - before


@pytest.fixture
def api() -> Iterator[Api]:
    made = Api()
    yield made
    made.sink.close()


def test_dear_requests_are_handled_in_several_turns(api: Api) -> None:
    for number in range(6):
        api.ask(f"N.{number}", b"1")
    turns = []
    while api.sink.waiting:
        turns.append(api.turn())
    assert max(turns) == limits.JS_REQUESTS_TURN // MS
    assert api.handled == [b"N.%d" % number for number in range(6)]


def test_one_that_takes_longer_than_a_turn_ends_it(api: Api) -> None:
    api.ask("A", b"50")
    api.ask("B", b"0")
    api.ask("C", b"0")
    assert api.turn() == 1
    api.loop.run()
    assert api.handled == [b"A", b"B", b"C"]


def test_cheap_requests_are_handled_together(api: Api) -> None:
    for number in range(200):
        api.ask(f"N.{number}", b"0")
    assert api.turn() == 200


def test_waiting_requests_are_limited_in_bytes() -> None:
    api = Api(bytes_max=100_000)
    api.sink.busy = True
    for number in range(5):
        api.ask(f"N.{number}", b"0".rjust(30_000))
    assert len(api.sink.waiting) == 3
    assert api.sink.waiting_bytes <= 100_000
    api.loop.run()
    assert api.dropped == 2
    api.sink.resume()
    api.loop.run()
    assert api.handled == [b"N.0", b"N.1", b"N.2"]
    assert api.sink.waiting_bytes == 0
    api.ask("N.5", b"0".rjust(90_000))
    api.loop.run()
    assert api.handled[-1] == b"N.5"
    assert api.dropped == 2


def test_waiting_requests_are_limited_in_number() -> None:
    api = Api(waiting_max=3)
    api.sink.busy = True
    for number in range(5):
        api.ask(f"N.{number}", b"0")
    api.loop.run()
    assert (len(api.sink.waiting), api.dropped) == (3, 2)
