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


class ParsedOptions:
    """The options of one query, read by name and type. OptionError."""

    def __init__(self, options: Mapping[str, str], known: Iterable[str]) -> None:
        names = {name.lower(): name for name in known}
        self._values: dict[str, str] = {}
        for option, value in options.items():
            name = names.get(option.lower())
            if name is None:
                close = difflib.get_close_matches(option.lower(), names, 1)
                hint = f"; did you mean {names[close[0]]!r}?" if close else ""
                raise OptionError(UNKNOWN.format(name=option, hint=hint))
            self._values[name] = value

    def has(self, name: str) -> bool:
        return name in self._values

    def present(self, names: Iterable[str]) -> list[str]:
        return [name for name in names if name in self._values]

    def only_one(self, names: Iterable[str], *, required: bool = False) -> str | None:
        names = tuple(names)
        present = self.present(names)
        if len(present) > 1 and not required:
            raise OptionError(CONFLICT.format(first=present[0], second=present[1]))
        if len(present) != 1 and required:
            raise OptionError(ONE_OF.format(names=", ".join(map(repr, names))))
        return present[0] if present else None

    def needs(self, name: str, other: str) -> None:
        if self.has(name) and not self.has(other):
            raise OptionError(NEEDS.format(name=name, other=other))

    def text(self, name: str) -> str | None:
        value = self._values.get(name)
        if value is not None and not value.strip():
            raise bad(name, value, "a text")
        return value

    def flag(self, name: str, *, default: bool) -> bool:
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
    """The addresses of the brokers, and the options of connections to them."""

    servers: tuple[str, ...]
    options: Options


def access(parsed: ParsedOptions) -> Access:
    if not parsed.has("servers"):
        raise OptionError(MISSING.format(name="servers"))
    servers = parsed.names("servers")
    for server in servers:
        try:
            parse_server(server)
        except ValueError:
            raise bad("servers", server, "HOST:PORT or https://HOST:PORT") from None
    parsed.only_one(("token", "tokenFile"))
    parsed.needs("tls.key", "tls.cert")
    tls = None
    if parsed.present(TLS):
        ca, cert, key, name = (parsed.text(option) or "" for option in TLS)
        tls = Tls(ca_file=ca, cert_file=cert, key_file=key, server_name=name)
    compress = parsed.choice("fetchCompression", "none", ("none", "zstd", "gzip"))
    return Access(
        servers,
        Options(
            token=parsed.text("token") or "",
            token_file=parsed.text("tokenFile") or "",
            tls=tls,
            timeout_s=parsed.number("fetchTimeoutMs", FETCH_TIMEOUT_MS, high=3_600_000) / 1000,
            retries=parsed.number("fetchRetries", FETCH_RETRIES, low=0, high=1000),
            fetch_bytes=parsed.size("fetchBytes", FETCH_BYTES, low=4096, high=FETCH_BYTES_MAX),
            compress="" if compress == "none" else compress,
        ),
    )


@dataclass(frozen=True, slots=True)
class Wanted:
    """The selected topics: by name, by a regular expression, or each with the ordinals of its
    brokers."""

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


def wanted(parsed: ParsedOptions) -> Wanted:
    kind = parsed.only_one(SUBSCRIPTIONS, required=True)
    if kind == "subscribe":
        return Wanted(names=parsed.names("subscribe"))
    if kind == "subscribePattern":
        pattern = parsed.text("subscribePattern")
        assert pattern is not None
        try:
            re.compile(pattern)
        except re.error as error:
            raise bad("subscribePattern", pattern, f"a regular expression: {error}") from None
        return Wanted(pattern=pattern)
    text = 'of the form {"topic": [0, 1]}'
    tree = parsed.json("assign", text)
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


def reading(parsed: ParsedOptions) -> Reading:
    fail = parsed.flag("failOnDataLoss", default=True)
    gap_rows = parsed.flag("gapRows", default=False)
    if fail and gap_rows:
        raise OptionError(CONFLICT.format(first="gapRows", second="failOnDataLoss = true"))
    subjects = parsed.text("subjectFilter")
    if subjects is not None and not is_subject_filter(subjects):
        raise bad(
            "subjectFilter",
            subjects,
            "a subject, perhaps with wildcards, such as orders.*.new or orders.>",
        )
    return Reading(
        fail_on_loss=fail,
        gap_rows=gap_rows,
        headers=parsed.flag("includeHeaders", default=False),
        metadata=parsed.flag("includeMetadata", default=False),
        key_header=parsed.text("keyHeader"),
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


def splitting(parsed: ParsedOptions) -> Splitting:
    parsed.only_one(("maxOffsetsPerTrigger", "maxBytesPerTrigger"))
    return Splitting(
        records_per_trigger=parsed.number("maxOffsetsPerTrigger", None),
        bytes_per_trigger=parsed.size("maxBytesPerTrigger", None),
        partitions_min=parsed.number("minPartitions", 1),
        records_per_partition=parsed.number("maxRecordsPerPartition", PARTITION_RECORDS),
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
    required: bool = False  # by an option: a rejection ends the query


def progress(parsed: ParsedOptions, ttl_s: int) -> Progress:
    name = parsed.text("reader")
    if name is not None and not is_name(name):
        raise bad("reader", name, NAME)
    return Progress(
        name=name,
        hold=parsed.flag("hold", default=True),
        ttl_s=parsed.seconds("readerTtl", ttl_s),
        required=bool(parsed.present(("reader", "hold", "readerTtl"))),
    )
