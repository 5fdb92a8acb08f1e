"""Decodes bodies of requests as Go does, with Go's errors.

msgspec decodes a body that has the exact names and types. A body that it refuses is decoded again
in Python: names match in any case, null leaves the default (policies refuse it), and errors have
Go's texts.
"""

from __future__ import annotations

import functools
import json
import logging
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec
from msgspec import inspect

from broker.base.gotext import go_quote, time_error
from broker.base.patterns import lazy_pattern
from broker.protocols.jetstream import errors, limits
from broker.protocols.jetstream.errors import ApiError
from broker.protocols.jetstream.structs import StreamConfig, time_ns, time_text
from broker.protocols.nats.system.errors import GO_JSON_DEPTH, GO_JSON_TYPE
from broker.protocols.nats.system.go_json import stream_error, syntax_error, text_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import NoReturn

T = TypeVar("T", bound=msgspec.Struct)
log = logging.getLogger("broker.jetstream")

_BLANK: Final = b" \t\r\n"
_BLANKS: Final = lazy_pattern(r"[ \t\r\n]*")
_RANGES: Final = {"uint64": (0, 2**64 - 1), "int32": (-(2**31), 2**31 - 1)}
_INT64: Final = (-(2**63), 2**63 - 1)
_TIME: Final = "time.Time"
_DIGITS_MAX: Final = 20  # of an integer in 64 bits
# Of unknown fields only this many names are logged, each once: a new client may send one in all
# its requests, and an invented one may have any length.
_LOGGED_MAX: Final = 100
_LOGGED_CHARS_MAX: Final = 100
_logged: Final[set[str]] = set()
_KINDS: Final[dict[type, str]] = {
    str: "string",
    bool: "bool",
    int: "number",
    list: "array",
    dict: "object",
    type(None): "null",
}
# Go's names of the structs that have other names here.
_GO_NAMES: Final = {
    "StreamInfoRequest": "JSApiStreamInfoRequest",
    "StreamNamesRequest": "JSApiStreamNamesRequest",
    "StreamListRequest": "JSApiStreamListRequest",
    "PageRequest": "JSApiConsumersRequest",
    "PurgeRequest": "JSApiStreamPurgeRequest",
    "MsgGetRequest": "JSApiMsgGetRequest",
    "MsgDeleteRequest": "JSApiMsgDeleteRequest",
    "SnapshotRequest": "JSApiStreamSnapshotRequest",
    "RestoreRequest": "JSApiStreamRestoreRequest",
    "PauseRequest": "JSApiConsumerPauseRequest",
    "UnpinRequest": "JSApiConsumerUnpinRequest",
    "ResetRequest": "JSApiConsumerResetRequest",
    "PullRequest": "JSApiConsumerGetNextRequest",
    "SubjectTransform": "SubjectTransformConfig",
}
# The structs that Go embeds in requests, and their fields.
_PAGED: Final = ("ApiPagedRequest", frozenset({"offset"}))
_EMBEDDED: Final = {
    "StreamConfigRequest": ("StreamConfig", frozenset(StreamConfig.__struct_fields__)),
    "StreamInfoRequest": _PAGED,
    "StreamNamesRequest": _PAGED,
    "StreamListRequest": _PAGED,
    "PageRequest": _PAGED,
    "PullRequest": (
        "PriorityGroup",
        frozenset({"group", "min_pending", "min_ack_pending", "id", "priority"}),
    ),
}
# Errors for other values than those of an enumeration, by its Go type.
_ENUM_ERRORS: Final = {
    "server.ConsumerAction": "unknown consumer action: {}",
    "server.PriorityPolicy": "unknown priority policy: {}",
    "server.StoreCompression": "unknown compression algorithm",
}


def is_empty(body: bytes) -> bool:
    """Whether a body counts as empty: it has no bytes, or is an object without fields."""
    text = body.strip(_BLANK)
    return not body or (text[:1], text[1:].lstrip(_BLANK)) == (b"{", b"}")


def is_json(body: bytes) -> bool:
    """Whether a body begins like an object or array. Other optional bodies are ignored."""
    return body.lstrip(_BLANK)[:1] in (b"{", b"[")


def decode(body: bytes, kind: type[T], *, strict: bool = True) -> T:
    """The request in a body. `strict`: unknown fields are errors, and several objects may follow
    each other. ApiError 10025."""
    if len(body) > limits.JS_REQUEST_OBJECTS_MAX:  # shorter ones have fewer
        _check_size(body)
    try:
        return _normalized(msgspec.json.decode(body, type=kind, strict=True))
    except (msgspec.MsgspecError, UnicodeError, RecursionError, _OutOfRangeError):
        return _decode_slowly(body, kind, strict=strict)


