"""Section [http] of the drop-in commands, which is read from the environment only."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from broker.config.load import load

if TYPE_CHECKING:
    from broker.net.http.config import HttpConfig

_PREFIX = "TWINWIRE_HTTP_"


def http_config() -> HttpConfig:
    """The values of TWINWIRE_HTTP_<KEY>, else the defaults. ConfigError."""
    return load(None, {k: v for k, v in os.environ.items() if k.startswith(_PREFIX)}).http
