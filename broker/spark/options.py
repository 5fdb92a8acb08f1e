"""The options of source and sink: the names of Spark's Kafka source, case-insensitive.

Invalid options are refused when the query is built: unknown names, invalid values, options that
exclude each other.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from broker.client.bulk.options import Options, Tls, parse_server
from broker.spark.errors import (
    BAD_VALUE,
    CONFLICT,
    MISSING,
    NEEDS,
    ONE_OF,
    UNKNOWN,
    OptionError,
)  # fmt: skip
from broker.spark.limits import (
    FETCH_BYTES,
    FETCH_BYTES_MAX,
    FETCH_RETRIES,
    FETCH_TIMEOUT_MS,
    PARTITION_RECORDS,
    READER_TTL_STREAM_S,
)

_UNITS: Final = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_TIME_UNITS: Final = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
TLS: Final = ("tls.ca", "tls.cert", "tls.key", "tls.serverName")
SHARED: Final = (
    "servers", "token", "tokenFile", *TLS, "fetchRetries", "fetchTimeoutMs", "keyHeader",
)  # fmt: skip


def bad(name: str, value: object, wanted: str) -> OptionError:
    return OptionError(BAD_VALUE.format(name=name, value=value, wanted=wanted))


class Words:
    """The options of one query, read by name and type. OptionError."""

    def __init__(self, options: Mapping[str, str], known: Iterable[str]) -> None:
        names = {name.lower(): name for name in known}
        self._values: dict[str, str] = {}
        for given, value in options.items():
            name = names.get(given.lower())
            if name is None:
                close = difflib.get_close_matches(given.lower(), names, 1)
                hint = f"; did you mean {names[close[0]]!r}?" if close else ""
                raise OptionError(UNKNOWN.format(name=given, hint=hint))
            self._values[name] = value

    def has(self, name: str) -> bool:
        return name in self._values

    def given(self, names: Iterable[str]) -> list[str]:
        return [name for name in names if name in self._values]

    def only_one(self, names: Iterable[str], *, required: bool = False) -> str | None:
        names = tuple(names)
        given = self.given(names)
        if len(given) > 1 and not required:
            raise OptionError(CONFLICT.format(first=given[0], second=given[1]))
        if len(given) != 1 and required:
            raise OptionError(ONE_OF.format(names=", ".join(map(repr, names))))
        return given[0] if given else None

    def needs(self, name: str, other: str) -> None:
        if self.has(name) and not self.has(other):
            raise OptionError(NEEDS.format(name=name, other=other))

    def text(self, name: str) -> str | None:
        value = self._values.get(name)
        if value is not None and not value.strip():
            raise bad(name, value, "a text")
        return value

    def flag(self, name: str, default: bool) -> bool:
        value = self._values.get(name)
        if value is None:
            return default
        if value.strip().lower() not in {"true", "false"}:
            raise bad(name, value, "true or false")
        return value.strip().lower() == "true"

    def number(self, name: str, default: int | None, low: int = 1, high: int = 2**62) -> Any:
        return self._scaled(name, default, {"": 1}, (low, high), "a whole number")

    def size(self, name: str, default: int | None, low: int = 1, high: int = 2**62) -> Any:
        return self._scaled(name, default, _UNITS, (low, high), "a size such as 4194304 or 4m")

    def seconds(self, name: str, default: int) -> int:
        value = self._scaled(
            name, default, _TIME_UNITS, (1, 2**31), "a duration such as 3600, 60m or 1h"
        )
        assert value is not None
        return value

    def _scaled(
        self,
        name: str,
        default: int | None,
        units: Mapping[str, int],
        bounds: tuple[int, int],
        wanted: str,
    ) -> int | None:
        value = self._values.get(name)
        if value is None:
            return default
        match = re.fullmatch(r"\s*(-?\d+)\s*([a-z]?)i?b?\s*", value.lower())
        if match is None or match[2] not in units:
            raise bad(name, value, wanted)
        number = int(match[1]) * units[match[2]]
        if not bounds[0] <= number <= bounds[1]:
            raise bad(name, value, f"between {bounds[0]} and {bounds[1]}")
        return number

    def choice(self, name: str, default: str, choices: Iterable[str]) -> str:
        value = self._values.get(name, default).strip()
        for one in choices:
            if one.lower() == value.lower():
                return one
        raise bad(name, value, "one of " + ", ".join(choices))

    def names(self, name: str) -> tuple[str, ...]:
        parts = tuple(part.strip() for part in self._values.get(name, "").split(","))
        if not all(parts):
            raise bad(name, self._values[name], "a list of names separated by commas")
        return tuple(dict.fromkeys(parts))

    def json(self, name: str, wanted: str) -> Any:
        try:
            return json.loads(self._values[name])
        except ValueError:
            raise bad(name, self._values[name], wanted) from None


@dataclass(frozen=True, slots=True)
class Access:
    """How to connect to the brokers, and how often to retry."""

    servers: tuple[str, ...]
    options: Options


def access(words: Words) -> Access:
    if not words.has("servers"):
        raise OptionError(MISSING.format(name="servers"))
    servers = words.names("servers")
    for server in servers:
        try:
            parse_server(server)
        except ValueError:
            raise bad("servers", server, "HOST:PORT or https://HOST:PORT") from None
    words.only_one(("token", "tokenFile"))
    words.needs("tls.key", "tls.cert")
    tls = None
    if words.given(TLS):
        ca, cert, key, name = (words.text(option) or "" for option in TLS)
        tls = Tls(ca_file=ca, cert_file=cert, key_file=key, server_name=name)
    compress = words.choice("fetchCompression", "none", ("none", "zstd", "gzip"))
    return Access(
        servers,
        Options(
            token=words.text("token") or "",
            token_file=words.text("tokenFile") or "",
            tls=tls,
            timeout_s=words.number("fetchTimeoutMs", FETCH_TIMEOUT_MS, high=3_600_000) / 1000,
            retries=words.number("fetchRetries", FETCH_RETRIES, low=0, high=1000),
            fetch_bytes=words.size("fetchBytes", FETCH_BYTES, low=4096, high=FETCH_BYTES_MAX),
            compress="" if compress == "none" else compress,
        ),
    )


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which topics: by name, by a regular expression, or each with the ordinals of its brokers."""

    names: tuple[str, ...] = ()
    pattern: str | None = None
    assigned: Mapping[str, tuple[int, ...]] | None = None

    def has(self, topic: str, partition: int) -> bool:
        if self.assigned is not None:
            return partition in self.assigned.get(topic, ())
        if self.pattern is not None:
            return re.fullmatch(self.pattern, topic) is not None
        return topic in self.names


