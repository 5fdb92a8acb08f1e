"""The shape of a body, which messages that fail for the same reason often have in common.

    {"id": number, "lines": [{"sku": string, ...}]}      JSON: its keys and types, not its values
    XML <order>      text      binary (gzip)      empty

Two bodies of one shape differ only in their values. Keys that look like values (numbers, ids) count
as one, and large or deep bodies are cut, so that there are few shapes.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

from broker.spark.jobs.limits import SHAPE_BYTES, SHAPE_DEPTH, SHAPE_FIELDS

VERSION: Final = 1  # part of the group ids: increase it when shapes are computed differently
_KEY_CHARS: Final = 40
_ID: Final = re.compile(
    r"[0-9]+|[0-9a-fA-F]{16,}|[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
)
_JSON_BEGINS: Final = re.compile(rb'[ \t\r\n]*[\[{"0-9tfn-]')
_XML: Final = re.compile(
    rb"\s*(?:<\?[^>]*>\s*|<!--.*?-->\s*|<![^>]*>\s*)*<([A-Za-z_][\w.:-]*)", re.DOTALL
)
_MAGIC: Final = {
    b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"Obj\x01": "Avro", b"PAR1": "Parquet",
    b"PK\x03\x04": "zip", b"\x89PNG": "PNG", b"\xff\xd8\xff": "JPEG", b"%PDF": "PDF",
    b"\xff\x06\x00\x00sNaPpY": "snappy",
}  # fmt: skip


def shape_of(body: bytes) -> str:  # noqa: PLR0911
    if not body:
        return "empty"
    for magic, name in _MAGIC.items():
        if body.startswith(magic):
            return f"binary ({name})"
    if len(body) <= SHAPE_BYTES and _JSON_BEGINS.match(body):
        try:
            return _of_value(json.loads(body), 0)
        except RecursionError:
            return "JSON, nested deeply"
        except ValueError:
            pass
    try:
        body.decode()
    except UnicodeDecodeError:
        return "binary"
    if b"\0" in body:
        return "binary"
    match = _XML.match(body[:4096])
    return f"XML <{match[1].decode('utf-8', 'replace')[:_KEY_CHARS]}>" if match else "text"


def _of_value(value: Any, depth: int) -> str:
    match value:
        case bool():
            return "boolean"
        case int() | float():
            return "number"
        case str():
            return "string"
        case None:
            return "null"
        case list():
            return _of_list(value, depth)
        case _:
            return _of_object(value, depth)


def _of_list(values: list[Any], depth: int) -> str:
    if depth == SHAPE_DEPTH:
        return "[...]"
    kinds = sorted({_of_value(one, depth + 1) for one in values[:SHAPE_FIELDS]})
    return f"[{' | '.join(kinds)}]"


def _of_object(values: dict[str, Any], depth: int) -> str:
    if depth == SHAPE_DEPTH:
        return "{...}"
    fields: dict[str, set[str]] = {}
    for key, value in values.items():
        fields.setdefault(_name(key), set()).add(_of_value(value, depth + 1))
    if len(fields) > SHAPE_FIELDS:
        return "{many fields}"
    parts = [f"{key}: {' | '.join(sorted(kinds))}" for key, kinds in sorted(fields.items())]
    return f"{{{', '.join(parts)}}}"


def _name(key: str) -> str:
    if _ID.fullmatch(key):
        return "<id>"
    return json.dumps(key[:_KEY_CHARS], ensure_ascii=False)
