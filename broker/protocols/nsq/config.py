"""Keys of [nsq] about watching it: latency percentiles, statsd, where the server stands."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from broker.base import settings as kinds
from broker import limits

if TYPE_CHECKING:
    from broker.base.settings import Address

T = TypeVar("T")

EXPERIMENTS = (limits.NSQ_TOPOLOGY,)


def _items(text: str) -> object:
    """A list as flags and the environment write it: a,b or ["a", "b"]."""
    parts = [part.strip(" \"'") for part in text.strip(" []").split(",")]
    return [part for part in parts if part]


def _listed(value: object) -> list[object]:
    if isinstance(value, str):
        value = _items(value)
    if not isinstance(value, list):
        raise ValueError(f"expected an array, got {kinds.type_name(value)} ({value!r})")
    return value


def percentiles() -> kinds.Kind[tuple[float, ...]]:
    """Numbers above 0 and up to 1, kept in descending order, each once."""

    def read(value: object) -> tuple[float, ...]:
        found = set()
        for item in _listed(value):
            number = float(item) if isinstance(item, int | float | str) else 0.0
            if not 0.0 < number <= 1.0:
                raise ValueError(f"must be above 0 and at most 1, got {item!r}")
            found.add(number)
        if len(found) > limits.NSQ_PERCENTILES_MAX:
            raise ValueError(f"at most {limits.NSQ_PERCENTILES_MAX} percentiles")
        return tuple(sorted(found, reverse=True))

    return kinds.Kind(read, _items)


def experiments() -> kinds.Kind[tuple[str, ...]]:
    """Names of EXPERIMENTS."""

    def read(value: object) -> tuple[str, ...]:
        found = _listed(value)
        for name in found:
            if name not in EXPERIMENTS:
                raise ValueError(f"must be among {', '.join(EXPERIMENTS)}, got {name!r}")
        return tuple(str(name) for name in found)

    return kinds.Kind(read, _items)


def _setting(kind: kinds.Kind[Any], default: T) -> T:
    return field(default=default, metadata={"kind": kind})


@dataclass(frozen=True)
class NsqWatching:
    """The part of [nsq] that says what can be seen of it from outside."""

    topology_region: str = _setting(kinds.text(), "")
    topology_zone: str = _setting(kinds.text(), "")
    enable_experiment: tuple[str, ...] = _setting(experiments(), ())
    e2e_processing_latency_percentiles: tuple[float, ...] = _setting(percentiles(), ())
    e2e_processing_latency_window_time_ns: int = _setting(
        kinds.duration(limits.NSQ_LATENCY_WINDOW_MIN, limits.DURATION_MAX),
        limits.NSQ_LATENCY_WINDOW,
    )
    statsd_address: Address | None = _setting(kinds.address(), None)
    statsd_prefix: str = _setting(kinds.text(), "nsq.%s")
    statsd_interval_ns: int = _setting(
        kinds.duration(limits.STATSD_INTERVAL_MIN, limits.DURATION_MAX), limits.STATSD_INTERVAL
    )
    statsd_mem_stats: bool = _setting(kinds.flag(), True)
    statsd_udp_packet_size: int = _setting(
        kinds.size(limits.STATSD_PACKET_MIN, limits.STATSD_PACKET_MAX), limits.STATSD_PACKET
    )
    statsd_exclude_ephemeral: bool = _setting(kinds.flag(), False)
