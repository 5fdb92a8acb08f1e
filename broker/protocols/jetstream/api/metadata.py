"""Metadata that the server adds: the API level that a stream or consumer requires."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from broker.protocols.jetstream import limits
from broker.protocols.jetstream.structs import ZERO_TIME
from broker.protocols.nats.limits import NATS_VERSION

if TYPE_CHECKING:
    from broker.protocols.jetstream.structs import ConsumerConfig, StreamConfig

REQUIRED: Final = "_nats.req.level"
VERSION: Final = "_nats.ver"
LEVEL: Final = "_nats.level"
_OWN: Final = (REQUIRED, VERSION, LEVEL)


def stream_level(config: StreamConfig) -> int:
    """The API level that the features of a stream require."""
    if config.allow_batched:
        return 4
    if (
        config.allow_msg_counter
        or config.allow_atomic
        or config.allow_msg_schedules
        or config.persist_mode == "async"
    ):
        return 2
    return 1 if config.allow_msg_ttl or config.subject_delete_marker_ttl > 0 else 0


def consumer_level(config: ConsumerConfig) -> int:
    """The API level that the features of a consumer require."""
    if config.ack_policy == "flow_control":
        return 4
    priority = config.priority_policy != "none"
    paused = config.pause_until not in ("", ZERO_TIME)
    if paused or priority or config.priority_groups or config.priority_timeout:
        return 1
    return 0


def stored(metadata: dict[str, str], level: int) -> dict[str, str]:
    """The metadata to store, with this required level."""
    return {**users(metadata), REQUIRED: str(level)}


def users(metadata: dict[str, str]) -> dict[str, str]:
    """The metadata without the keys of the server, to compare configurations."""
    return {key: value for key, value in metadata.items() if key not in _OWN}


def shown(metadata: dict[str, str]) -> dict[str, str]:
    """The metadata in an answer: with the version and API level of this server."""
    return {**metadata, VERSION: NATS_VERSION, LEVEL: str(limits.JS_API_LEVEL)}


def required_level(metadata: dict[str, str]) -> int:
    """The level that a stored configuration requires; if it is not a number, one that is too
    high."""
    text = metadata.get(REQUIRED, "0")
    return int(text) if text.isascii() and text.isdigit() else limits.JS_ASSET_LEVEL_MAX + 1
