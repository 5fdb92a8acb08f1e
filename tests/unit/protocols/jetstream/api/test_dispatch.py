"""The dispatcher of API requests: what it reports of those that were dropped."""

from __future__ import annotations

from typing import Any, cast

import pytest

from broker.protocols.jetstream import limits
from broker.protocols.jetstream.api.dispatch import Dispatcher


class Account:
    name = "A"

    def __init__(self) -> None:
        self.reported: list[int] = []

    def limit_reached(self, dropped: int) -> None:
        self.reported.append(dropped)


def test_dropped_requests_are_logged_now_and_then(caplog: pytest.LogCaptureFixture) -> None:
    now_ns = 5
    account = Account()
    dispatcher = Dispatcher(cast("Any", account), cast("Any", None), now_ns=lambda: now_ns)
    for dropped in (3, 4, 5):
        dispatcher.overflow(dropped)
    now_ns += limits.JS_DROPPED_APART
    dispatcher.overflow(6)
    assert account.reported == [3, 4, 5, 6]  # each is an advisory
    assert caplog.messages == [
        "account A: 3 API requests were dropped, too many wait",
        "account A: 15 API requests were dropped, too many wait",
    ]
