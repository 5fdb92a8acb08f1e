"""Events of the system account: statistics, and the begin and end of connections.

An event is built only if the router has a subscriber for it. During routing and at the end of a
session it is only noted; the backlog publishes it later.
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


def client_block(session: SessionView, account: str, *, gone_ns: int = 0) -> Json:
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
        "rtt": session.rtt_ns if gone_ns else 0,
        "stop": rfc3339(gone_ns) if gone_ns else "",
        "jwt": _shown_jwt(options, identity),
        "issuer_key": identity.issuer_key if identity is not None else "",
        "name_tag": (identity.name_tag if identity is not None else "") or account,
        "tags": identity.tags if identity is not None else (),
        "kind": "Leafnode" if is_leaf else "Client",
        "client_type": "" if is_leaf else _CLIENT_TYPES.get(session.kind, "nats"),
    }
    return {name: value for name, value in block.items() if value}


def _shown_jwt(options: ClientOptions, identity: Identity | None) -> str:
    """The token of an admitted client. That of a refused client may be a bearer token: a secret."""
    if identity is not None:
        return identity.jwt
    return HIDDEN if options.jwt else ""


class _Gone(NamedTuple):
    """A client that has disconnected or was refused."""

    home: LocalAccount  # the account of the event
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
        self._beats: dict[str, int] = {}  # account -> time of the next report, oldest first
        self._statsz_timer: Timer | None = None
        self._beat_timer: Timer | None = None
        self._statsz_pause_ns = limits.NATS_STATSZ_FIRST
        self._statsz_last_ns = 0

    def start(self) -> None:
        self._statsz_pause_ns = limits.NATS_STATSZ_FIRST
        self._statsz_in(self._statsz_pause_ns)

    def stop(self) -> None:
        for timer in (self._statsz_timer, self._beat_timer):
            if timer is not None:
                timer.cancel()
        self._statsz_timer = self._beat_timer = None
        self._beats.clear()

    def _now_ns(self) -> int:
        return int(self.clock.time() * SECOND)

    def _wanted(self, subject: bytes, account: LocalAccount | None = None) -> bool:
        return (account or self.account).interest(subject) > 0

    # --- statistics -------------------------------------------------------------------------

    def _statsz_in(self, ns: int) -> None:
        self._statsz_timer = self.clock.call_later(ns / SECOND, self._statsz_due)

    def _statsz_due(self) -> None:
        self._statsz_pause_ns = min(2 * self._statsz_pause_ns, limits.NATS_STATSZ)
        apart_ns = min(limits.NATS_STATSZ_APART, self._statsz_pause_ns)
        since_ns = self._now_ns() - self._statsz_last_ns
        if self._statsz_last_ns and since_ns < apart_ns:
            self._statsz_in(apart_ns - since_ns)
            return
        self._statsz_in(self._statsz_pause_ns)
        self.send_statsz()

    def send_statsz(self) -> None:
        """Publish STATSZ at once, if it has subscribers."""
        self._statsz_last_ns = self._now_ns()
        if self._wanted(self._statsz):
            self.station.publish(self._statsz, self.statsz())

    def statsz(self) -> Json:
        """The STATSZ message with its server block."""
        page = self.pages.page("VARZ", {})
        stats = {name: page[name] for name in _STATSZ}
        accounts = self.server.accounts.values()
        stats["active_accounts"] = sum(bool(a.sessions or a.leafs) for a in accounts)
        stats["subscriptions"] = page["subscriptions"]
        for name, way in (("sent", "out"), ("received", "in")):
            stats[name] = {"msgs": page[f"{way}_msgs"], "bytes": page[f"{way}_bytes"]}
            peer = f"{name}_to_clients" if way == "out" else f"{name}_from_clients"
            stats[peer] = {
                "msgs": page[f"{way}_client_msgs"],
                "bytes": page[f"{way}_client_bytes"],
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
        self._changed(account)
        subject = f"$SYS.ACCOUNT.{account.name}.CONNECT".encode()
        if self._wanted(subject):
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
        self._changed(account)
        subject = f"$SYS.ACCOUNT.{account.name}.DISCONNECT".encode()
        if self._wanted(subject):
            self._gone(self.account, subject, session, account.name, reason)

    def refused(
        self,
        session: SessionView,
        reason: str = errors.NATS_CLOSED_AUTHENTICATION,
        account: LocalAccount | None = None,
    ) -> None:
        """Report a rejected login in `account`, or else in the global account."""
        home = account or session.account or self.server.accounts.get(GLOBAL_ACCOUNT)
        if home is not None and self._wanted(b"$SYS.ACCOUNT.CLIENT.AUTH.ERR", home):
            self._gone(home, b"$SYS.ACCOUNT.CLIENT.AUTH.ERR", session, home.name, reason)
        if self._wanted(self._auth_error):
            name = session.account.name if session.account is not None else GLOBAL_ACCOUNT
            failure = errors.NATS_CLOSED_AUTHENTICATION
            self._gone(self.account, self._auth_error, session, name, failure)

    def _gone(
        self, home: LocalAccount, subject: bytes, session: SessionView, account: str, reason: str
    ) -> None:
        gone = _Gone(home, subject, session, account, reason, time.time_ns())
        self.backlog.add(partial(self._disconnect, gone))

    def _disconnect(self, gone: _Gone) -> None:
        session = gone.session
        if session.closed_because == errors.NATS_CLOSED_ACCOUNT_CONNECTIONS:
            return  # the login itself was valid
        event = self.envelope.event("client_disconnect", gone.wall_ns)
        event["server"] = self.envelope.server()
        event["client"] = client_block(session, gone.account, gone_ns=gone.wall_ns)
        # From the client's point of view.
        event["sent"] = {"msgs": session.in_msgs, "bytes": session.in_bytes}
        event["received"] = {"msgs": session.out_msgs, "bytes": session.out_bytes}
        event["reason"] = gone.reason
        self.station.publish(gone.subject, event, gone.home)

    # --- an account's connections ---------------------------------------------------------------

    def _changed(self, account: LocalAccount) -> None:
        """Schedule a report of an account's connections; merges several changes."""
        self._beat_later(account)
        name = account.name
        if name in self._reporting:
            return
        subjects = [
            subject
            for text in (f"$SYS.SERVER.ACCOUNT.{name}.CONNS", f"$SYS.ACCOUNT.{name}.SERVER.CONNS")
            if self._wanted(subject := text.encode())
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

    def _beat_later(self, account: LocalAccount) -> None:
        """Schedule the next report, unless no connection is left by then."""
        self._beats.pop(account.name, None)
        self._beats[account.name] = self._now_ns() + limits.NATS_ACCOUNT_BEAT
        if self._beat_timer is None:
            self._arm_beat()

    def _arm_beat(self) -> None:
        self._beat_timer = None
        if self._beats:
            wait_ns = max(0, next(iter(self._beats.values())) - self._now_ns())
            self._beat_timer = self.clock.call_later(wait_ns / SECOND, self._beat)

    def _beat(self) -> None:
        """Report one account that is due; the next one gets a job of its own."""
        self._beat_timer = None
        name, due_ns = next(iter(self._beats.items()))
        if due_ns <= self._now_ns():
            del self._beats[name]
            account = self.server.accounts.get(name)
            if account is not None and (account.sessions or account.leafs):
                self._changed(account)
        if self._beat_timer is None:
            self._arm_beat()
