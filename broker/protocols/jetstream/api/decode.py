"""Decodes bodies of requests as Go does, with Go's errors.

msgspec decodes a body that has the exact names and types. A body that it refuses is decoded again
in Python: names match in any case, null leaves the default, and errors have Go's texts.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec
from msgspec import inspect

from broker.base.gotext import go_quote
from broker.protocols.jetstream import errors
from broker.protocols.jetstream.errors import ApiError
from broker.protocols.jetstream.structs import time_ns, time_text
from broker.protocols.nats.system.errors import GO_JSON_DEPTH, GO_JSON_TYPE
from broker.protocols.nats.system.go_json import syntax_error_at

if TYPE_CHECKING:
    from typing import NoReturn

T = TypeVar("T", bound=msgspec.Struct)
log = logging.getLogger("broker.jetstream")

_BLANK: Final = b" \t\r\n"
_RANGES: Final = {"uint64": (0, 2**64 - 1), "int32": (-(2**31), 2**31 - 1)}
_INT64: Final = (-(2**63), 2**63 - 1)
_KINDS: Final[dict[type, str]] = {
    str: "string",
    bool: "bool",
    int: "number",
    float: "number",
    list: "array",
    dict: "object",
}
# The names of requests in Go's errors. The first one embeds another struct.
_GO_NAMES: Final = {
    "StreamConfigRequest": "StreamConfigRequest.StreamConfig",
    "PurgeRequest": "JSApiStreamPurgeRequest",
    "MsgGetRequest": "JSApiMsgGetRequest",
    "MsgDeleteRequest": "JSApiMsgDeleteRequest",
    "PauseRequest": "JSApiConsumerPauseRequest",
    "ResetRequest": "JSApiConsumerResetRequest",
}


def is_empty(body: bytes) -> bool:
    """Whether a body counts as empty for verbs that allow no body."""
    text = body.strip(_BLANK)
    return not text or text == b"{}"


def is_json(body: bytes) -> bool:
    """Whether a body begins like an object or array. Other optional bodies are ignored."""
    return body.lstrip(_BLANK)[:1] in (b"{", b"[")


def decode(body: bytes, kind: type[T], *, strict: bool = True) -> T:
    """The request in a body. `strict`: unknown fields are errors. ApiError 10025."""
    try:
        return _normalized(msgspec.json.decode(body, type=kind, strict=True))
    except (msgspec.MsgspecError, UnicodeError, RecursionError, _OutOfRangeError):
        return _decode_slowly(body, kind, strict=strict)


def _unwrapped(kind: inspect.Type) -> tuple[inspect.Type, str]:
    """The type without constraints and None, and its name in Go; "" if it has none."""
    name = ""
    while True:
        if isinstance(kind, inspect.Metadata):
            name = (kind.extra or {}).get("go", name)
            kind = kind.type
        elif isinstance(kind, inspect.UnionType):
            kind = next(each for each in kind.types if not isinstance(each, inspect.NoneType))
        else:
            return kind, name


# --- the slow path -------------------------------------------------------------------------------


def _decode_slowly(body: bytes, kind: type[T], *, strict: bool) -> T:
    try:
        value = json.loads(body.decode("utf-8", "replace"), parse_constant=_refuse_constant)
    except RecursionError:
        refuse(GO_JSON_DEPTH)
    except ValueError:
        text, at = syntax_error_at(body)
        refuse(f"{text} at offset {at}")
    reader = _Reader(strict=strict)
    if value is None:
        return kind()
    built = reader.read(value, inspect.type_info(kind), kind.__name__)
    return _normalized(msgspec.convert(built, kind, strict=True))


def _refuse_constant(word: str) -> NoReturn:
    raise ValueError(word)


def refuse(text: str) -> NoReturn:
    """Raise ApiError 10025 with this text."""
    raise ApiError(errors.INVALID_JSON, err=text)


class _Reader:
    """Converts a parsed body to the names and values that msgspec expects."""

    def __init__(self, *, strict: bool) -> None:
        self.strict = strict

    def read(self, value: Any, kind: inspect.Type, path: str) -> Any:
        kind, go = _unwrapped(kind)
        if isinstance(kind, inspect.StructType):
            return self._struct(value, kind, path)
        if isinstance(kind, inspect.ListType):
            if not isinstance(value, list):
                self._refuse_type(value, path, "[]string")
            zero = {} if isinstance(_unwrapped(kind.item_type)[0], inspect.StructType) else ""
            items = [zero if each is None else each for each in value]
            return [self.read(each, kind.item_type, path) for each in items]
        if isinstance(kind, inspect.DictType):
            if not isinstance(value, dict):
                self._refuse_type(value, path, "map[string]string")
            return {name: self.read(each, kind.value_type, path) for name, each in value.items()}
        return self._scalar(value, kind, go, path)

    def _struct(self, value: Any, kind: inspect.StructType, path: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            name = _KINDS.get(type(value), "null")
            go = _GO_NAMES.get(path, path).partition(".")[0]
            refuse(f"json: cannot unmarshal {name} into Go value of type server.{go}")
        fields = {each.encode_name: each.type for each in kind.fields}
        built: dict[str, Any] = {}
        inside = _GO_NAMES.get(path) or _nested_path(kind.cls.__name__, path)
        for given, inner in value.items():
            name = given if given in fields else given.casefold()
            if name not in fields:
                if self.strict:
                    refuse(f"json: unknown field {go_quote(given)}")
                log.warning("a request has the unknown field %s", go_quote(given))
            elif inner is not None:  # null leaves the default
                built[name] = self.read(inner, fields[name], f"{inside}.{name}")
        return built

    def _scalar(self, value: Any, kind: inspect.Type, go: str, path: str) -> Any:
        if isinstance(kind, inspect.LiteralType):
            if value not in kind.values or not isinstance(value, str):
                refuse(f"can not unmarshal {go_quote(json.dumps(value, ensure_ascii=False))}")
        elif isinstance(kind, inspect.StrType):
            if not isinstance(value, str):
                self._refuse_type(value, path, go or "string")
        elif isinstance(kind, inspect.BoolType):
            if not isinstance(value, bool):
                self._refuse_type(value, path, "bool")
        elif isinstance(kind, inspect.IntType):
            low, high = _RANGES.get(go, _INT64)
            if isinstance(value, bool) or not isinstance(value, int):
                number = f"number {value}" if isinstance(value, float) else None
                self._refuse_type(value, path, go, number)
            if not low <= value <= high:
                self._refuse_type(value, path, go, f"number {value}")
        return value

    def _refuse_type(self, value: Any, path: str, go: str, shown: str | None = None) -> NoReturn:
        name = shown or _KINDS.get(type(value), "null")
        refuse(GO_JSON_TYPE.format(name, f"struct field {path}", go))


def _nested_path(name: str, path: str) -> str:
    """The path of a nested struct in Go's errors: its name, then the fields that lead to it."""
    return ".".join([name, *path.split(".")[1:]])


