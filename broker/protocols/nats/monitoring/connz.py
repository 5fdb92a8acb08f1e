"""/connz: open and closed connections.

Connections are selected and sorted as objects. Their entries are built one by one while the page is
written, so that ten thousand entries do not block the loop.
"""

from __future__ import annotations

import hashlib
import time
from typing import TYPE_CHECKING, Any, Final

from broker.protocols.nats.monitoring import errors, limits
from broker.protocols.nats.monitoring.closed import raw_user
from broker.protocols.nats.monitoring.lists import LongPage, is_literal
from broker.protocols.nats.monitoring.options import (
    ANY,
    CLOSED,
    OPEN,
    ConnzOptions,
    PageError,
    filled,
    rfc3339,
    round_trip,
    text,
    uptime,
)
from broker.protocols.nats.settings import GLOBAL_ACCOUNT
from broker.protocols.nats.views import ClosedConnection
from broker.routing.router import holders, matching

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from broker.protocols.nats.monitoring.process import Clock
    from broker.protocols.nats.views import (
        AccountView,
        Connection,
        ServerView,
        Subscription,
    )

    Row = Connection | ClosedConnection

_LEAF: Final = "LEAFNODE"
_TYPES: Final = {"WEBSOCKET": "websocket"}
_EVERYTHING: Final = ">"


class _Entries:
    """Builds the entries of one page."""

    def __init__(self, options: ConnzOptions, now_ns: int, clock: Clock, subs_most: int) -> None:
        self.options = options
        self.now_ns = now_ns
        self.clock = clock
        self.subs_left = subs_most

    def last_ns(self, row: Row) -> int:
        """The time of the last activity, on the wall clock."""
        if isinstance(row, ClosedConnection):
            return row.last_ns
        return max(row.start_ns, self.clock.wall_ns(row.active_ns))

    def uptime_ns(self, row: Row) -> int:
        """How long a connection has been open, or was."""
        end_ns = row.stop_ns if isinstance(row, ClosedConnection) else self.now_ns
        return end_ns - row.start_ns

    def make(self, row: Row) -> dict[str, Any]:
        """Build one entry."""
        is_leaf = row.kind.startswith(_LEAF)
        closed = row if isinstance(row, ClosedConnection) else None
        end_ns = closed.stop_ns if closed is not None else self.now_ns
        last_ns = self.last_ns(row)
        entry: dict[str, Any] = {
            "cid": row.client_id,
            "kind": "Leafnode" if is_leaf else "Client",
        }
        if not is_leaf:
            entry["type"] = _TYPES.get(row.kind, "nats")
        entry |= {
            "ip": row.host,
            "port": row.port,
            "start": rfc3339(row.start_ns),
            "last_activity": rfc3339(last_ns),
        }
        if closed is not None:
            entry |= {"stop": rfc3339(closed.stop_ns), "reason": closed.reason}
        entry |= {
            "rtt": round_trip(row.rtt_ns),
            "uptime": uptime(end_ns - row.start_ns),
            "idle": uptime(end_ns - last_ns),
            "pending_bytes": row.pending_bytes,
            "in_msgs": row.in_msgs,
            "out_msgs": row.out_msgs,
            "in_bytes": row.in_bytes,
            "out_bytes": row.out_bytes,
            "subscriptions": row.subscriptions,
        }
        more = self._of_closed(row) if isinstance(row, ClosedConnection) else self._of_open(row)
        entry |= {name: value for name, value in more if value}
        return entry

    def _of_open(self, row: Connection) -> Iterator[tuple[str, object]]:
        auth, named, tls, identity = self.options.auth, row.options, row.tls_peer, row.identity
        if named is not None:
            yield from (("name", named.name), ("lang", named.lang), ("version", named.version))
        if tls is not None:
            yield from (("tls_version", tls.version), ("tls_cipher_suite", tls.cipher))
            if auth and tls.der is not None:
                yield "tls_peer_certs", [peer_certificate(der) for der in (tls.der, *tls.chain)]
            yield "tls_first", bool(getattr(tls, "first", False))
        if auth:
            yield "authorized_user", raw_user(row)
            yield "account", _account_field(row.account.name if row.account is not None else "")
        account = row.account.name if row.account is not None else ""
        if self.options.subscriptions or self.options.subscriptions_detail:
            most = min(self.subs_left, limits.MONITOR_SUBSCRIPTIONS_EACH)
            yield from self._subs(row, account, row.list_subs(most))
        if auth and identity is not None:
            yield from (("jwt", identity.jwt), ("issuer_key", identity.issuer_key))
            yield from (("name_tag", identity.name_tag or account), ("tags", list(identity.tags)))
        yield "proxy", _proxy(identity.proxy_key if identity is not None else "")

    def _of_closed(self, row: ClosedConnection) -> Iterator[tuple[str, object]]:
        yield from (("name", row.name), ("lang", row.lang), ("version", row.version))
        yield from (("tls_version", row.tls_version), ("tls_cipher_suite", row.tls_cipher))
        yield "tls_first", row.tls_first
        if self.options.auth:
            yield from (("authorized_user", row.user), ("account", _account_field(row.account)))
        yield from self._subs(row, row.account, row.subs[: self.subs_left], with_account=True)
        if self.options.auth:  # nats-server shows these without a login
            yield from (("jwt", row.jwt), ("issuer_key", row.issuer_key))
            yield from (("name_tag", row.name_tag or row.account), ("tags", list(row.tags)))
        yield "proxy", _proxy(row.proxy_key)

    def _subs(
        self, row: Row, account: str, subs: list[Subscription], *, with_account: bool = False
    ) -> Iterator[tuple[str, object]]:
        if self.options.subscriptions_detail:
            self.subs_left -= len(subs)
            named = account if with_account else ""
            yield "subscriptions_list_detail", [detail(sub, row.client_id, named) for sub in subs]
        elif self.options.subscriptions:
            self.subs_left -= len(subs)
            yield "subscriptions_list", [text(sub[0]) for sub in subs]


