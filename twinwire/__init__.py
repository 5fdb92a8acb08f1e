"""Twinwire's Python API.

    from twinwire import nsq        # Reader and Writer, for asyncio
    from twinwire import bulk       # topics as Arrow tables

A module is imported when it is used, and none of them imports a part of the server. The modules
below `broker` are the implementation; only `broker.client.nsq` and `broker.client.bulk` keep their
names.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from broker import __version__

if TYPE_CHECKING:
    from types import ModuleType

    from twinwire import bulk, nsq

__all__ = ["__version__", "bulk", "nsq"]


def __getattr__(name: str) -> ModuleType:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module(f"twinwire.{name}")


def __dir__() -> list[str]:
    return __all__
