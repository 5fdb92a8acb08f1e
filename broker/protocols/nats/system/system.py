"""The system account: events that the server publishes about itself, and requests to it.

A server creates one `System` for its system account, starts it after its listener is open, and
reports its sessions to it. Requests and events wait in one backlog and are processed between turns
of the loop in parts of limited time, not while a message is routed.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING, Any

from broker.base.logs import fields
from broker.protocols.nats import errors, limits
from broker.protocols.nats.accounts.rights import may_receive
from broker.protocols.nats.system.backlog import Backlog
from broker.protocols.nats.system.events import Events
from broker.protocols.nats.system.requests import Actions, Handler, Requests

if TYPE_CHECKING:
    from broker.protocols.nats.accounts.asking import LocalSubscription
    from broker.protocols.nats.system.backlog import Clock
    from broker.protocols.nats.system.envelope import ServerIdentity, Station
    from broker.protocols.nats.views import LocalAccount, Message, SessionView

log = logging.getLogger("broker.protocols.nats.system")


class System:
    """The service of one server."""

    def __init__(
        self, station: Station, actions: Actions | None = None, clock: Clock | None = None
    ) -> None:
        """`clock`: the running loop by default; tests pass their own."""
        clock = clock or asyncio.get_running_loop()
        self.server = station.server
        self.account = station.account
        self.envelope = station.envelope
        self.station = station
        self.backlog = Backlog(clock)
        self.events = Events(station, self.backlog, clock)
        self.requests = Requests(station, self.events, actions or Actions())
        self._subscriptions: dict[str, dict[str, LocalSubscription]] = {}  # by account and subject
        self._waiting = 0  # requests in the backlog
        self._running = False

    # --- called by the server --------------------------------------------------------------------

    def start(self) -> None:
        """Subscribe, also in existing accounts, and set the timer of the first STATSZ."""
        self._running = True
        for subject, handler in self.requests.handlers().items():
            self.register(subject, handler)
        for account in list(self.server.accounts.values()):
            self.adopt(account)
        self.events.start()

    def adopt(self, account: LocalAccount) -> None:
        """Subscribe to requests of an account about itself. Must be called for each account that is
        added after the start, and again after its configuration has changed."""
        if not self._running or account.name == self.account.name:
            return
        subscriptions = self._subscriptions.setdefault(account.name, {})
        imported = _imported(account)
        for subject, handler in self.requests.imports(account).items():
            if subject in imported and subject in subscriptions:
                subscriptions.pop(subject).close()
            elif subject not in imported and subject not in subscriptions:
                self._listen(account, subject, handler)

    def forget(self, account: LocalAccount) -> None:
        """Remove an account."""
        for subscription in self._subscriptions.pop(account.name, {}).values():
            subscription.close()

    def stop(self) -> None:
        """Stop all events and answers."""
        self._running = False
        self.events.stop()
        self.requests.stop()
        self.backlog.clear()
        self._waiting = 0
        for subscriptions in self._subscriptions.values():
            for subscription in subscriptions.values():
                subscription.close()
        self._subscriptions.clear()

    def rename(self, identity: ServerIdentity) -> None:
        """Apply a changed identity of the server."""
        self.envelope.use(identity)

    def register(self, subject: str, handler: Handler) -> None:
        """Handle requests on a subject of the system account; `answer` replies to them."""
        self._listen(self.account, subject, handler)

    def answer(self, reply: bytes, **parts: Any) -> None:
        """Send `data=` or `error=` in an envelope to a requester in the system account."""
        if reply and self._running:
            self.requests.respond(self.account, reply, **parts)

    # --- notifications ------------------------------------------------------------------------

    def connected(self, session: SessionView) -> None:
        """Report a session that has logged in and joined its account."""
        if self._running:
            self.events.connected(session)

    def disconnected(self, session: SessionView, reason: str) -> None:
        """Report the end of a session; `session.account` is still its account."""
        if self._running:
            self.events.disconnected(session, reason)

    def refused(
        self,
        session: SessionView,
        reason: str = errors.NATS_CLOSED_AUTHENTICATION,
        account: LocalAccount | None = None,
    ) -> None:
        """Report a rejected login, in the system account and in `account`."""
        if self._running:
            self.events.refused(session, reason, account)

    def lame_duck(self) -> None:
        """Report that the server accepts no more connections."""
        self._publish_event("LAMEDUCK")

    def shutdown(self) -> None:
        """Publish the shutdown event, while sessions still receive it; then stop the service."""
        self._publish_event("SHUTDOWN")
        self.stop()

    def _publish_event(self, name: str) -> None:
        if self._running:
            subject = f"$SYS.SERVER.{self.envelope.identity.server_id}.{name}"
            self.station.publish(subject.encode(), self.envelope.server())

    # --- requests -----------------------------------------------------------------------------

    def _listen(self, account: LocalAccount, subject: str, handler: Handler) -> None:
        subscriptions = self._subscriptions.setdefault(account.name, {})
        if subject in subscriptions:
            subscriptions.pop(subject).close()
        subscriptions[subject] = account.listen(
            subject.encode(), partial(self._on_request, account, handler)
        )

    def _on_request(self, account: LocalAccount, handler: Handler, message: Message) -> None:
        """Queue a request; drop it if too many wait, or if its answer may not be sent."""
        if message.reply and not may_receive(account, message.session, message.reply):
            return  # the client is not permitted to use this reply subject
        if self._waiting >= limits.NATS_SYSTEM_REQUESTS:
            log.debug("a request is dropped", extra=fields(subject=message.subject))
            return
        if self.backlog.add(partial(self._handle, account, handler, message)):
            self._waiting += 1

    def _handle(self, account: LocalAccount, handler: Handler, message: Message) -> None:
        self._waiting -= 1
        handler(account, message)


def _imported(account: LocalAccount) -> set[str]:
    """The services that the account imports by its configuration."""
    if account.config is None:
        return set()
    return {i.to or i.subject for i in account.config.imports if i.service}
