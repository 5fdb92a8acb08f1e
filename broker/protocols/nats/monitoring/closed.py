"""The last closed connections, for /connz?state=closed.

Subscriptions are kept only for the latest of them, up to a limit for all together: otherwise ten
thousand clients with ten thousand subscriptions each could fill the memory. Each list is built
while the session removes its subscriptions, so that thousands of connections may close at once.
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING

from broker.protocols.nats import limits as nats_limits
from broker.protocols.nats.monitoring import limits
from broker.protocols.nats.views import ClosedConnection

if TYPE_CHECKING:
    from collections.abc import Iterator

    from broker.protocols.nats.views import Connection, SessionView

HIDDEN = "[REDACTED]"


def raw_user(connection: SessionView) -> str:
    """The name in CONNECT, or else the verified name; tokens are secret."""
    options, identity = connection.options, connection.identity
    known = identity.user if identity is not None else ""
    if options is None or (identity is not None and identity.key.startswith("jwt:")):
        return known
    if options.nkey or options.user:
        return options.nkey or options.user
    if options.token and not options.jwt:
        return HIDDEN
    return known


def closed_connection(
    connection: Connection, *, subs_most: int = limits.MONITOR_CLOSED_SUBSCRIPTIONS
) -> ClosedConnection:
    """The entry for a connection that is being closed."""
    options, identity, tls = connection.options, connection.identity, connection.tls_peer
    stop_ns = time.time_ns()
    account = connection.account
    subs_kept = min(connection.subscriptions, subs_most, limits.MONITOR_SUBSCRIPTIONS_EACH)
    return ClosedConnection(
        client_id=connection.client_id,
        kind=connection.kind,
        host=connection.host,
        port=connection.port,
        start_ns=connection.start_ns,
        last_ns=stop_ns - max(0, time.monotonic_ns() - connection.active_ns),
        stop_ns=stop_ns,
        reason=connection.closed_because or "",
        rtt_ns=connection.rtt_ns,
        pending_bytes=connection.pending_bytes,
        in_msgs=connection.in_msgs,
        out_msgs=connection.out_msgs,
        in_bytes=connection.in_bytes,
        out_bytes=connection.out_bytes,
        subscriptions=connection.subscriptions,
        name=options.name if options is not None else "",
        lang=options.lang if options is not None else "",
        version=options.version if options is not None else "",
        tls_version=tls.version if tls is not None else "",
        tls_cipher=tls.cipher if tls is not None else "",
        tls_first=bool(getattr(tls, "first", False)),
        user=raw_user(connection),
        account=account.name if account is not None else "",
        jwt=identity.jwt if identity is not None else "",
        issuer_key=identity.issuer_key if identity is not None else "",
        name_tag=identity.name_tag if identity is not None else "",
        tags=identity.tags if identity is not None else (),
        proxy_key=identity.proxy_key if identity is not None else "",
        subs=connection.list_removed_subs(subs_kept),
        subs_kept=subs_kept,
    )


class ClosedConnections:
    """The last closed connections, oldest first."""

    def __init__(
        self,
        most: int = nats_limits.NATS_CLOSED_CLIENTS,
        *,
        subs_most: int = limits.MONITOR_CLOSED_SUBSCRIPTIONS,
    ) -> None:
        self.subs_most = subs_most
        self.subs_total = 0
        self.total = 0  # since the start
        self._records: deque[ClosedConnection] = deque()
        self._with_subs: deque[ClosedConnection] = deque()  # those with subscriptions
        self._most = most

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[ClosedConnection]:
        return iter(self._records)

    def resize(self, most: int) -> None:
        """Set the number of connections to keep."""
        self._most = most
        self._drop_oldest()

    def add(self, connection: Connection) -> ClosedConnection | None:
        """Add a connection that is being closed; None if the limit is 0."""
        self.total += 1
        if self._most <= 0:
            return None
        record = closed_connection(connection, subs_most=self.subs_most)
        self._records.append(record)
        if record.subs_kept:
            self._with_subs.append(record)
            self.subs_total += record.subs_kept
        self._drop_oldest()
        return record

    def _drop_oldest(self) -> None:
        while len(self._records) > self._most:
            record = self._records.popleft()
            if self._with_subs and self._with_subs[0] is record:
                self._with_subs.popleft()
                self.subs_total -= record.subs_kept
        while self.subs_total > self.subs_most:
            oldest = self._with_subs.popleft()
            self.subs_total -= oldest.subs_kept
            oldest.subs = []
            oldest.subs_kept = 0
