"""Limits of log records."""

from __future__ import annotations

from typing import Final

from broker.base.units import KIB

LOG_TEXT_MAX: Final = 8 * KIB  # characters of one record, except traces; longer ones are cut
LOG_TRACEBACK_MAX: Final = 64 * KIB
