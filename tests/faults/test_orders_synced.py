"""What an operator orders over HTTP is on the disk when it is answered."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.clients.http import request
from support.engine import SYNC, SYNC_PATH
from support.servers.processes import Address
from support.stan.live import LiveBroker

from broker.runtime import vfs

pytestmark = pytest.mark.only_ours

TEXT = """
[server]
data = "{data}"
[storage]
sync = "always"
[nats]
listen = ""
[monitor]
listen = ""
[nsq]
listen = "127.0.0.1:0"
http = "127.0.0.1:0"
[bulk]
listen = "off"
"""
CHANNEL = {"topic": "t", "channel": "c"}
ORDERS = ["/channel/pause", "/channel/unpause", "/channel/empty"]
FOR_EVER = 1 << 20


@pytest.fixture
def live(tmp_path: Path) -> Iterator[LiveBroker]:
    broker = LiveBroker(tmp_path, TEXT)
    yield broker
    broker.close()


def order(live: LiveBroker, path: str, **names: str) -> int:
    return request(Address(*live.server.ports["nsq_http"]), "POST", path, **names).status


@pytest.mark.parametrize("call", [SYNC, SYNC_PATH])
def test_a_topic_or_channel_that_may_be_gone_is_not_confirmed(live: LiveBroker, call: int) -> None:
    vfs.fail(SYNC_PATH, errno.EIO, times=FOR_EVER)
    assert order(live, "/topic/create", topic="t") == 503
    vfs.heal()
    assert order(live, "/topic/create", topic="t") == 200
    vfs.fail(call, errno.EIO, times=FOR_EVER)
    assert order(live, "/channel/create", **CHANNEL) == 503
    vfs.heal()
    assert order(live, "/channel/create", **CHANNEL) == 200


@pytest.mark.parametrize("path", ORDERS)
def test_an_order_that_may_be_undone_is_not_confirmed(live: LiveBroker, path: str) -> None:
    assert order(live, "/topic/create", topic="t") == 200
    assert order(live, "/channel/create", **CHANNEL) == 200
    if path == "/channel/unpause":
        assert order(live, "/channel/pause", **CHANNEL) == 200
    vfs.fail(SYNC, errno.EIO, times=FOR_EVER)
    assert order(live, path, **CHANNEL) == 503
    vfs.heal()
    assert order(live, path, **CHANNEL) == 200


def test_a_paused_topic_is_empty_for_its_channels_too(live: LiveBroker) -> None:
    address = Address(*live.server.ports["nsq_http"])
    assert order(live, "/topic/create", topic="t") == 200
    assert order(live, "/channel/create", **CHANNEL) == 200
    assert order(live, "/topic/pause", topic="t") == 200
    assert request(address, "POST", "/pub", b"1", topic="t").status == 200
    vfs.fail(SYNC, errno.EIO, times=FOR_EVER)
    assert order(live, "/topic/empty", topic="t") == 503
    vfs.heal()
    assert order(live, "/topic/empty", topic="t") == 200