def _proxy(key: str) -> dict[str, str]:
    """The trusted proxy of a connection; empty without one."""
    return {"key": key} if key else {}


def _account_field(account: str) -> str:
    return "" if account == GLOBAL_ACCOUNT else account


def detail(sub: Subscription, cid: int, account: str = "") -> dict[str, Any]:
    """The details of one subscription."""
    subject, queue, sid, delivered, most = sub
    entry = filled({"account": account, "account_tag": account})
    entry["subject"] = text(subject)
    if queue:
        entry["qgroup"] = text(queue)
    entry |= {"sid": text(sid), "msgs": delivered}
    if most:
        entry["max"] = most
    entry["cid"] = cid
    return entry


def peer_certificate(der: bytes) -> dict[str, str]:
    """Identification of a client's certificate."""
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    shown = {"cert_sha256": hashlib.sha256(der).hexdigest()}
    try:
        certificate = x509.load_der_x509_certificate(der)
        key = certificate.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    except ValueError:
        return shown
    subject = certificate.subject.rfc4514_string()
    return filled({"subject": subject, "spki_sha256": hashlib.sha256(key).hexdigest()}) | shown


# Key -> (descending, sort key). Equal connections stay in the order of their ids.
_SORTS: Final[dict[str, tuple[bool, Callable[[_Entries, Any], Any]]]] = {
    "": (False, lambda _page, row: row.client_id),
    "cid": (False, lambda _page, row: row.client_id),
    "start": (False, lambda _page, row: row.client_id),
    "subs": (True, lambda _page, row: row.subscriptions),
    "pending": (True, lambda _page, row: row.pending_bytes),
    "msgs_to": (True, lambda _page, row: row.out_msgs),
    "msgs_from": (True, lambda _page, row: row.in_msgs),
    "bytes_to": (True, lambda _page, row: row.out_bytes),
    "bytes_from": (True, lambda _page, row: row.in_bytes),
    "last": (True, lambda page, row: page.last_ns(row)),
    "idle": (True, lambda page, row: -page.last_ns(row)),
    "uptime": (False, lambda page, row: page.uptime_ns(row)),
    "stop": (True, lambda _page, row: row.stop_ns),
    "reason": (False, lambda _page, row: row.reason),
    "rtt": (True, lambda _page, row: row.rtt_ns),
}


