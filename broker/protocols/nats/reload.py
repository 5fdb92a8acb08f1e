"""Reload: the actions to change settings while the server runs, and changes that are refused.

    plan(old, new) -> Plan(actions, lines)        ReloadRefused if a setting cannot change

The plan itself changes nothing: the caller executes the actions, logs the lines, and keeps the old
settings if the plan is refused. Which settings can change, and the texts for both cases, are
nats-server's (reload.go diffOptions), in the order of its options.
"""

from __future__ import annotations

import dataclasses
import enum
from dataclasses import field
from typing import TYPE_CHECKING, Any, Final

from broker.base.gotext import bool_text, duration_text, float_text, go_quote
from broker.base.units import SECOND
from broker.base.values import dataclass
from broker.protocols.nats import errors as nats_errors
from broker.protocols.nats import limits
from broker.protocols.nats.settings import SYSTEM_ACCOUNT, Compression, Leafnodes, Settings, Tls

if TYPE_CHECKING:
    from collections.abc import Callable

    from broker.protocols.nats.settings import Authorization, Remote


class Action(enum.Enum):
    """The actions of the server, in this order."""

    LOGGING = "logging"  # levels, format and file of the log
    TRACE = "trace"  # start or stop tracing of sessions
    TLS = "tls"  # the client listener's context; reads certificates again
    PINNED = "pinned"  # close clients whose certificate is no longer pinned
    WEBSOCKET_TLS = "websocket tls"
    LEAF_TLS = "leaf tls"  # of the listener and of remotes
    LEAF_REMOTES = "leaf remotes"  # dial new ones, leave others; compression of links
    INFO = "info"  # fields of INFO: address, cluster name, TLS
    LIMITS = "limits"  # sizes, pings, deadlines: of open connections too
    ACCOUNTS = "accounts"  # accounts, their limits, imports, exports
    MAPPINGS = "mappings"  # of the global account
    AUTHORIZATION = "authorization"  # check logins again, close or limit connections
    CONNECTIONS = "connections"  # close connections above the limit
    PID_FILE = "pid file"
    PORTS_FILE = "ports file"
    TAGS = "tags"


class ReloadRefused(Exception):  # noqa: N818 - no fault of ours
    """The reload is refused and nothing changes; the text is the reason."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The actions to execute and the lines to log."""

    actions: tuple[Action, ...] = ()
    lines: tuple[str, ...] = ()


@dataclass(slots=True)
class _Draft:
    old: Settings
    new: Settings
    actions: set[Action] = field(default_factory=set)
    lines: list[str] = field(default_factory=list)

    def changed(self, name: str) -> bool:
        return bool(getattr(self.old, name) != getattr(self.new, name))

    def add(self, line: str, *actions: Action) -> None:
        self.lines.append(line)
        self.actions.update(actions)


def plan(old: Settings, new: Settings) -> Plan:
    """The plan to change from the old to the new settings. ReloadRefused."""
    draft = _Draft(old, new)
    for step in _STEPS:
        step(draft)
    return Plan(tuple(a for a in Action if a in draft.actions), tuple(draft.lines))


def advertise_problem(where: str) -> str:
    """Why the HOST[:PORT] of an `advertise` is invalid; empty if it is valid."""
    host, colon, port = where.rpartition(":")
    if not colon or where.endswith("]"):
        return ""
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        return f"address {where}: too many colons in address"
    digits = port.removeprefix("-")
    if digits.isascii() and digits.isdigit():
        return ""
    return f"strconv.Atoi: parsing {go_quote(port)}: invalid syntax"


# --- settings one by one

_TEXTS: Final[dict[str, Callable[[Any], str]]] = {"bool": bool_text, "int": str, "str": str}
_DURATION: Final = "_ns"


def _text(name: str, value: object) -> str:
    if name.endswith(_DURATION) and isinstance(value, int):
        return duration_text(value)
    return _TEXTS.get(type(value).__name__, str)(value)


def _refuse(option: str, old: str, new: str) -> ReloadRefused:
    return ReloadRefused(nats_errors.RELOAD_REFUSED.format(option, old, new))


