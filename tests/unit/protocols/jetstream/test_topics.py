"""Which consumers are channels of an NSQ topic, and their names."""

from __future__ import annotations

from typing import Any

import pytest

from broker.protocols.jetstream.structs import ConsumerConfig, StreamConfig
from broker.protocols.jetstream.topics import (
    TOPIC_KEY,
    channel_of,
    consumer_of,
    is_channel,
    topic_of,
)


@pytest.mark.parametrize("name", ["ch", "a.b", ".", "A-b_9", "e#ephemeral", "a.b#ephemeral"])
def test_a_channel_has_the_name_of_its_consumer(name: str) -> None:
    assert channel_of(consumer_of(name)) == name
    assert "." not in consumer_of(name)


def test_the_topic_of_a_stream() -> None:
    assert topic_of(StreamConfig(name="S")) == ""
    assert topic_of(StreamConfig(name="S", metadata={TOPIC_KEY: "s.t"})) == "s.t"


PULL: dict[str, Any] = {"name": "c", "ack_policy": "explicit", "filter_subject": "s.t"}


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({}, True),
        ({"filter_subject": "", "filter_subjects": ["s.t"]}, True),
        ({"name": "a%2Eb"}, True),
        ({"max_deliver": 3, "backoff": [1]}, True),
        ({"deliver_subject": "d"}, False),
        ({"ack_policy": "none"}, False),
        ({"ack_policy": "all"}, False),
        ({"filter_subject": "s.*"}, False),
        ({"filter_subject": ""}, False),
        ({"filter_subject": "", "filter_subjects": ["s.t", "s.u"]}, False),
        ({"priority_policy": "overflow", "priority_groups": ["g"]}, False),
        ({"headers_only": True}, False),
        ({"name": "no channel"}, False),
        ({"name": "c" * 65}, False),
    ],
)
def test_which_consumers_are_channels(changes: dict[str, Any], wanted: bool) -> None:
    assert is_channel(ConsumerConfig(**{**PULL, **changes}), "s.t") == wanted
