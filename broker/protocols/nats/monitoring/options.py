"""Options of the monitoring pages, from a query string or from the JSON of a request; and Go's
formats of times, durations and numbers on the pages.

Fields have the names of the JSON. A query has other names for some of them. Its options are checked
in the original's order, and the first invalid one is reported.
"""

from __future__ import annotations

import re
import time
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Final, Self

import orjson

from broker.base.gotext import duration_text, go_quote
from broker.base.patterns import lazy_pattern
from broker.base.units import MS, SECOND, US
from broker.base.values import dataclass
from broker.protocols.nats.monitoring import errors

if TYPE_CHECKING:
    from collections.abc import Mapping

_TRUE: Final = frozenset({"1", "t", "T", "TRUE", "true", "True"})
_FALSE: Final = frozenset({"", "0", "f", "F", "FALSE", "false", "False"})
_INTEGER: Final = lazy_pattern(r"[+-]?[0-9]+", re.ASCII)
_UNSIGNED: Final = lazy_pattern(r"[0-9]+", re.ASCII)
_INT_MAX: Final = 2**63

OPEN, CLOSED, ANY = range(3)  # `state`
_STATES: Final = {"": OPEN, "open": OPEN, "closed": CLOSED, "any": ANY, "all": ANY}
_ESCAPED = {b"<": rb"\u003c", b">": rb"\u003e", b"&": rb"\u0026"}


class PageError(ValueError):
    """The options are invalid; the text is for the client."""


class Query:
    """The query of a URL."""

    def __init__(self, query: Mapping[str, str]) -> None:
        self._query = query

    def text(self, name: str) -> str:
        """The text of an option; the first one of several."""
        return self._query.get(name, "")

    def boolean(self, name: str) -> bool:
        """A boolean in one of Go's forms."""
        value = self.text(name)
        if value in _TRUE:
            return True
        if value in _FALSE:
            return False
        raise PageError(errors.BOOLEAN.format(name, _quote(value), errors.SYNTAX))

    def integer(self, name: str) -> int:
        """A signed number of 64 bits; 0 if absent."""
        value = self.text(name)
        if not value:
            return 0
        return self._number(name, value, _INTEGER, _INT_MAX, errors.INTEGER)

    def unsigned(self, name: str) -> int:
        """An unsigned number of 64 bits."""
        value = self.text(name)
        if not value:
            return 0
        return self._number(name, value, _UNSIGNED, 2 * _INT_MAX, errors.UNSIGNED)

    @staticmethod
    def _number(name: str, value: str, shape: re.Pattern[str], bound: int, error: str) -> int:
        if not shape.fullmatch(value):
            raise PageError(error.format(name, _quote(value), errors.SYNTAX))
        digits = value.lstrip("+-").lstrip("0") or "0"
        # skip int() for many digits, because it refuses them or is slow
        found = int(digits) * (-1 if value[0] == "-" else 1) if len(digits) < 30 else 2 * bound
        if not -bound <= found < bound:
            raise PageError(error.format(name, _quote(value), errors.RANGE))
        return found

    def state(self) -> int:
        """The state of connections: open, closed or any."""
        value = self.text("state")
        state = _STATES.get(value.lower())
        if state is None:
            raise PageError(errors.STATE.format(value))
        return state

    def subs(self) -> tuple[bool, bool]:
        """Whether subscriptions are requested, and whether with details."""
        if self.text("subs").lower() == "detail":
            return False, True
        return self.boolean("subs"), False


def _quote(value: str) -> str:
    return go_quote(value.encode("utf-8", "surrogateescape"))


class _FromJson:
    """Options from the fields of a validated JSON object."""

    __slots__ = ()

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """The options; absent fields keep their defaults, unknown ones are ignored."""
        names = [field.name for field in fields(cls)]  # type: ignore[arg-type]
        return cls(**{name: values[key] for name in names if (key := _key(name)) in values})


def _key(name: str) -> str:
    return name.replace("_", "-") if name.startswith("js_") else name


@dataclass(frozen=True, slots=True)
class VarzOptions(_FromJson):
    """The options of /varz: none."""

    @classmethod
    def from_query(cls, _query: Query) -> VarzOptions:
        return cls()


@dataclass(frozen=True, slots=True)
class ConnzOptions(_FromJson):
    """The options of /connz."""

    sort: str = ""
    auth: bool = False
    subscriptions: bool = False
    subscriptions_detail: bool = False
    offset: int = 0
    limit: int = 0
    cid: int = 0
    mqtt_client: str = ""
    state: int = OPEN
    user: str = ""
    acc: str = ""
    filter_subject: str = ""

    @classmethod
    def from_query(cls, query: Query) -> ConnzOptions:
        auth = query.boolean("auth")
        subs, detail = query.subs()
        return cls(
            sort=query.text("sort"),
            auth=auth,
            subscriptions=subs,
            subscriptions_detail=detail,
            offset=query.integer("offset"),
            limit=query.integer("limit"),
            cid=query.unsigned("cid"),
            state=query.state(),
            user=query.text("user"),
            acc=query.text("acc"),
            mqtt_client=query.text("mqtt_client"),
            filter_subject=query.text("filter_subject"),
        )


@dataclass(frozen=True, slots=True)
class SubszOptions(_FromJson):
    """The options of /subsz."""

    offset: int = 0
    limit: int = 0
    subscriptions: bool = False
    account: str = ""
    test: str = ""

    @classmethod
    def from_query(cls, query: Query) -> SubszOptions:
        return cls(
            subscriptions=query.boolean("subs"),
            offset=query.integer("offset"),
            limit=query.integer("limit"),
            account=query.text("acc"),
            test=query.text("test"),
        )