def _fixed(name: str, option: str) -> Callable[[_Draft], None]:
    """A setting that cannot change."""

    def step(draft: _Draft) -> None:
        if draft.changed(name):
            old, new = getattr(draft.old, name), getattr(draft.new, name)
            raise _refuse(option, _text(name, old), _text(name, new))

    return step


def _monitor_login(draft: _Draft) -> None:
    """The login of monitoring: it cannot change, and its values are secret."""
    if draft.changed("monitor_user") or draft.changed("monitor_password"):
        raise ReloadRefused(nats_errors.RELOAD_BLOCK.format("monitor_user", "its value"))


def _block_refused(option: str, old: object, new: object) -> ReloadRefused:
    if old is None or new is None:
        words = ("none", "a block")
        return _refuse(option, words[old is not None], words[new is not None])
    parts: list[str] = []
    if dataclasses.is_dataclass(old) and dataclasses.is_dataclass(new):
        names = [part.name.removesuffix(_DURATION) for part in dataclasses.fields(old)
                 if getattr(old, part.name) != getattr(new, part.name)]  # fmt: skip
        parts = [", ".join(names)]
    return ReloadRefused(nats_errors.RELOAD_BLOCK.format(option, *(parts or ["its value"])))


def _free(name: str, shown: str, *actions: Action) -> Callable[[_Draft], None]:
    """A setting that can change; `shown` is its name in the log."""

    def step(draft: _Draft) -> None:
        if draft.changed(name):
            value = _text(name, getattr(draft.new, name))
            draft.add(f"Reloaded: {shown} = {value}", *actions)

    return step


def _listen(draft: _Draft) -> None:
    (old_host, old_port), (new_host, new_port) = draft.old.address, draft.new.address
    if old_host != new_host:
        raise _refuse("Host", old_host, new_host)
    if old_port != new_port and new_port > 0:  # 0 or less means any port: keep the current one
        raise _refuse("Port", str(old_port), str(new_port))


def _advertise(draft: _Draft) -> None:
    if not draft.changed("client_advertise"):
        return
    where = draft.new.client_advertise
    if problem := advertise_problem(where):
        raise ReloadRefused(nats_errors.RELOAD_ADVERTISE.format(where, problem))
    draft.add(f"Reload: client_advertise = {where}", Action.INFO)


def _users(draft: _Draft) -> None:
    """Changes of logins and accounts."""
    old, new = draft.old.authorization, draft.new.authorization
    nkey_users = [who for who in (*old.users, *new.users) if who.nkey]
    if old.users != new.users or old.default_permissions != new.default_permissions:
        if nkey_users:
            draft.add("Reloaded: authorization nkey users", Action.AUTHORIZATION)
        if len(nkey_users) < len(old.users) + len(new.users):
            draft.add("Reloaded: authorization users", Action.AUTHORIZATION)
    if draft.changed("accounts") or draft.changed("resolver"):
        draft.add("Reloaded: accounts", Action.ACCOUNTS, Action.AUTHORIZATION)
    if draft.changed("mappings"):
        draft.add("Reloaded: mappings", Action.MAPPINGS)


def _resolver(draft: _Draft) -> None:
    old, new = draft.old.resolver, draft.new.resolver
    if (old is None) != (new is None):
        raise ReloadRefused(nats_errors.RELOAD_RESOLVER)
    if old is not None and new is not None and old.operators != new.operators:
        raise ReloadRefused(nats_errors.RELOAD_BLOCK.format("TrustedOperators", "operators"))


def _no_auth_user(draft: _Draft) -> None:
    old, new = draft.old.no_auth_user, draft.new.no_auth_user
    if old == new:
        return
    if new or any(who.name == old for who in draft.new.authorization.users):
        raise _refuse("NoAuthUser", old, new)
    draft.actions |= {Action.AUTHORIZATION, Action.INFO}


def _system_account(draft: _Draft) -> None:
    old, new = draft.old.system_account, draft.new.system_account
    if (old or SYSTEM_ACCOUNT) != (new or SYSTEM_ACCOUNT):
        raise _refuse("SystemAccount", old, new)


