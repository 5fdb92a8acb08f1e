"""The metadata that the server keeps itself."""

from __future__ import annotations

from typing import Any

import pytest

from broker.protocols.jetstream import limits
from broker.protocols.jetstream.api import metadata
from broker.protocols.jetstream.structs import ConsumerConfig, StreamConfig
from broker.protocols.nats.limits import NATS_VERSION


@pytest.mark.parametrize(
    ("keys", "level"),
    [
        ({}, 0),
        ({"allow_msg_ttl": True}, 1),
        ({"subject_delete_marker_ttl": 1}, 1),
        ({"allow_atomic": True, "allow_msg_ttl": True}, 2),
        ({"allow_msg_counter": True}, 2),
        ({"allow_msg_schedules": True}, 2),
        ({"persist_mode": "async"}, 2),
        ({"allow_batched": True, "allow_atomic": True}, 4),
    ],
)
def test_what_a_stream_requires(keys: dict[str, Any], level: int) -> None:
    assert metadata.stream_level(StreamConfig(**keys)) == level


@pytest.mark.parametrize(
    ("keys", "level"),
    [
        ({}, 0),
        ({"priority_policy": "none"}, 0),
        ({"pause_until": "2030-01-01T00:00:00Z"}, 1),
        ({"pause_until": "0001-01-01T00:00:00Z"}, 0),  # none, as Go writes it
        ({"priority_policy": "overflow"}, 1),
        ({"priority_groups": ["a"]}, 1),
        ({"ack_policy": "flow_control"}, 4),
    ],
)
def test_what_a_consumer_requires(keys: dict[str, Any], level: int) -> None:
    assert metadata.consumer_level(ConsumerConfig(**keys)) == level


def test_clients_cannot_set_it() -> None:
    given = {"a": "b", "_nats.ver": "9", "_nats.level": "9", "_nats.req.level": "99"}
    assert metadata.stored(given, 1) == {"a": "b", "_nats.req.level": "1"}
    assert metadata.users(given) == {"a": "b"}


def test_answers_have_the_version_and_the_level() -> None:
    assert metadata.shown({"_nats.req.level": "0"}) == {
        "_nats.req.level": "0",
        "_nats.ver": NATS_VERSION,
        "_nats.level": str(limits.JS_API_LEVEL),
    }


def test_an_unreadable_level_is_too_high() -> None:
    assert metadata.required_level({}) == 0
    assert metadata.required_level({"_nats.req.level": "3"}) == 3
    assert metadata.required_level({"_nats.req.level": "x"}) > limits.JS_ASSET_LEVEL_MAX