@dataclass(frozen=True, slots=True)
class RoutezOptions(_FromJson):
    """The options of /routez."""

    subscriptions: bool = False
    subscriptions_detail: bool = False

    @classmethod
    def from_query(cls, query: Query) -> RoutezOptions:
        return cls(*query.subs())


@dataclass(frozen=True, slots=True)
class GatewayzOptions(_FromJson):
    """The options of /gatewayz."""

    name: str = ""
    accounts: bool = False
    account_name: str = ""

    @classmethod
    def from_query(cls, query: Query) -> GatewayzOptions:
        return cls(
            accounts=query.boolean("accs"),
            name=query.text("gw_name"),
            account_name=query.text("acc_name"),
        )


@dataclass(frozen=True, slots=True)
class LeafzOptions(_FromJson):
    """The options of /leafz."""

    subscriptions: bool = False
    account: str = ""

    @classmethod
    def from_query(cls, query: Query) -> LeafzOptions:
        return cls(query.boolean("subs"), query.text("acc"))


@dataclass(frozen=True, slots=True)
class AccountzOptions(_FromJson):
    """The options of /accountz."""

    account: str = ""

    @classmethod
    def from_query(cls, query: Query) -> AccountzOptions:
        return cls(query.text("acc"))


@dataclass(frozen=True, slots=True)
class AccstatzOptions(_FromJson):
    """The options of /accstatz."""

    accounts: tuple[str, ...] = ()  # empty: all
    include_unused: bool = False

    @classmethod
    def from_query(cls, query: Query) -> AccstatzOptions:
        return cls(include_unused=query.boolean("unused"))


@dataclass(frozen=True, slots=True)
class JszOptions(_FromJson):
    """The options of /jsz."""

    account: str = ""
    accounts: bool = False
    streams: bool = False
    consumer: bool = False
    direct_consumer: bool = False  # those of mirrors and sources: there are none
    config: bool = False
    leader_only: bool = False
    offset: int = 0
    limit: int = 0
    raft: bool = False
    stream_leader_only: bool = False

    @classmethod
    def from_query(cls, query: Query) -> JszOptions:
        return cls(
            accounts=query.boolean("accounts"),
            streams=query.boolean("streams"),
            consumer=query.boolean("consumers"),
            direct_consumer=query.boolean("direct-consumers"),
            config=query.boolean("config"),
            offset=query.integer("offset"),
            limit=query.integer("limit"),
            leader_only=query.boolean("leader-only"),
            raft=query.boolean("raft"),
            stream_leader_only=query.boolean("stream-leader-only"),
            account=query.text("acc"),
        )


@dataclass(frozen=True, slots=True)
class HealthzOptions(_FromJson):
    """The options of /healthz."""

    js_enabled: bool = False
    js_enabled_only: bool = False
    js_server_only: bool = False
    js_meta_only: bool = False  # of clusters
    account: str = ""
    stream: str = ""
    consumer: str = ""
    details: bool = False

    @classmethod
    def from_query(cls, query: Query) -> HealthzOptions:
        return cls(
            js_enabled=query.boolean("js-enabled"),
            js_enabled_only=query.boolean("js-enabled-only"),
            js_server_only=query.boolean("js-server-only"),
            js_meta_only=query.boolean("js-meta-only"),
            details=query.boolean("details"),
            account=query.text("account"),
            stream=query.text("stream"),
            consumer=query.text("consumer"),
        )


_ESCAPED |= {"\u2028".encode(): rb"\u2028", "\u2029".encode(): rb"\u2029"}


def rfc3339(wall_ns: int) -> str:
    """A wall clock time in UTC, with nanoseconds without trailing zeros."""
    seconds, fraction = divmod(wall_ns, SECOND)
    text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    digits = f"{fraction:09d}".rstrip("0")
    return f"{text}.{digits}Z" if digits else f"{text}Z"


def uptime(span_ns: int) -> str:
    """1y2d3h4m5s, from the largest unit that is not zero."""
    seconds = max(0, span_ns) // SECOND
    rest, parts = divmod(seconds, 60)[0], [f"{seconds % 60}s"]
    for size, unit in ((60, "m"), (24, "h"), (365, "d")):
        if not rest:
            break
        rest, count = divmod(rest, size)
        parts.append(f"{count}{unit}")
    if rest:
        parts.append(f"{rest}y")
    return "".join(reversed(parts))


def round_trip(rtt_ns: int) -> str:
    """A round trip time; below a millisecond in whole microseconds."""
    if US < rtt_ns < MS:
        rtt_ns -= rtt_ns % US
    return duration_text(rtt_ns)


def number(value: float) -> float:
    """The number for JSON, where whole numbers have no fraction."""
    return int(value) if value == int(value) else value


def seconds(duration_ns: int) -> float:
    """A duration in seconds, as in the original."""
    return number(duration_ns / SECOND)


def text(raw: bytes) -> str:
    """A subject or name as text for JSON."""
    return raw.decode("utf-8", "replace")


def encode(page: Any, *, indent: bool = True) -> bytes:
    """JSON exactly as Go encodes it: characters with a meaning in HTML are escaped."""
    try:
        body = orjson.dumps(page, option=orjson.OPT_INDENT_2 if indent else 0)
    except TypeError:  # a lone surrogate from a client's JSON
        body = orjson.dumps(_whole(page), option=orjson.OPT_INDENT_2 if indent else 0)
    for mark, escape in _ESCAPED.items():
        if mark in body:
            body = body.replace(mark, escape)
    return body


def _whole(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {_whole(key): _whole(inner) for key, inner in value.items()}
    return [_whole(inner) for inner in value] if isinstance(value, list | tuple) else value


def filled(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields without empty ones, like Go's omitempty."""
    return {name: value for name, value in fields.items() if value or value is None}
