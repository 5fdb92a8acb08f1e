"""Requests that become something else: what is read from them, and how many may wait."""

from __future__ import annotations

import asyncio

import pytest

from broker import errors, limits
from broker.net.upgrade import Knock, Knocks, NotHttp, Request, read_request


def test_headers_are_found_by_any_name() -> None:
    request = read_request(b"GET /a?b=1 HTTP/1.1\r\nHOST: x\r\nA:  1 \r\na: Two,\tthree")
    assert (request.method, request.path, request.first("host")) == ("GET", "/a", "x")
    assert request.headers["a"] == ["1", "Two,\tthree"]
    assert request.says("a", "three")
    assert not request.says("a", "two,")
    assert request.first("b") == ""


@pytest.mark.parametrize(
    ("cookies", "found"),
    [
        (["jwt=abc"], "abc"),
        (["a=b; jwt=a=b=c; jwt=2"], "a=b=c"),
        (["xjwt=1", 'b=2;jwt="quoted"'], "quoted"),
        (['jwt="'], '"'),
        (["jwt", "JWT=1"], ""),
        ([], ""),
    ],
)
def test_cookies(cookies: list[str], found: str) -> None:
    assert Request("GET", "/", {"cookie": cookies}).cookie("jwt") == found


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


class Pipe(asyncio.Transport):
    aborted = False

    def abort(self) -> None:
        self.aborted = True


async def test_the_oldest_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "WEBSOCKET_KNOCKS_MAX", 3)
    knocks = Knocks(lambda _request, _transport: None, limits.SECOND)
    pipes = [Pipe() for _ in range(5)]
    made = [Knock(knocks) for _ in pipes]
    for knock, pipe in zip(made, pipes, strict=True):
        knock.connection_made(pipe)
    assert [pipe.aborted for pipe in pipes] == [True, True, False, False, False]
    made[3].data_received(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")  # is in, and counts no more
    made[4].connection_lost(None)
    knocks.end()
    assert [pipe.aborted for pipe in pipes] == [True, True, True, False, False]
