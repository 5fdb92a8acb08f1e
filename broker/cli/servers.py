"""The commands that are servers. Their modules are imported when they are called."""

from __future__ import annotations

import importlib

TYPE_CHECKING = False  # as in __init__.py

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Final

# Functions that receive the arguments and return the exit code; None: click reads the arguments.
SERVERS: Final = {
    "nats-server": "broker.cli.dropin.nats_server.command:main",
    "nats-streaming-server": "broker.cli.dropin.nats_streaming.command:main",
    "nsqd": "broker.cli.dropin.nsqd.command:nsqd",
    "nsqlookupd": "broker.cli.dropin.nsqd.command:nsqlookupd",
    "serve": "broker.cli.serve:main",
}


def run_server(name: str, args: Sequence[str]) -> int | None:
    """Run a server until it ends. Returns the exit code; None: these arguments are for click."""
    module, _, function = SERVERS[name].partition(":")
    code: int | None = getattr(importlib.import_module(module), function)(args)
    return code
