"""The section of nsqlookupd."""

from __future__ import annotations

from dataclasses import field

from broker.base import settings as kinds
from broker.base.settings import Address
from broker.base.units import DURATION_MAX, MS
from broker.base.values import dataclass
from broker.protocols.nsq import limits


def peers() -> kinds.Kind[tuple[str, ...]]:
    """An array of HOST:PORT; separated by commas in an environment variable."""

    def read(value: object) -> tuple[str, ...]:
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise ValueError(f'expected an array of strings, got {value!r} (["127.0.0.1:4160"])')
        for item in value:
            if item.startswith(":") or not kinds.parse_address(item).port:
                raise ValueError(f'not an address to connect to: {item!r} (write "HOST:PORT")')
        return tuple(dict.fromkeys(value))

    def from_text(text: str) -> object:
        items = (
            item.strip("\"' ")
            for item in text.strip().removeprefix("[").removesuffix("]").split(",")
        )
        return [item for item in items if item]

    return kinds.Kind(read, from_text)


@dataclass(frozen=True)
class LookupConfig:
    """[nsqlookupd]: answers which nsqds have a topic."""

    enabled: bool = field(default=False, metadata={"kind": kinds.flag()})
    listen: Address | None = kinds.listen_setting(limits.NSQ_LOOKUP_PORT)
    http: Address | None = kinds.listen_setting(limits.NSQ_LOOKUP_HTTP_PORT)
    broadcast_address: str = field(default="", metadata={"kind": kinds.text()})  # "": host's name
    inactive_producer_timeout_ns: int = field(
        default=limits.NSQ_LOOKUP_INACTIVE,
        metadata={"kind": kinds.duration(MS, DURATION_MAX)},
    )
    tombstone_lifetime_ns: int = field(
        default=limits.NSQ_LOOKUP_TOMBSTONE,
        metadata={"kind": kinds.duration(MS, DURATION_MAX)},
    )