def _login(draft: _Draft) -> None:
    old, new = draft.old.authorization, draft.new.authorization
    for name, shown in (("user", "username"), ("password", "password"), ("token", "token")):
        if getattr(old, name) != getattr(new, name):
            draft.add(f"Reloaded: authorization {shown}", Action.AUTHORIZATION)
    if old.callout != new.callout:
        raise _block_refused("AuthCallout", old.callout, new.callout)
    if draft.changed("authorization_given"):
        draft.actions.add(Action.AUTHORIZATION)
    if draft.changed("authorization_given") or _is_asked(old) != _is_asked(new):
        draft.actions.add(Action.INFO)


def _is_asked(block: Authorization) -> bool:
    return bool(block.user or block.token or block.users)


def _monitor(draft: _Draft) -> None:
    for name, option in (("http", "HTTP"), ("https", "HTTPS")):
        old, new = getattr(draft.old, name), getattr(draft.new, name)
        before, after = (old or ("", 0))[1], (new or ("", 0))[1]
        if (old is None) != (new is None) or (before != after and after):
            raise _refuse(f"{option}Port", str(before), str(after))
        if old is not None and old[0] != new[0]:
            raise _refuse("HTTPHost", old[0], new[0])


def _auth_timeout(draft: _Draft) -> None:
    old, new = draft.old.authorization.timeout_ns, draft.new.authorization.timeout_ns
    if old != new:
        shown = float_text((new or limits.NATS_AUTH_TIMEOUT) / SECOND)
        draft.add(f"Reloaded: authorization timeout = {shown}", Action.LIMITS)


def _cluster_name(draft: _Draft) -> None:
    if draft.changed("cluster_name"):
        draft.add(f"Cluster name updated to {draft.new.cluster_name}", Action.INFO)


# Parts of any tls block that can change.
_CERTIFICATES: Final = (
    *("cert_file", "key_file", "certificates", "ca_file", "verify", "insecure", "timeout_ns"),
    *("cipher_suites", "curve_preferences", "pinned_certs", "min_version"),
)
_FIRST: Final = ("handshake_first", "handshake_first_wait_ns")


def _settled(tls: Tls | None, names: tuple[str, ...]) -> Tls | None:
    """The block without the parts that can change."""
    if tls is None:
        return None
    usual = Tls("", "")
    known = {part.name for part in dataclasses.fields(Tls)}
    return dataclasses.replace(tls, **{n: getattr(usual, n) for n in names if n in known})


def _tls(draft: _Draft) -> None:
    old, new = draft.old.tls, draft.new.tls
    usual = Tls("", "")
    a, b = old or usual, new or usual
    for name, option in (("verify_and_map", "TLSMap"), ("connection_rate_limit", "TLSRateLimit")):
        if getattr(a, name) != getattr(b, name):
            raise _refuse(option, _text(name, getattr(a, name)), _text(name, getattr(b, name)))
    if a.timeout_ns != b.timeout_ns:
        shown = float_text(b.timeout_ns / SECOND)
        draft.add(f"Reloaded: tls timeout = {shown}", Action.TLS)
    if old is not None or new is not None:  # the files may have changed under the same names
        draft.add(f"Reloaded: tls = {'enabled' if new else 'disabled'}", Action.TLS)
    if (old is None) != (new is None) or a.verify != b.verify:
        draft.actions.add(Action.INFO)
    if a.pinned_certs != b.pinned_certs:
        draft.add(f"Reloaded: {len(b.pinned_certs)} pinned_certs", Action.TLS, Action.PINNED)
    if a.handshake_first != b.handshake_first:
        shown = bool_text(b.handshake_first)
        draft.add(f"Reloaded: Client TLS handshake first: {shown}", Action.TLS)
    if a.handshake_first_wait_ns != b.handshake_first_wait_ns:
        shown = duration_text(b.handshake_first_wait_ns)
        draft.add(f"Reloaded: Client TLS handshake first fallback delay: {shown}", Action.TLS)


