"""A synchronous client of the bulk API: reads topics as Arrow tables, publishes blocks of rows.

    from twinwire import bulk

    table = bulk.read_arrow("127.0.0.1:4171", "orders", columns=["offset", "value"])

In signatures, `SeqOrTime` is a sequence number or a datetime, and `ToldGap` a function of the
broker's name, the topic and a `Gap`.

It needs only the standard library, and PyArrow for `read_arrow`, `iter_arrow`, `to_batches`,
`blocks` and `SCHEMA`, which is imported when one of them is used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from broker.client.bulk import (
    BeyondEnd,
    BulkError,
    Connection,
    Damaged,
    Gap,
    Options,
    OtherIncarnation,
    Refused,
    Tls,
    Trimmed,
    Unauthorized,
    UnknownTopic,
    Unreachable,
    Unstorable,
    WrongServer,
    connect,
)
from broker.client.bulk.connection import Committed, Listing, TimeOffset, Topic
from broker.client.bulk.frame import head_of

if TYPE_CHECKING:
    from broker.client.bulk.arrow import SCHEMA, to_batches
    from broker.client.bulk.encode import blocks
    from broker.client.bulk.reading import iter_arrow, read_arrow

_NEED_ARROW = {
    "SCHEMA": "broker.client.bulk.arrow",
    "blocks": "broker.client.bulk.encode",
    "iter_arrow": "broker.client.bulk.reading",
    "read_arrow": "broker.client.bulk.reading",
    "to_batches": "broker.client.bulk.arrow",
}

__all__ = [
    "SCHEMA",
    "BeyondEnd",
    "BulkError",
    "Committed",
    "Connection",
    "Damaged",
    "Gap",
    "Listing",
    "Options",
    "OtherIncarnation",
    "Refused",
    "TimeOffset",
    "Tls",
    "Topic",
    "Trimmed",
    "Unauthorized",
    "UnknownTopic",
    "Unreachable",
    "Unstorable",
    "WrongServer",
    "blocks",
    "connect",
    "head_of",
    "iter_arrow",
    "read_arrow",
    "to_batches",
]


def __getattr__(name: str) -> Any:
    if name not in _NEED_ARROW:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(_NEED_ARROW[name]), name)
    except ModuleNotFoundError as error:
        if error.name != "pyarrow":
            raise
        raise ImportError(
            f"twinwire.bulk.{name} needs PyArrow: pip install 'twinwire[arrow]'", name="pyarrow"
        ) from error


def __dir__() -> list[str]:
    return __all__
