"""What was deleted stays deleted, even when the process is killed right behind the answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.clients.http import nsq_channel, nsq_topic, request

if TYPE_CHECKING:
    from conftest import StartBroker

pytestmark = pytest.mark.only_ours

ROUNDS = 5


def test_trap_19_a_delete_is_there_after_a_kill(start_broker: StartBroker) -> None:
    server = start_broker()
    http = server.nsq_http
    for _ in range(ROUNDS):
        for topic in ("gone", "kept"):
            assert request(http, "POST", "/topic/create", topic=topic).status == 200
            for channel in ("gone", "kept"):
                made = request(http, "POST", "/channel/create", topic=topic, channel=channel)
                assert made.status == 200
            assert request(http, "POST", "/pub", b"x", topic=topic).body == b"OK"
        assert request(http, "POST", "/channel/delete", topic="kept", channel="gone").status == 200
        assert request(http, "POST", "/topic/delete", topic="gone").status == 200
        server.kill()
        server.start()
        assert nsq_topic(http, "gone") is None
        assert nsq_channel(http, "kept", "gone") is None
        assert nsq_channel(http, "kept", "kept")["depth"] > 0