def connz(
    server: ServerView,
    options: ConnzOptions,
    clock: Clock,
    subs_most: int = limits.MONITOR_SUBSCRIPTIONS_MAX,
) -> LongPage:
    """The page, with up to `subs_most` subscriptions; PageError for invalid options."""
    _check(options)
    now_ns = time.time_ns()
    limit = 1 if options.cid else options.limit if options.limit > 0 else limits.MONITOR_CONNECTIONS
    offset = max(0, options.offset)
    page = _Entries(options, now_ns, clock, subs_most)
    head: dict[str, Any] = {"server_id": server.server_id, "now": rfc3339(now_ns)}
    if options.acc and options.acc not in server.accounts:
        head |= {"server_id": "", "num_connections": 0, "total": 0}
        head |= {"offset": offset, "limit": limit, "connections": None}
        return LongPage(head, "", iter(()))
    rows, total = _rows(server, options)
    descending, key = _SORTS[options.sort]
    rows.sort(key=lambda row: row.client_id)
    if options.sort not in ("", "cid", "start"):
        rows.sort(key=lambda row: key(page, row), reverse=descending)
    shown = rows[offset : offset + limit]
    head |= {"num_connections": len(shown), "total": total, "offset": offset, "limit": limit}
    return LongPage(head, "connections", map(page.make, shown))


def _check(options: ConnzOptions) -> None:
    if options.sort not in _SORTS:
        raise PageError(errors.SORT.format(options.sort))
    if options.state != CLOSED:
        if options.sort == "stop":
            raise PageError(errors.SORT_STOP)
        if options.sort == "reason":
            raise PageError(errors.SORT_REASON)
    if options.filter_subject not in ("", _EVERYTHING) and not options.acc:
        raise PageError(errors.SUBJECT_FILTER)


def _rows(server: ServerView, options: ConnzOptions) -> tuple[list[Row], int]:
    """The connections to show, and the total number of matches."""
    rows: list[Row] = []
    total = 0
    account = server.accounts[options.acc] if options.acc else None
    if options.state in (OPEN, ANY):
        sessions: Iterable[Connection] = server.sessions
        if account is not None:
            sessions = (*account.sessions, *account.leafs)
        found: list[Connection] = list(sessions)
        total += len(found)
        rows += _filtered_open(found, options, account)
    if options.state in (CLOSED, ANY):
        closed = [
            row
            for row in server.closed
            if account is None or (row.account or GLOBAL_ACCOUNT) == account.name
        ]
        total += len(closed)
        rows += _filtered_closed(closed, options)
    return rows, total


def _filtered_open(
    found: list[Connection], options: ConnzOptions, account: AccountView | None
) -> list[Connection]:
    if options.cid:
        return [row for row in found if row.client_id == options.cid]
    if options.mqtt_client:
        return []
    if options.user:
        found = [row for row in found if raw_user(row) == options.user]
    wanted = options.filter_subject
    if account is None or wanted in ("", _EVERYTHING):
        return found
    raw = wanted.encode("utf-8", "replace")
    if is_literal(wanted):
        known = {id(seen[3]) for seen in matching(account.router, raw)}
    else:
        known = holders(account.router, raw)
    return [row for row in found if id(row) in known]


def _filtered_closed(
    closed: list[ClosedConnection], options: ConnzOptions
) -> list[ClosedConnection]:
    if options.cid:
        return [row for row in closed if row.client_id == options.cid]
    if options.mqtt_client:
        return []
    return [row for row in closed if not options.user or row.user == options.user]
