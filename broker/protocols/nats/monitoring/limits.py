"""Numbers of the monitoring pages."""

from __future__ import annotations

from typing import Final

from broker.base.units import KIB, MS, SECOND

MONITOR_PORT: Final = 8222

MONITOR_CONNECTIONS: Final = 1_024  # shown by /connz unless limit= says otherwise
MONITOR_SUBSCRIPTIONS: Final = 1_024  # shown by /subsz, likewise
MONITOR_SUBSCRIPTIONS_MAX: Final = 100_000  # shown on one page, of all its connections together
MONITOR_CLOSED_SUBSCRIPTIONS: Final = 100_000  # remembered of all connections that are gone
MONITOR_TURN: Final = 2 * MS  # work on one page before the loop goes on with its own
MONITOR_PIECE: Final = 128 * KIB  # of a long page, written before more is made
MONITOR_LISTED: Final = 1_000  # subscriptions taken from a router in one go
MONITOR_CPU_SPAN: Final = 1 * SECOND  # percent of less would say little
