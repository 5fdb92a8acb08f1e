"""The consumers of a stream that is deleted."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker.protocols.jetstream import limits
from broker.protocols.jetstream.consumers.registry import Consumers


class FakeStream:
    name = "S"

    def __init__(self) -> None:
        self.consumers: dict[str, Any] = {}

    def remove_consumer(self, name: str) -> None:
        del self.consumers[name]


class FakeConsumer:
    stream_name = "S"
    channel = None

    def __init__(self, stream: FakeStream, name: str, ended: list[str]) -> None:
        self.stream, self.name, self.ended = stream, name, ended
        self.cursor = SimpleNamespace(close=self.close_cursor)

    def close(self, status: str) -> None:
        assert status == "409 Consumer Deleted"

    def close_cursor(self, *, delete: bool) -> None:
        assert delete
        self.ended.append(self.name)
        raise OSError  # its journal has moved with the folder of the stream


def test_many_consumers_do_not_end_in_one_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other clients wait for a turn."""
    monkeypatch.setattr(limits, "JS_REQUESTS_TURN", 0)
    stream, ended, reported = FakeStream(), list[str](), list[str]()
    for name in ("a", "b", "c"):
        stream.consumers[name] = FakeConsumer(stream, name, ended)
    consumers = Consumers.__new__(Consumers)
    consumers.account = cast(
        "Any",
        SimpleNamespace(
            advisory=lambda subject, _kind, _fields: reported.append(subject),
            topics=SimpleNamespace(announce_consumer=lambda _consumer, created: None),
        ),
    )
    ending = consumers.delete_all(cast("Any", stream))
    for count in (1, 2, 3):
        ending.send(None)
        assert len(ended) == len(reported) == count
    with pytest.raises(StopIteration):
        ending.send(None)
    assert (ended, stream.consumers) == (["a", "b", "c"], {})
    assert reported[0] == "CONSUMER.DELETED.S.a"
