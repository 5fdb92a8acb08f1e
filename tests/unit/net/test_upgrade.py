"""Requests that become something else: what is read from them, and how many may wait."""

from __future__ import annotations

from typing import Any

import pytest

from broker.base.units import SECOND
from broker.net import errors, limits
from broker.net.upgrade import NotHttp, PendingUpgrades, Request, read_request


def test_headers_are_found_by_any_name() -> None:
    request = read_request(b"GET /a?b=1 HTTP/1.1\r\nHOST: x\r\nA:  1 \r\na: Two,\tthree")
    assert (request.method, request.path, request.first("host")) == ("GET", "/a", "x")
    assert request.headers["a"] == ["1", "Two,\tthree"]
    assert request.has_word("a", "three")
    assert not request.has_word("a", "two,")
    assert request.first("b") == ""


@pytest.mark.parametrize(
    ("cookies", "found"),
    [
        (["jwt=abc"], "abc"),
        (["a=b; jwt=a=b=c"], "a=b=c"),
        (["jwt=1; jwt=2", "jwt=3"], "3"),
        (["xjwt=1", 'b=2;jwt="quoted"'], "quoted"),
        (['jwt="'], '"'),
        (["jwt", "JWT=1"], ""),
        ([], ""),
    ],
)
def test_cookies(cookies: list[str], found: str) -> None:
    assert Request({"cookie": cookies}, "GET", "/").cookie("jwt") == found


@pytest.mark.parametrize(
    ("head", "text"),
    [
        (b"", errors.HTTP_BAD_REQUEST),
        (b"GET / HTTP/2\r\nHost: x", errors.HTTP_BAD_REQUEST),
        (b"G(T / HTTP/1.1\r\nHost: x", errors.HTTP_BAD_REQUEST),
        (b"GET  HTTP/1.1\r\nHost: x", errors.HTTP_BAD_REQUEST),
        (b"GET / HTTP/1.1\r\nHost : x", errors.HTTP_BAD_REQUEST),
        (b"GET / HTTP/1.1\r\nHost: x\r\n folded", errors.HTTP_BAD_REQUEST),
        (b"GET / HTTP/1.1\r\nHost: x\r\na: \x00", errors.HTTP_BAD_REQUEST),
        (b"GET / HTTP/1.1\r\nHost: x\nb: 1", errors.HTTP_BAD_REQUEST),
        (b"GET / HTTP/1.1", errors.HTTP_NO_HOST),
        (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b", errors.HTTP_HOSTS),
    ],
)
def test_what_is_no_request(head: bytes, text: str) -> None:
    with pytest.raises(NotHttp) as caught:
        read_request(head)
    assert str(caught.value) == text


class FakeHandover:
    """A connection that upgrades: what is done with it."""

    def __init__(self) -> None:
        self.head = bytearray()
        self.link: Any = self
        self.peer = ("192.0.2.7", 1)
        self.aborted = self.closed = False
        self.timeout_ns = 0
        self.said = b""

    def abort(self) -> None:
        self.aborted = True

    def close(self) -> None:
        self.closed = True

    def wait(self, ns: int) -> None:
        self.timeout_ns = ns

    def say(self, data: bytes) -> None:
        self.said += data


REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


def test_the_oldest_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "WEBSOCKET_UPGRADES_MAX", 3)
    upgrades = PendingUpgrades(lambda _request, handover: upgrades.done(handover), SECOND)
    made: list[Any] = [FakeHandover() for _ in range(5)]
    for handover in made:
        upgrades.opened(handover)
    assert [handover.aborted for handover in made] == [True, True, False, False, False]
    upgrades.received(made[3], REQUEST)  # is in, and counts no more
    upgrades.closed(made[4])
    upgrades.end()
    assert [handover.aborted for handover in made] == [True, True, True, False, False]
    assert [handover.timeout_ns for handover in made] == [0] * 5


def test_whoever_is_not_through_with_tls_waits_for_that() -> None:
    asked: list[Any] = []
    causes: list[str] = []
    upgrades = PendingUpgrades(
        lambda _request, handover: upgrades.done(handover), SECOND, asked.append
    )
    upgrades.insecure = lambda _peer, cause: causes.append(cause)
    one: Any = FakeHandover()
    other: Any = FakeHandover()
    upgrades.opened(one)
    upgrades.opened(other)
    assert asked == [one, other]
    assert one.timeout_ns == 0  # TLS has a time of its own
    upgrades.secured(one, None)
    assert one.timeout_ns == SECOND
    upgrades.secured(other, "no certificate")
    assert (other.closed, causes) == (True, ["no certificate"])
    upgrades.end()
    assert (one.aborted, other.aborted) == (True, False)
