"""Waiting for a Reader's connection, and what it logs of a handler that fails."""

from __future__ import annotations

import asyncio
import logging

import pytest

from broker.client.nsq import ClosedError, ConnectError, Message, Reader
from broker.client.nsq.message import Origin


class _Origin:
    """Answers that go nowhere."""

    topic = "t"
    address = ("127.0.0.1", 4150)

    def finish(self, message: Message) -> bool:
        return True

    def requeue(self, message: Message, delay_s: float | None, backoff: bool) -> bool:
        return True

    def touch(self, message: Message) -> bool:
        return True


def _message(number: int) -> Message:
    origin: Origin = _Origin()
    return Message(origin, b"%016d" % number, 1, 1, b"body")


def _reader(handler: object) -> Reader:
    return Reader("t", "c", handler, nsqd_tcp_addresses="127.0.0.1:1")  # type: ignore[arg-type]


async def test_a_failed_message_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    """The traceback of each kind of error is logged once."""

    def handle(message: Message) -> None:
        if message.id.endswith(b"9"):
            raise KeyError("another kind")
        raise RuntimeError("on purpose\nand a second line")

    reader = _reader(handle)
    with caplog.at_level(logging.INFO, "twinwire.nsq"):
        for number in range(20):
            reader._deliver(_message(number))
    assert len(caplog.records) == 20
    assert all("\n" not in record.getMessage() for record in caplog.records)
    assert [n for n, record in enumerate(caplog.records) if record.exc_info] == [0, 9]
    text = caplog.records[0].getMessage()
    assert text.startswith("t/c: the handler failed on <Message 0000")
    assert text.endswith("RuntimeError: on purpose")
    caplog.clear()
    with caplog.at_level(logging.DEBUG, "twinwire.nsq"):
        reader._deliver(_message(1))
    assert caplog.records[0].exc_info


async def test_waiting_for_nobody_ends_with_the_reason() -> None:
    async with _reader(lambda message: True) as reader:
        with pytest.raises(
            ConnectError, match=r"not connected after 0.5 s: 127.0.0.1:1: connection refused"
        ):
            await reader.connected(0.5)


async def test_waiting_ends_when_the_reader_is_closed() -> None:
    reader = _reader(lambda message: True)
    await reader.start()
    waiting = asyncio.ensure_future(reader.connected())
    await asyncio.sleep(0)
    await reader.close()
    with pytest.raises(ClosedError):
        await waiting


def test_wrong_arguments() -> None:
    with pytest.raises(TypeError, match="handler must be a function, not str"):
        _reader("handle")
    with pytest.raises(ValueError, match="invalid channel name 'c!'"):
        Reader("t", "c!", nsqd="127.0.0.1:1")
    with pytest.raises(TypeError, match="nsqd_tcp_addresses must be an address or a list of them"):
        Reader("t", "c", nsqd_tcp_addresses=4150)  # type: ignore[arg-type]


async def test_what_a_message_says_of_itself() -> None:
    message = _message(1)
    assert (message.topic, message.address) == ("t", ("127.0.0.1", 4150))
    assert not message.is_async()
    message.enable_async()
    assert message.is_async()
    assert not message.has_responded()