# --- times and numbers ---------------------------------------------------------------------------


class _OutOfRangeError(Exception):
    """A number is outside the range of its type in Go."""


def _normalized(found: T) -> T:
    """The same request with all times in UTC, as Go writes them. _OutOfRangeError."""
    for name, go in _special_fields(type(found)):
        value = getattr(found, name)
        if go == _TIME:
            if value:
                setattr(found, name, _time(value))
        elif go in _RANGES:
            low, high = _RANGES[go]
            if not low <= value <= high:
                raise _OutOfRangeError
        else:
            for inner in value if isinstance(value, list) else [value]:
                if isinstance(inner, msgspec.Struct):
                    _normalized(inner)
    return found


def _time(text: str) -> str:
    try:
        normal = time_text(time_ns(text))
        time_ns(normal)  # its year may have more digits in UTC
    except (ValueError, OverflowError):
        refuse(
            f'parsing time {go_quote(text)} as "2006-01-02T15:04:05Z07:00": '
            f'cannot parse {go_quote(text)} as "2006"'
        )
    return normal


_TIME: Final = "time.Time"
_SPECIAL_FIELDS: Final[dict[type, list[tuple[str, str]]]] = {}


def _special_fields(kind: type[msgspec.Struct]) -> list[tuple[str, str]]:
    """The names of fields with a Go type that is a time or has its own range, each with this type.
    "" instead of a type: a struct, or a list of structs, that may contain such fields."""
    known = _SPECIAL_FIELDS.get(kind)
    if known is None:
        known = _SPECIAL_FIELDS[kind] = []
        info = inspect.type_info(kind)
        assert isinstance(info, inspect.StructType)
        for each in info.fields:
            inner, go = _unwrapped(each.type)
            if go == _TIME or go in _RANGES:
                known.append((each.name, go))
            elif isinstance(inner, inspect.StructType) or (
                isinstance(inner, inspect.ListType)
                and isinstance(_unwrapped(inner.item_type)[0], inspect.StructType)
            ):
                known.append((each.name, ""))
    return known
