"""The synchronous client of the bulk API: reads ranges as Arrow, uploads blocks.

    from broker.client.bulk import read_arrow
    table = read_arrow("127.0.0.1:4171", "orders", columns=["offset", "value"])

It also runs on machines without a broker, such as a Spark executor: it imports no other part of the
package, except `client.tls`. PyArrow is imported when a function that needs it is used.
Start with `connection` (requests) and `reading` (whole topics). Imported by `spark`, `cli` and
users.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from broker.client.bulk.connection import Connection, connect
from broker.client.bulk.errors import (
    BeyondEnd,
    BulkError,
    Damaged,
    Gap,
    OtherIncarnation,
    Refused,
    Trimmed,
    Unauthorized,
    UnknownTopic,
    Unreachable,
    Unstorable,
    WrongDoor,
    WrongServer,
)
from broker.client.bulk.options import Options, Tls

if TYPE_CHECKING:
    from broker.client.bulk.arrow import SCHEMA, to_batches
    from broker.client.bulk.reading import iter_arrow, read_arrow

_LAZY = {
    "SCHEMA": "broker.client.bulk.arrow",
    "iter_arrow": "broker.client.bulk.reading",
    "read_arrow": "broker.client.bulk.reading",
    "to_batches": "broker.client.bulk.arrow",
}

__all__ = [
    "SCHEMA",
    "BeyondEnd",
    "BulkError",
    "Connection",
    "Damaged",
    "Gap",
    "Options",
    "OtherIncarnation",
    "Refused",
    "Tls",
    "Trimmed",
    "Unauthorized",
    "UnknownTopic",
    "Unreachable",
    "Unstorable",
    "WrongDoor",
    "WrongServer",
    "connect",
    "iter_arrow",
    "read_arrow",
    "to_batches",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_LAZY[name]), name)
