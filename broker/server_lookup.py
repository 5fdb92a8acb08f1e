"""The lookup service alone, without an engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.protocols.nsq.lookup.door import LookupServer

if TYPE_CHECKING:
    from broker.config import Config


def lookup_server(config: Config) -> LookupServer:
    """One that can be started and stopped; OSError when it cannot listen."""
    return LookupServer(config.nsqlookupd)
