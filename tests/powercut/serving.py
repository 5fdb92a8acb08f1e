"""Our command line with small limits, so that little work reaches all code paths."""

from __future__ import annotations

import logging
import os
import sys
import traceback
from typing import NoReturn

from broker.cli import entry
from broker.engine import catalog
from broker.engine import limits as engine_limits
from broker.protocols.stan import limits as stan_limits

CONFIG = """
[server]
data = "{data}"
[nats]
listen = "127.0.0.1:0"
[monitor]
listen = ""
[nsq]
listen = "127.0.0.1:0"
http = "{http}"
[bulk]
listen = "{bulk}"
[stan]
enabled = true
hb_interval = "1h"
[[stan.channel]]
pattern = "few.>"
max_msgs = 40
[[stan.channel]]
pattern = "small.>"
max_bytes = "12KiB"
[storage]
sync = "1s"
segment_size = "{segment}"
[[storage.topic]]
pattern = "always.>"
sync = "always"
[[storage.topic]]
pattern = "few.>"
sync = "always"
max_msgs = 60
[[storage.topic]]
pattern = "kept.>"
sync = "always"
keep_bytes = 12000
[[storage.topic]]
pattern = "none.>"
sync = "none"
"""


def small() -> None:
    """Set the limits at which files are compacted, preallocated and catalogued."""
    engine_limits.JOURNAL_BYTES_MIN = 512  # type: ignore[misc]
    engine_limits.SPARE_RATE = 1  # type: ignore[misc]
    engine_limits.KEEP_BYTES = 1  # type: ignore[misc]
    engine_limits.SHORT_BYTES = 2048  # type: ignore[misc]
    stan_limits.STAN_STATE_BYTES_MIN = 1024  # type: ignore[misc]
    engine_limits.RECLAIM_BYTES = 2048  # type: ignore[misc]
    catalog.LOGS_MIN = 2


def config(data: str, *, http: bool = True, bulk: bool = True, segment: str = "4KiB") -> str:
    """A configuration, with or without the listeners for NSQ over HTTP and the bulk API."""
    listeners = ["127.0.0.1:0" if wanted else "" for wanted in (http, bulk)]
    return CONFIG.format(data=data, http=listeners[0], bulk=listeners[1], segment=segment)


def serve(arguments: list[str]) -> NoReturn:
    """Run the command line in this process."""
    logging.disable(logging.NOTSET)
    code: object = 1
    try:
        small()
        sys.argv = ["twinwire", *arguments]
        entry()
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        sys.stdout.flush()
        os._exit(code if isinstance(code, int) else 0 if code is None else 1)
