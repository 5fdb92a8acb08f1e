"""The section [telemetry] of the configuration."""

from __future__ import annotations

import re
from dataclasses import field

from broker.base import settings as kinds
from broker.base.settings import Kind
from broker.base.units import COUNT_MAX
from broker.base.values import dataclass
from broker.telemetry import limits


def check_endpoint(text: str) -> None:
    """Check the base of an OTLP receiver's URLs. ValueError."""
    if not text:
        return
    if not re.fullmatch(r"https?://[^\s/?#]+(?:/[^\s?#]*)?", text) or not kinds.has_address(text):
        raise ValueError(f'invalid endpoint {text!r}: expected "http://127.0.0.1:4318"')


def check_pair(text: str) -> None:
    """Check NAME=VALUE. ValueError."""
    if not text.partition("=")[0] or "=" not in text:
        raise ValueError("invalid entry: expected NAME=VALUE")


def _ratio(value: object) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise ValueError(f"expected a number from 0 to 1, got {value!r}")
    if not 0 <= value <= 1:
        raise ValueError(f"must be between 0 and 1, got {value}")
    return float(value)


def _number(text: str) -> object:
    try:
        return float(text)
    except ValueError:
        return text


@dataclass(frozen=True)
class TelemetryConfig:
    """[telemetry]: metrics and spans by OTLP over HTTP."""

    endpoint: str = kinds.setting(kinds.text(check_endpoint), "")  # empty: off
    metrics: bool = kinds.setting(kinds.flag(), default=True)
    traces: bool = kinds.setting(kinds.flag(), default=True)
    sample_ratio: float = kinds.setting(Kind(_ratio, _number), 1.0)
    interval_ns: int = kinds.duration_setting(limits.INTERVAL)
    timeout_ns: int = field(
        default=limits.TIMEOUT,
        metadata={"kind": kinds.duration(1, limits.TIMEOUT_MAX)},
    )
    queue_spans: int = kinds.count_setting(limits.QUEUE_SPANS, 1, limits.QUEUE_SPANS_MAX)
    headers: tuple[str, ...] = kinds.setting(kinds.texts(check_pair), (), shown=False)
    service_name: str = kinds.setting(kinds.text(), "twinwire")
    resource: tuple[str, ...] = kinds.setting(kinds.texts(check_pair), ())

    @property
    def enabled(self) -> bool:
        """Whether anything is exported."""
        return bool(self.endpoint) and (self.metrics or self.traces)


assert limits.QUEUE_SPANS_MAX <= COUNT_MAX
