"""Settings of the drop-in commands that come only from the environment: section [http], and
busy_poll of [server]. The originals' flags and files have no such settings."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from broker.config.load import load

if TYPE_CHECKING:
    from broker.config.config import Config

_HTTP: Final = "TWINWIRE_HTTP_"
_BUSY_POLL: Final = "TWINWIRE_SERVER_BUSY_POLL"


def from_environment() -> Config:
    """TWINWIRE_HTTP_<KEY> and TWINWIRE_SERVER_BUSY_POLL; all other settings have their defaults.
    ConfigError."""
    given = {k: v for k, v in os.environ.items() if k.startswith(_HTTP) or k == _BUSY_POLL}
    return load(None, given)
