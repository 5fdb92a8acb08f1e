"""The operations of openapi.json, and checks of arguments and bodies against their schemas.

The server reads its own description, so an argument that is not described is refused, and each
default is defined once. Only the keywords that the requests of that file use are supported.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

import orjson

from broker.base.values import dataclass
from broker.console import errors
from broker.console.errors import RefusedError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    Schema = dict[str, Any]

FILE: Final = Path(__file__).with_name("openapi.json")
_TYPES: Final[dict[str, tuple[type, ...]]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "object": (dict,),
    "array": (list,),
    "null": (type(None),),
}
_BOOLEANS: Final = {"true": True, "1": True, "false": False, "0": False}


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one path."""

    name: str
    method: str
    path: str
    role: str | None  # the lowest role that may use it; None: no role is required
    live: bool
    query: dict[str, Schema]
    required: frozenset[str]
    body: Schema | None

    def arguments(self, values: Mapping[str, str]) -> dict[str, Any]:
        """The arguments of a query, with their types and defaults. RefusedError."""
        for name in values:
            if name not in self.query:
                raise RefusedError(errors.ARGUMENT, name=name, reason=errors.UNKNOWN)
        found: dict[str, Any] = {}
        for name, schema in self.query.items():
            if name in values:
                found[name] = _from_text(name, values[name], schema)
            elif name in self.required:
                raise RefusedError(errors.ARGUMENT, name=name, reason=errors.MISSING)
            else:
                found[name] = schema.get("default")
        return found

    def content(self, text: bytes) -> Any:
        """The body, with defaults. RefusedError."""
        if self.body is None:
            return None
        try:
            found = orjson.loads(text)
        except orjson.JSONDecodeError as problem:
            raise RefusedError(errors.BODY, reason=problem) from None
        reason = mismatch(found, self.body)
        if reason:
            raise RefusedError(errors.BODY, reason=reason)
        for name, schema in self.body.get("properties", {}).items():
            found.setdefault(name, schema.get("default"))
        return found


class Operations:
    """All operations of the file."""

    def __init__(self, text: bytes) -> None:
        self.all: list[Operation] = list(_operations(orjson.loads(text)))
        self._paths: dict[str, tuple[re.Pattern[str], dict[str, Operation]]] = {}
        for each in self.all:
            pattern = re.compile(re.sub(r"\\\{(\w+)\\\}", r"(?P<\1>[^/]+)", re.escape(each.path)))
            self._paths.setdefault(each.path, (pattern, {}))[1][each.method] = each

    def find(self, method: str, path: str) -> tuple[Operation, dict[str, str]]:
        """The operation for a path as it was sent, and the names in the path. RefusedError."""
        for pattern, methods in self._paths.values():
            match = pattern.fullmatch(path)
            if match is None:
                continue
            if method not in methods:
                raise RefusedError(errors.METHOD, method=method)
            names = {key: unquote(text) for key, text in match.groupdict().items()}
            return methods[method], names
        raise RefusedError(errors.NOT_FOUND)


def _operations(document: Mapping[str, Any]) -> Iterator[Operation]:
    for path, methods in document["paths"].items():
        for method, each in methods.items():
            query = [one for one in each.get("parameters", ()) if one["in"] == "query"]
            body = each.get("requestBody")
            yield Operation(
                name=each["operationId"],
                method=method.upper(),
                path=path,
                role=each["x-role"],
                live=each.get("x-live", False),
                query={one["name"]: one["schema"] for one in query},
                required=frozenset(one["name"] for one in query if one.get("required")),
                body=None if body is None else body["content"]["application/json"]["schema"],
            )


def _from_text(name: str, text: str, schema: Schema) -> Any:
    kind, value = schema["type"], text
    found: Any = value
    if kind == "integer" and re.fullmatch(r"[0-9]{1,19}", text, re.ASCII):
        found = int(text)
    elif kind == "boolean":
        found = _BOOLEANS.get(text, text)
    reason = mismatch(found, schema)
    if reason:
        raise RefusedError(errors.ARGUMENT, name=name, reason=reason)
    return found


def mismatch(value: Any, schema: Schema, name: str = "") -> str:
    """What is wrong with a value; empty if it is valid."""
    where = f"{name}: " if name else ""
    kinds = schema.get("type", ())
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if kinds and not any(_is(value, kind) for kind in kinds):
        return f"{where}expected {' or '.join(kinds)}"
    if "enum" in schema and value not in schema["enum"]:
        return f"{where}expected one of {', '.join(schema['enum'])}"
    if isinstance(value, int | float):
        return _outside(value, schema, where)
    if isinstance(value, list):
        found = (mismatch(one, schema.get("items", {}), name) for one in value)
        return next(filter(None, found), "")
    return _wrong_member(value, schema, where) if isinstance(value, dict) else ""


def _outside(value: float, schema: Schema, where: str) -> str:
    if value < schema.get("minimum", value):
        return f"{where}expected at least {schema['minimum']}"
    if value > schema.get("maximum", value):
        return f"{where}expected at most {schema['maximum']}"
    if "exclusiveMinimum" in schema and value <= schema["exclusiveMinimum"]:
        return f"{where}expected more than {schema['exclusiveMinimum']}"
    return ""


def _is(value: Any, kind: str) -> bool:
    is_truth = isinstance(value, bool)
    return isinstance(value, _TYPES[kind]) and (not is_truth or kind == "boolean")


def _wrong_member(value: dict[str, Any], schema: Schema, where: str) -> str:
    known, more = schema.get("properties", {}), schema.get("additionalProperties", True)
    for key in schema.get("required", ()):
        if key not in value:
            return f"{where}{key} is missing"
    for key, each in value.items():
        if key not in known and more is False:
            return f"{where}{key} is unknown"
        inner = known.get(key, more if isinstance(more, dict) else {})
        reason = mismatch(each, inner, key)
        if reason:
            return reason
    return ""