def _websocket(draft: _Draft) -> None:
    old, new = draft.old.websocket, draft.new.websocket
    if old is None or new is None:
        if old is not new:
            raise _block_refused("Websocket", old, new)
        return
    a = dataclasses.replace(old, tls=_settled(old.tls, _CERTIFICATES))
    b = dataclasses.replace(new, tls=_settled(new.tls, _CERTIFICATES))
    if b.listen[1] <= 0:
        b = dataclasses.replace(b, listen=(b.listen[0], a.listen[1]))
    if a != b:
        raise _block_refused("Websocket", a, b)
    if old.tls is not None:
        draft.actions.add(Action.WEBSOCKET_TLS)


def _settled_remote(remote: Remote, free: tuple[str, ...]) -> Remote:
    """The remote without the parts that can change."""
    proxy = None if remote.proxy is None else dataclasses.replace(remote.proxy, tls=None)
    return dataclasses.replace(
        remote,
        tls=_settled(remote.tls, free),
        proxy=proxy,
        compression=Compression(),
        deny_imports=(),
        deny_exports=(),
        disabled=False,
    )


def _leafnodes(draft: _Draft) -> None:
    old, new = draft.old.leafnodes or Leafnodes(), draft.new.leafnodes or Leafnodes()
    free = (*_CERTIFICATES, *_FIRST)
    a, b = (
        dataclasses.replace(
            block, tls=_settled(block.tls, free), remotes=(), compression=Compression()
        )
        for block in (old, new)
    )
    if a.listen and b.listen and b.listen[1] <= 0:
        b = dataclasses.replace(b, listen=(b.listen[0], a.listen[1]))
    if a != b:
        raise _block_refused("LeafNode", a, b)
    if old.tls is not None or any(r.tls is not None for r in old.remotes):
        draft.actions.add(Action.LEAF_TLS)
    if old.compression != new.compression:
        shown = _compression_text(new.compression)
        draft.add(f"Reloaded: LeafNode Compression value is: {shown}", Action.LEAF_REMOTES)
    _remotes(draft, old.remotes, new.remotes)
    if old.tls and new.tls and old.tls.handshake_first != new.tls.handshake_first:
        shown = bool_text(new.tls.handshake_first)
        draft.lines.append(f"Reloaded: LeafNode TLS HandshakeFirst value is: {shown}")


def _compression_text(compression: Compression) -> str:
    times = compression.thresholds_ns if compression.mode == "s2_auto" else ()
    return f"{{{compression.mode} [{' '.join(map(duration_text, times))}]}}"


def _remotes(draft: _Draft, old: tuple[Remote, ...], new: tuple[Remote, ...]) -> None:
    """Remotes may come and go; of those that stay, a few parts can change."""
    free = (*_CERTIFICATES, *_FIRST)
    left = {remote.key: remote for remote in new}
    for before in old:
        after = left.pop(before.key, None)
        what = f"Reloaded: LeafNode Remote {before.shown}"
        if after is None:
            draft.add(f"{what} removed", Action.LEAF_REMOTES)
            continue
        a, b = _settled_remote(before, free), _settled_remote(after, free)
        if a != b:
            raise _block_refused("LeafNode", a, b)
        if before.disabled != after.disabled:
            shown = bool_text(after.disabled)
            draft.add(f"{what} Disabled value is: {shown}", Action.LEAF_REMOTES)
        if before.compression != after.compression:
            shown = _compression_text(after.compression)
            draft.add(f"{what} Compression value is: {shown}", Action.LEAF_REMOTES)
    for remote in left.values():
        draft.add(f"Reloaded: LeafNode Remote {remote.shown} added", Action.LEAF_REMOTES)


def _jetstream(draft: _Draft) -> None:
    """The block of the server cannot change; limits of accounts can."""
    old, new = draft.old.jetstream, draft.new.jetstream
    if old == new:
        return
    if old is not None and new is not None and old.store_dir != new.store_dir:
        raise ReloadRefused(nats_errors.RELOAD_STORE_DIR)
    raise _block_refused("JetStream", old, new)