def _check_size(body: bytes) -> None:
    """ApiError 10025: a body would keep the server busy for too long. Null counts as an object,
    which it is in a list of them."""
    values = body.count(b",") + 1
    objects = body.count(b"{") + body.count(b"null")
    if values > limits.JS_REQUEST_VALUES_MAX or objects > limits.JS_REQUEST_OBJECTS_MAX:
        refuse(
            f"more than {limits.JS_REQUEST_VALUES_MAX} values or"
            f" {limits.JS_REQUEST_OBJECTS_MAX} objects"
        )


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


def _go_type(kind: inspect.Type) -> str:
    """The name of a type in Go's errors."""
    kind, name = _unwrapped(kind)
    if isinstance(kind, inspect.StructType):
        return f"server.{_go_name(kind.cls.__name__)}"
    if isinstance(kind, inspect.ListType):
        item = _go_type(kind.item_type)
        return f"[]*{item}" if item == "server.StreamSource" else f"[]{item}"
    if isinstance(kind, inspect.DictType):
        return f"map[string]{_go_type(kind.value_type)}"
    return name or {inspect.BoolType: "bool", inspect.IntType: "int"}.get(type(kind), "string")


def _go_name(name: str) -> str:
    return _GO_NAMES.get(name, name)


@functools.cache
def _info(kind: type[msgspec.Struct]) -> inspect.Type:
    return inspect.type_info(kind)


@functools.cache
def _fields(kind: type[msgspec.Struct]) -> dict[str, inspect.Type]:
    info = _info(kind)
    assert isinstance(info, inspect.StructType)
    return {each.encode_name: each.type for each in info.fields}


# --- the slow path -------------------------------------------------------------------------------


class _Number(int):
    """A number, with its text if it is no integer of 64 bits: it has the value -1 then."""

    text: str


def _number(text: str) -> int:
    found = _Number(-1)
    found.text = text
    return found


def _integer(text: str) -> int:
    return int(text) if len(text) <= _DIGITS_MAX else _number(text)


def _refuse_constant(word: str) -> NoReturn:
    raise ValueError(word)


_decoder: Final = json.JSONDecoder(
    parse_int=_integer, parse_float=_number, parse_constant=_refuse_constant
)


def _decode_slowly(body: bytes, kind: type[T], *, strict: bool) -> T:
    built: dict[str, Any] = {}
    reader = _Reader(strict=strict)
    for value in _values(body, several=strict):
        if value is not None:
            built.update(reader.built(value, kind))
    return _normalized(msgspec.convert(built, kind, strict=True))


def _values(body: bytes, *, several: bool) -> Iterator[Any]:
    """The JSON values in a body. `several`: as Go's Decoder, which reads one after the other and
    reports where an error is; otherwise there is one."""
    text = body.decode("utf-8", "replace")
    at = _after_blanks(text, 0)
    if at == len(text) and several:
        return
    try:
        while True:
            value, at = _decoder.raw_decode(text, at)
            at = _after_blanks(text, at)
            if at < len(text) and not several:
                refuse(syntax_error(body))
            yield value
            if at == len(text):
                return
    except RecursionError:
        refuse(GO_JSON_DEPTH)
    except ValueError:
        refuse(stream_error(body) if several else syntax_error(body))


def _after_blanks(text: str, at: int) -> int:
    found = _BLANKS.match(text, at)
    assert found is not None
    return found.end()


def refuse(text: str) -> NoReturn:
    """Raise ApiError 10025 with this text."""
    raise ApiError(errors.INVALID_JSON, err=text)