SUBSCRIPTIONS: Final = ("subscribe", "subscribePattern", "assign")


def wanted(words: Words) -> Wanted:
    kind = words.only_one(SUBSCRIPTIONS, required=True)
    if kind == "subscribe":
        return Wanted(names=words.names("subscribe"))
    if kind == "subscribePattern":
        pattern = words.text("subscribePattern")
        assert pattern is not None
        try:
            re.compile(pattern)
        except re.error as error:
            raise bad("subscribePattern", pattern, f"a regular expression: {error}") from None
        return Wanted(pattern=pattern)
    text = 'of the form {"topic": [0, 1]}'
    tree = words.json("assign", text)
    try:
        assigned = {t: tuple(sorted({int(p) for p in parts})) for t, parts in tree.items()}
        if not assigned or not all(assigned.values()):
            raise ValueError
    except (AttributeError, TypeError, ValueError):
        raise bad("assign", tree, text) from None
    return Wanted(names=tuple(assigned), assigned=assigned)


@dataclass(frozen=True, slots=True)
class Reading:
    """How tasks convert ranges to rows."""

    fail_on_loss: bool = True
    gap_rows: bool = False
    headers: bool = False
    metadata: bool = False
    key_header: str | None = None
    subject_filter: str | None = None


def reading(words: Words) -> Reading:
    fail = words.flag("failOnDataLoss", True)
    gap_rows = words.flag("gapRows", False)
    if fail and gap_rows:
        raise OptionError(CONFLICT.format(first="gapRows", second="failOnDataLoss = true"))
    subjects = words.text("subjectFilter")
    if subjects is not None and not is_subject_filter(subjects):
        raise bad(
            "subjectFilter",
            subjects,
            "a subject, perhaps with wildcards, such as orders.*.new or orders.>",
        )
    return Reading(
        fail_on_loss=fail,
        gap_rows=gap_rows,
        headers=words.flag("includeHeaders", False),
        metadata=words.flag("includeMetadata", False),
        key_header=words.text("keyHeader"),
        subject_filter=subjects,
    )


def is_subject_filter(text: str) -> bool:
    parts = text.split(".")
    return all(
        part and not any(char.isspace() for char in part) and (part != ">" or at == len(parts))
        for at, part in enumerate(parts, 1)
    )


@dataclass(frozen=True, slots=True)
class Splitting:
    """The size of a micro-batch, and how it is divided among tasks."""

    records_per_trigger: int | None = None
    bytes_per_trigger: int | None = None
    partitions_min: int = 1
    records_per_partition: int = PARTITION_RECORDS


def splitting(words: Words) -> Splitting:
    words.only_one(("maxOffsetsPerTrigger", "maxBytesPerTrigger"))
    return Splitting(
        records_per_trigger=words.number("maxOffsetsPerTrigger", None),
        bytes_per_trigger=words.size("maxBytesPerTrigger", None),
        partitions_min=words.number("minPartitions", 1),
        records_per_partition=words.number("maxRecordsPerPartition", PARTITION_RECORDS),
    )


NAME: Final = "a name of at most 128 letters, digits, '-', '_', '.' and '~'"


def is_name(text: str) -> bool:
    return re.fullmatch(r"[A-Za-z0-9_.~-]{1,128}", text) is not None


@dataclass(frozen=True, slots=True)
class Progress:
    """How the query reports its position to the brokers, and holds records that it has not read."""

    name: str | None = None
    hold: bool = True
    ttl_s: int = READER_TTL_STREAM_S
    asked_for: bool = False  # an option requires it: a rejection ends the query


def progress(words: Words, ttl_s: int) -> Progress:
    name = words.text("reader")
    if name is not None and not is_name(name):
        raise bad("reader", name, NAME)
    return Progress(
        name=name,
        hold=words.flag("hold", True),
        ttl_s=words.seconds("readerTtl", ttl_s),
        asked_for=bool(words.given(("reader", "hold", "readerTtl"))),
    )
