"""Numbers of the monitoring pages."""

from __future__ import annotations

from typing import Final

from broker.base.units import KIB, MS, SECOND

MONITOR_PORT: Final = 8222

MONITOR_CONNECTIONS: Final = 1_024  # shown by /connz without limit=
MONITOR_SUBSCRIPTIONS: Final = 1_024  # shown by /subsz without limit=
MONITOR_SUBSCRIPTIONS_MAX: Final = 100_000  # shown on one page, for all its connections together
MONITOR_SUBSCRIPTIONS_EACH: Final = 1_024  # of one connection: its entry is built in one step
# Of a page that is built in one step: /leafz, and all answers to requests in the system account.
MONITOR_SUBSCRIPTIONS_WHOLE: Final = 4_096
MONITOR_CLOSED_SUBSCRIPTIONS: Final = 100_000  # remembered for all closed connections
MONITOR_TURN: Final = 2 * MS  # work on one page before other tasks of the loop run
MONITOR_PIECE: Final = 128 * KIB  # of a long page, written before the next part is built
MONITOR_LISTED: Final = 500  # subscriptions read from a router in one step
MONITOR_CPU_SPAN: Final = 1 * SECOND  # a shorter span gives meaningless percentages
