"""Twinwire's Python API.

    from twinwire import nsq        # Reader and Writer, for asyncio
    from twinwire import bulk       # topics as Arrow tables
    from twinwire import testing    # a broker for tests

A module is imported when it is used, and none of them imports a part of the server. The modules
below `broker` are the implementation; only `broker.client.nsq` and `broker.client.bulk` keep their
names.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from broker import __version__
    from twinwire import bulk, nsq, testing

__all__ = ["__version__", "bulk", "nsq", "testing"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "__version__":
        return import_module("broker").__version__
    return import_module(f"twinwire.{name}")


def __dir__() -> list[str]:
    return __all__