def _tags(draft: _Draft) -> None:
    if draft.changed("server_tags"):
        draft.add("Reloaded: tags", Action.TAGS)
    if draft.changed("server_metadata"):
        draft.add("Reloaded: metadata", Action.TAGS)


def _proxies(draft: _Draft) -> None:
    """Trusted proxies: connections of those that are removed are closed."""
    old, new = draft.old.trusted_proxies, draft.new.trusted_proxies
    for keys, what in (
        ([key for key in old if key not in new], "removed"),
        ([key for key in new if key not in old], "added"),
    ):
        if keys:
            shown = " ".join(map(go_quote, keys))
            line = f"Reloaded: proxies trusted keys [{shown}] were {what}"
            draft.add(line, Action.AUTHORIZATION)


def _feature_flags(draft: _Draft) -> None:
    if draft.changed("feature_flags"):
        raise _block_refused("FeatureFlags", draft.old.feature_flags, draft.new.feature_flags)


def _default_sentinel(draft: _Draft) -> None:
    if draft.changed("default_sentinel"):  # its value lets clients in: it is not shown
        draft.add("Reloaded: default_sentinel", Action.AUTHORIZATION)


_STEPS: Final[tuple[Callable[[_Draft], None], ...]] = (
    _fixed("server_name", "ServerName"),
    _listen,
    _advertise,
    _free("trace", "trace", Action.LOGGING, Action.TRACE),
    _free("debug", "debug", Action.LOGGING),
    _free("trace_verbose", "trace_verbose", Action.LOGGING, Action.TRACE),
    _free("trace_headers", "trace_headers", Action.LOGGING, Action.TRACE),
    _fixed("disable_sublist_cache", "NoSublistCache"),
    _fixed("no_header_support", "NoHeaderSupport"),
    _free("logtime", "logtime", Action.LOGGING),
    _free("logtime_utc", "logtime_utc", Action.LOGGING),
    _free("max_connections", "max_connections", Action.CONNECTIONS),
    _fixed("max_subscriptions", "MaxSubs"),
    _fixed("max_sub_tokens", "MaxSubTokens"),
    _users,
    _no_auth_user,
    _system_account,
    _fixed("no_system_account", "NoSystemAccount"),
    _login,
    _free("ping_interval_ns", "ping_interval", Action.LIMITS),
    _free("ping_max", "ping_max", Action.LIMITS),
    _monitor,
    _fixed("http_base_path", "HTTPBasePath"),
    _auth_timeout,
    _free("max_control_line", "max_control_line", Action.LIMITS),
    _free("max_payload", "max_payload", Action.LIMITS, Action.INFO),
    _fixed("max_pending", "MaxPending"),
    _free("slow_consumer", "slow_consumer", Action.LIMITS),
    _monitor_login,
    _cluster_name,
    _leafnodes,
    _jetstream,
    _websocket,
    _free("pid_file", "pid_file", Action.PID_FILE),
    _free("ports_file_dir", "ports_file_dir", Action.PORTS_FILE),
    _free("logfile", "log_file", Action.LOGGING),
    _fixed("logfile_size_limit", "LogSizeLimit"),
    _fixed("logfile_max_num", "LogMaxFiles"),
    _free("syslog", "syslog", Action.LOGGING),
    _free("remote_syslog", "remote_syslog", Action.LOGGING),
    _tls,
    _fixed("allow_non_tls", "AllowNonTLS"),
    _free("write_deadline_ns", "write_deadline", Action.LIMITS),
    _fixed("max_closed_clients", "MaxClosedClients"),
    _fixed("lame_duck_duration_ns", "LameDuckDuration"),
    _fixed("lame_duck_grace_period_ns", "LameDuckGracePeriod"),
    _free("max_traced_msg_len", "max_traced_msg_len", Action.TRACE),
    _resolver,
    _default_sentinel,
    _feature_flags,
    _proxies,
    _fixed("proxy_protocol", "ProxyProtocol"),
    _fixed("write_timeout", "WriteTimeout"),
    _free("connect_error_reports", "connect_error_reports", Action.LIMITS),
    _free("reconnect_error_reports", "reconnect_error_reports", Action.LIMITS),
    _tags,
)
