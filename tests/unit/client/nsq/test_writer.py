"""What a Writer says of arguments that it cannot send."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from broker.client.nsq import ClosedError, Writer
from broker.client.nsq.writer import encode_dpub, encode_mpub, encode_pub


@pytest.mark.parametrize(
    ("call", "arguments", "text"),
    [
        (encode_pub, ("t", "text"), "publish() body must be bytes, not str: encode it"),
        (encode_pub, ("t", 1), "publish() body must be bytes, not int"),
        (encode_pub, (b"t", b"x"), "a topic name must be a str, not bytes"),
        (encode_dpub, ("t", "x", 1), "deferred_publish() body must be bytes, not str: encode it"),
        (encode_dpub, ("t", b"x", "1"), "deferred_publish() delay_s must be a number of seconds"),
        (encode_mpub, ("t", b"x"), "multi_publish() bodies must be a list of bytes, not bytes"),
        (encode_mpub, ("t", 7), "multi_publish() bodies must be a list of bytes, not int"),
        (encode_mpub, ("t", ["x"]), "multi_publish() body must be bytes, not str: encode it"),
    ],
)
def test_wrong_types(call: Callable[..., bytes], arguments: tuple[Any, ...], text: str) -> None:
    with pytest.raises(TypeError) as caught:
        call(*arguments)
    assert str(caught.value).startswith(text)


@pytest.mark.parametrize(
    ("call", "arguments", "text"),
    [
        (encode_pub, ("bad topic!", b"x"), "invalid topic name 'bad topic!': use letters, digits,"),
        (encode_pub, ("t" * 65, b"x"), "at most 64 characters"),
        (encode_dpub, ("t", b"x", -1), "deferred_publish() delay_s must be at least 0, not -1"),
        (encode_dpub, ("t", b"x", float("nan")), "deferred_publish() delay_s must be at least 0"),
        (encode_mpub, ("t", []), "multi_publish() bodies is empty: give at least one message"),
    ],
)
def test_wrong_values(call: Callable[..., bytes], arguments: tuple[Any, ...], text: str) -> None:
    with pytest.raises(ValueError, match=r"invalid|must be|empty") as caught:
        call(*arguments)
    assert text in str(caught.value)


def test_buffers_are_bodies() -> None:
    assert encode_pub("t", bytearray(b"ab")) == encode_pub("t", b"ab")
    assert encode_pub("t", memoryview(b"abcd")[::2]) == encode_pub("t", b"ac")
    assert encode_mpub("t", iter([b"a", memoryview(b"b")])) == encode_mpub("t", [b"a", b"b"])


def test_addresses() -> None:
    for wrong, kind in ((4150, TypeError), ([4150], TypeError), ("host:x", ValueError)):
        with pytest.raises(kind):
            Writer(wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="nsqd_tcp_addresses is empty"):
        Writer([])
    assert Writer(addresses="127.0.0.1:1") is not None


async def test_send_before_it_is_connected() -> None:
    with pytest.raises(ClosedError, match=r"await connect\(\) first"):
        Writer("127.0.0.1:1").send("t", b"x")
