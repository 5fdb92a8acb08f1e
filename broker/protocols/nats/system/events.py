"""Events of the system account: statistics, and the begin and end of connections.

An event is built only if it has a subscriber. When a connection begins or ends, the event is only
queued; the backlog publishes it later.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any

from broker.base.units import SECOND
from broker.base.values import NamedTuple
from broker.protocols.nats import errors, limits
from broker.protocols.nats.monitoring.closed import HIDDEN, raw_user
from broker.protocols.nats.monitoring.options import rfc3339
from broker.protocols.nats.settings import GLOBAL_ACCOUNT
from broker.protocols.nats.wire.options import ClientOptions

if TYPE_CHECKING:
    from broker.protocols.nats.auth.authenticator import Identity
    from broker.protocols.nats.system.backlog import Backlog, Clock, Timer
    from broker.protocols.nats.system.envelope import Json, Station
    from broker.protocols.nats.views import LocalAccount, SessionView

_CLIENT_TYPES = {"STANDARD": "nats", "IN_PROCESS": "nats", "WEBSOCKET": "websocket"}
_LEAF = "LEAFNODE"
# Fields of /varz in a STATSZ, in its order and with its names.
_STATSZ = ("start", "mem", "cores", "cpu", "connections", "total_connections")


def client_block(session: SessionView, account: str, *, stop_ns: int = 0) -> Json:
    """The client in an advisory, without empty fields."""
    options, identity = session.options or ClientOptions(), session.identity
    is_leaf = session.kind.startswith(_LEAF)
    block: Json = {
        "start": rfc3339(session.start_ns),
        "host": session.host,
        "id": session.client_id,
        "acc": account,
        "user": raw_user(session),
        "name": options.name,
        "lang": options.lang,
        "ver": options.version,
        "rtt": session.rtt_ns if stop_ns else 0,
        "stop": rfc3339(stop_ns) if stop_ns else "",
        "jwt": _shown_jwt(options, identity),
        "issuer_key": identity.issuer_key if identity is not None else "",
        "name_tag": (identity.name_tag if identity is not None else "") or account,
        "tags": identity.tags if identity is not None else (),
        "kind": "Leafnode" if is_leaf else "Client",
        "client_type": "" if is_leaf else _CLIENT_TYPES.get(session.kind, "nats"),
    }
    return {name: value for name, value in block.items() if value}


def _shown_jwt(options: ClientOptions, identity: Identity | None) -> str:
    """The token of an accepted client. That of a refused client is hidden, because it may be a
    bearer token, which is a secret."""
    if identity is not None:
        return identity.jwt
    return HIDDEN if options.jwt else ""


class _Ended(NamedTuple):
    """A client that has disconnected or was refused."""

    event_account: LocalAccount  # the account of the event
    subject: bytes
    session: SessionView
    account: str
    reason: str
    wall_ns: int


class Events:
    """Publishes the events of one server."""

    def __init__(self, station: Station, backlog: Backlog, clock: Clock) -> None:
        self.station = station
        self.server = station.server
        self.account = station.account
        self.envelope = station.envelope
        self.pages = station.pages
        self.backlog = backlog
        self.clock = clock
        name = self.envelope.identity.server_id
        self._statsz = f"$SYS.SERVER.{name}.STATSZ".encode()
        self._auth_error = f"$SYS.SERVER.{name}.CLIENT.AUTH.ERR".encode()
        self._reporting: set[str] = set()  # accounts with a pending report
        self._report_times: dict[str, int] = {}  # account -> time of the next report, oldest first
        self._statsz_timer: Timer | None = None
        self._report_timer: Timer | None = None
        self._statsz_pause_ns = limits.NATS_STATSZ_FIRST
        self._statsz_last_ns = 0

    def start(self) -> None:
        self._statsz_pause_ns = limits.NATS_STATSZ_FIRST
        self._statsz_in(self._statsz_pause_ns)

    def stop(self) -> None:
        for timer in (self._statsz_timer, self._report_timer):
            if timer is not None:
                timer.cancel()
        self._statsz_timer = self._report_timer = None
        self._report_times.clear()

    def _now_ns(self) -> int:
        return int(self.clock.time() * SECOND)

    def _has_subscribers(self, subject: bytes, account: LocalAccount | None = None) -> bool:
        return (account or self.account).interest(subject) > 0

    # --- statistics -------------------------------------------------------------------------

    def _statsz_in(self, ns: int) -> None:
        self._statsz_timer = self.clock.call_later(ns / SECOND, self._statsz_due)

    def _statsz_due(self) -> None:
        self._statsz_pause_ns = min(2 * self._statsz_pause_ns, limits.NATS_STATSZ)
        interval_ns = min(limits.NATS_STATSZ_APART, self._statsz_pause_ns)
        since_ns = self._now_ns() - self._statsz_last_ns
        if self._statsz_last_ns and since_ns < interval_ns:
            self._statsz_in(interval_ns - since_ns)
            return
        self._statsz_in(self._statsz_pause_ns)
        self.send_statsz()

    def send_statsz(self) -> None:
        """Publish STATSZ at once, if it has subscribers."""
        self._statsz_last_ns = self._now_ns()
        if self._has_subscribers(self._statsz):
            self.station.publish(self._statsz, self.statsz())

    def statsz(self) -> Json:
        """The STATSZ message with its server block."""
        page = self.pages.page("VARZ", {})
        stats = {name: page[name] for name in _STATSZ}
        accounts = self.server.accounts.values()
        stats["active_accounts"] = sum(bool(a.sessions or a.leafs) for a in accounts)
        stats["subscriptions"] = page["subscriptions"]
        for name, direction in (("sent", "out"), ("received", "in")):
            stats[name] = {"msgs": page[f"{direction}_msgs"], "bytes": page[f"{direction}_bytes"]}
            peer = f"{name}_to_clients" if direction == "out" else f"{name}_from_clients"
            stats[peer] = {
                "msgs": page[f"{direction}_client_msgs"],
                "bytes": page[f"{direction}_client_bytes"],
            }
        stats["slow_consumers"] = page["slow_consumers"]
        stats["active_servers"] = 1
        if page["jetstream"]:
            block = dict(page["jetstream"])
            block["config"] = {k: v for k, v in block["config"].items() if k != "store_dir"}
            stats["jetstream"] = block
        stats["gomaxprocs"] = page["gomaxprocs"]
        return {"server": self.envelope.server(), "statsz": stats}

    # --- begin and end of connections -----------------------------------------------------------

    def connected(self, session: SessionView) -> None:
        """Report a client or leaf node that has logged in."""
        account = session.account
        if account is None or account.name == GLOBAL_ACCOUNT:
            return
        self._report_connections(account)
        subject = f"$SYS.ACCOUNT.{account.name}.CONNECT".encode()
        if self._has_subscribers(subject):
            job = partial(self._connect, subject, session, account.name, time.time_ns())
            self.backlog.add(job)

    def _connect(self, subject: bytes, session: SessionView, account: str, wall_ns: int) -> None:
        event = self.envelope.event("client_connect", wall_ns)
        event["server"] = self.envelope.server()
        event["client"] = client_block(session, account)
        self.station.publish(subject, event)

    def disconnected(self, session: SessionView, reason: str) -> None:
        """Report the end of a session that had logged in."""
        account = session.account
        if account is None or account.name == GLOBAL_ACCOUNT:
            return
        self._report_connections(account)
        subject = f"$SYS.ACCOUNT.{account.name}.DISCONNECT".encode()
        if self._has_subscribers(subject):
            self._queue_disconnect(self.account, subject, session, account.name, reason)

    def refused(
        self,
        session: SessionView,
        reason: str = errors.NATS_CLOSED_AUTHENTICATION,
        account: LocalAccount | None = None,
    ) -> None:
        """Report a rejected login in the system account and in `account`; by default that is the
        session's account, or else the global account."""
        event_account = account or session.account or self.server.accounts.get(GLOBAL_ACCOUNT)
        if event_account is not None and self._has_subscribers(
            b"$SYS.ACCOUNT.CLIENT.AUTH.ERR", event_account
        ):
            self._queue_disconnect(
                event_account, b"$SYS.ACCOUNT.CLIENT.AUTH.ERR", session, event_account.name, reason
            )
        if self._has_subscribers(self._auth_error):
            name = session.account.name if session.account is not None else GLOBAL_ACCOUNT
            failure = errors.NATS_CLOSED_AUTHENTICATION
            self._queue_disconnect(self.account, self._auth_error, session, name, failure)

    def _queue_disconnect(
        self,
        event_account: LocalAccount,
        subject: bytes,
        session: SessionView,
        account: str,
        reason: str,
    ) -> None:
        ended = _Ended(event_account, subject, session, account, reason, time.time_ns())
        self.backlog.add(partial(self._disconnect, ended))

    def _disconnect(self, ended: _Ended) -> None:
        session = ended.session
        if session.closed_because == errors.NATS_CLOSED_ACCOUNT_CONNECTIONS:
            return  # the login itself was valid
        event = self.envelope.event("client_disconnect", ended.wall_ns)
        event["server"] = self.envelope.server()
        event["client"] = client_block(session, ended.account, stop_ns=ended.wall_ns)
        # From the client's point of view.
        event["sent"] = {"msgs": session.in_msgs, "bytes": session.in_bytes}
        event["received"] = {"msgs": session.out_msgs, "bytes": session.out_bytes}
        event["reason"] = ended.reason
        self.station.publish(ended.subject, event, ended.event_account)

    # --- an account's connections ---------------------------------------------------------------

    def _report_connections(self, account: LocalAccount) -> None:
        """Queue a report of an account's connections, one for several changes."""
        self._schedule_report(account)
        name = account.name
        if name in self._reporting:
            return
        subjects = [
            subject
            for text in (f"$SYS.SERVER.ACCOUNT.{name}.CONNS", f"$SYS.ACCOUNT.{name}.SERVER.CONNS")
            if self._has_subscribers(subject := text.encode())
        ]
        if subjects and self.backlog.add(partial(self._publish_connections, account, subjects)):
            self._reporting.add(name)

    def _publish_connections(self, account: LocalAccount, subjects: list[bytes]) -> None:
        self._reporting.discard(account.name)
        event = self.account_event(account)
        for subject in subjects:
            event["server"] = self.envelope.server()
            self.station.publish(subject, event)

    def account_event(self, account: LocalAccount) -> Json:
        """The number of an account's connections, and its traffic."""
        options: dict[str, Any] = {"accounts": (account.name,), "include_unused": True}
        found = self.pages.page("ACCSTATZ", options)["account_statz"]
        head = self.envelope.event("account_connections")
        return {**head, "server": {}, **(found[0] if found else {"acc": account.name})}

    def _schedule_report(self, account: LocalAccount) -> None:
        """Schedule the next report. It is not sent if the account has no connection then."""
        self._report_times.pop(account.name, None)
        self._report_times[account.name] = self._now_ns() + limits.NATS_ACCOUNT_BEAT
        if self._report_timer is None:
            self._set_report_timer()

    def _set_report_timer(self) -> None:
        self._report_timer = None
        if self._report_times:
            wait_ns = max(0, next(iter(self._report_times.values())) - self._now_ns())
            self._report_timer = self.clock.call_later(wait_ns / SECOND, self._report_due)

    def _report_due(self) -> None:
        """Report the first account if it is due; the timer is set again for the next one."""
        self._report_timer = None
        name, due_ns = next(iter(self._report_times.items()))
        if due_ns <= self._now_ns():
            del self._report_times[name]
            account = self.server.accounts.get(name)
            if account is not None and (account.sessions or account.leafs):
                self._report_connections(account)
        if self._report_timer is None:
            self._set_report_timer()
