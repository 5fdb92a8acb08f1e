"""[http] for the commands that take an original's flags and files: from the environment alone."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from broker.config.load import load

if TYPE_CHECKING:
    from broker.net.http.config import HttpConfig

_PREFIX = "TWINWIRE_HTTP_"


def http_config() -> HttpConfig:
    """What TWINWIRE_HTTP_<KEY> say, else the defaults. ConfigError."""
    return load(None, {k: v for k, v in os.environ.items() if k.startswith(_PREFIX)}).http