class _Reader:
    """Converts a parsed body to the names and values that msgspec expects.

    As in Go, an unknown field or a wrong type is reported when all has been read, the first one of
    them; a wrong value of an enumeration or a time at once.
    """

    def __init__(self, *, strict: bool) -> None:
        self.strict = strict
        self.problem = ""  # the first one

    def built(self, value: Any, kind: type[msgspec.Struct]) -> dict[str, Any]:
        """The fields in a parsed body. ApiError 10025."""
        name = _go_name(kind.__name__)
        if not isinstance(value, dict):
            refuse(f"json: cannot unmarshal {_kind_of(value)} into Go value of type server.{name}")
        found: dict[str, Any] = self._read(value, _info(kind), name)
        if self.problem:
            refuse(self.problem)
        return found

    def _read(self, value: Any, kind: inspect.Type, path: str) -> Any:
        inner, go = _unwrapped(kind)
        if isinstance(inner, inspect.StructType):
            if isinstance(value, dict):
                return self._struct(value, inner, path)
        elif isinstance(inner, inspect.ListType):
            if isinstance(value, list):
                zero = _zero(inner.item_type)
                items = [zero if each is None else each for each in value]
                return [self._read(each, inner.item_type, path) for each in items]
        elif isinstance(inner, inspect.DictType):
            if isinstance(value, dict):
                zero = _zero(inner.value_type)
                return {
                    text_of(name): self._read(
                        zero if each is None else each, inner.value_type, path
                    )
                    for name, each in value.items()
                }
        elif isinstance(inner, inspect.LiteralType):
            return self._enumeration(value, inner, go, path)
        else:
            return self._scalar(value, kind, path)
        return self._wrong_type(value, path, _go_type(kind))

    def _struct(self, value: dict[str, Any], kind: inspect.StructType, path: str) -> dict[str, Any]:
        fields = _fields(kind.cls)
        own = kind.cls.__name__
        # In Go's errors: the struct, then the fields that lead to it.
        inside = ".".join([_go_name(own), *path.split(".")[1:]])
        group, members = _EMBEDDED.get(own, ("", frozenset()))
        built: dict[str, Any] = {}
        for raw, inner in value.items():
            given = text_of(raw)
            name = given if given in fields else given.casefold()
            if name not in fields:
                if self.strict:
                    self.problem = self.problem or f"json: unknown field {go_quote(given)}"
                else:
                    _log_unknown(given[:_LOGGED_CHARS_MAX])
            elif inner is not None or _is_enumeration(fields[name]):  # else null: the default
                where = f"{inside}.{group}.{name}" if name in members else f"{inside}.{name}"
                built[name] = self._read(inner, fields[name], where)
        return built

    def _enumeration(self, value: Any, kind: inspect.LiteralType, go: str, path: str) -> Any:
        if go == "server.DiscardPolicy" and isinstance(value, str):
            value = value.lower()
        if isinstance(value, str) and value in kind.values:
            return value
        if go == "server.StoreCompression" and value is not None and not isinstance(value, str):
            refuse(GO_JSON_TYPE.format(_kind_of(value), f"struct field {path}", "string"))
        text = getattr(value, "text", None) or json.dumps(value, ensure_ascii=False)
        if go in _ENUM_ERRORS:
            refuse(_ENUM_ERRORS[go].format(text))
        refuse(f"can not unmarshal {go_quote(text)}")

    def _scalar(self, value: Any, kind: inspect.Type, path: str) -> Any:
        inner, go = _unwrapped(kind)
        if isinstance(inner, inspect.StrType):
            if isinstance(value, str):
                return _time(text_of(value)) if go == _TIME else text_of(value)
            if go == _TIME:
                refuse("Time.UnmarshalJSON: input is not a JSON string")
        elif isinstance(inner, inspect.BoolType):
            if isinstance(value, bool):
                return value
        elif isinstance(value, int) and not isinstance(value, bool):
            low, high = _RANGES.get(go, _INT64)
            if not isinstance(value, _Number) and low <= value <= high:
                return value
            text = getattr(value, "text", value)
            return self._wrong_type(value, path, _go_type(kind), f"number {text}")
        return self._wrong_type(value, path, _go_type(kind))

    def _wrong_type(self, value: Any, path: str, go: str, shown: str = "") -> None:
        """Note the error for a value. It is not used, and so it becomes None."""
        if not self.problem:
            kind = shown or _kind_of(value)
            self.problem = GO_JSON_TYPE.format(kind, f"struct field {path}", go)


def _log_unknown(name: str) -> None:
    if name not in _logged and len(_logged) < _LOGGED_MAX:
        _logged.add(name)
        log.warning("a request has the unknown field %s, which is ignored", go_quote(name))


def _kind_of(value: Any) -> str:
    return "number" if isinstance(value, _Number) else _KINDS[type(value)]


def _is_enumeration(kind: inspect.Type) -> bool:
    return isinstance(_unwrapped(kind)[0], inspect.LiteralType)


def _zero(kind: inspect.Type) -> Any:
    """What null is inside a list or a map."""
    inner = _unwrapped(kind)[0]
    if isinstance(inner, inspect.StructType):
        return {}
    return 0 if isinstance(inner, inspect.IntType) else ""


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
    """The same time in UTC. ApiError 10025."""
    try:
        if not text:
            raise ValueError(text)
        normal = time_text(time_ns(text))
        time_ns(normal)  # its year may have more digits in UTC
    except (ValueError, OverflowError):
        refuse(time_error(text))
    return normal


@functools.cache
def _special_fields(kind: type[msgspec.Struct]) -> list[tuple[str, str]]:
    """The names of fields with a Go type that is a time or has its own range, each with this type.
    "" instead of a type: a struct, or a list of structs, that may contain such fields."""
    found: list[tuple[str, str]] = []
    info = _info(kind)
    assert isinstance(info, inspect.StructType)
    for each in info.fields:
        inner, go = _unwrapped(each.type)
        if go == _TIME or go in _RANGES:
            found.append((each.name, go))
        elif isinstance(inner, inspect.StructType) or (
            isinstance(inner, inspect.ListType)
            and isinstance(_unwrapped(inner.item_type)[0], inspect.StructType)
        ):
            found.append((each.name, ""))
    return found
