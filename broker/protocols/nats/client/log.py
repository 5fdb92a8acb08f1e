"""Log lines about clients: connections, rejected logins, reasons of closed connections.

The wording is nats-server's: client.go closeConnection, authViolation, maxPayloadViolation.
trace.Violations logs violations of permissions, and limits how often.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from broker.base.gotext import duration_text, go_quote
from broker.protocols.nats import errors
from broker.protocols.nats.trace import who

if TYPE_CHECKING:
    from collections.abc import Callable

    from broker.protocols.nats.auth.authenticator import Login
    from broker.protocols.nats.client.handshake import ClientHandshake
    from broker.protocols.nats.client.session import NatsSession
    from broker.protocols.nats.settings import Settings

log = logging.getLogger("broker.nats")

# Reasons of closed connections that operators should see.
_CLOSED: Final[dict[str, tuple[int, str]]] = {
    errors.NATS_CLOSED_PARSE: (logging.ERROR, "Client parser ERROR"),
    errors.NATS_CLOSED_PROTOCOL: (logging.ERROR, "Client parser ERROR"),
    errors.NATS_CLOSED_CONTROL_LINE: (
        logging.ERROR,
        "maximum control line exceeded: max_control_line {control_line}",
    ),
    errors.NATS_CLOSED_PAYLOAD: (
        logging.ERROR,
        "maximum payload exceeded: max_payload {payload}",
    ),
    errors.NATS_CLOSED_CONNECTIONS: (logging.ERROR, errors.NATS_CONNECTIONS.text),
    errors.NATS_CLOSED_PENDING: (
        logging.INFO,
        "Slow Consumer Detected: MaxPending of {pending} Exceeded",
    ),
    errors.NATS_CLOSED_DEADLINE: (
        logging.INFO,
        "Slow Consumer Detected: WriteDeadline of {deadline} exceeded",
    ),
}


class ClientLog:
    """Writes the log lines of one server."""

    def __init__(self, handshake: ClientHandshake, settings: Callable[[], Settings]) -> None:
        """`settings`: returns the current ones."""
        self._settings = settings
        self._violations = handshake.violations
        handshake.on_open.append(self.opened)
        handshake.on_refuse.append(self.refused)
        handshake.on_close.append(self.closed)

    def opened(self, session: NatsSession) -> None:
        """Log a new connection."""
        if log.isEnabledFor(logging.DEBUG):
            log.debug("%s - Client connection created", who(session))

    def refused(self, session: NatsSession, login: Login, reason: str) -> None:
        """Log a rejected login. A name without a password is hidden, because it may be a token."""
        options, name = login.options, who(session)
        if reason == errors.NATS_ACCOUNT_CONNECTIONS.text:
            log.error("%s - %s", name, reason)
            return
        shown = ""
        if options.nkey:
            shown = f" - Nkey {go_quote(options.nkey.encode())}"
        elif options.user and options.password:
            shown = f" - User {go_quote(options.user.encode())}"
        log.error("%s - authentication error%s", name, shown)
        log.debug("%s - %s", name, reason)

    def closed(self, session: NatsSession) -> None:
        """Log the end of a connection."""
        level, text = _CLOSED.get(session.closed_because or "", (logging.NOTSET, ""))
        if text:
            now = self._settings()
            shown = text.format(
                control_line=now.max_control_line,
                payload=now.max_payload,
                pending=now.max_pending,
                deadline=duration_text(now.write_deadline_ns),
            )
            self._violations.other(session, level, shown)
        if log.isEnabledFor(logging.DEBUG):
            log.debug("%s - Client connection closed: %s", who(session), session.closed_because)
