"""Reads a nats-server configuration file into Settings.

    settings, warnings = read_file(path, environment)

All mistakes are reported at once, in their order, each with file, line and column: ConfErrors.
Warnings do not prevent the start of a server; those that are not a ConfNote make a check fail. Keys
and values are those of nats-server 2.10.22, server/opts.go; the block `twinwire`, and `rate_limits`
of accounts and users, are extensions of Twinwire.
"""

from __future__ import annotations

import posixpath
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from broker.base.units import COUNT_MAX
from broker.protocols.nats import limits
from broker.protocols.nats.conf import auth, conflicts, jetstream, unsupported
from broker.protocols.nats.conf.accounts import PositionedAccount, accounts, mappings
from broker.protocols.nats.conf.digest import digest_of
from broker.protocols.nats.conf.fields import INT32, Block, Mistakes
from broker.protocols.nats.conf.listeners import Leafs, websocket
from broker.protocols.nats.conf.operator import OperatorMode
from broker.protocols.nats.conf.parser import parse_file, parse_text
from broker.protocols.nats.conf.text import ConfError, ConfErrors, ConfNote, Value
from broker.protocols.nats.conf.tls import optional_tls
from broker.protocols.nats.settings import (
    ORIGINAL,
    SLOW_CONSUMERS,
    SYSTEM_ACCOUNT,
    WRITE_TIMEOUTS,
    Address,
    Authorization,
    Settings,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from broker.protocols.nats.conf.text import Map

__all__ = [
    "ConfError",
    "ConfErrors",
    "ConfNote",
    "read_file",
    "read_text",
    "read_values",
]


def read_file(path: Path, environment: Mapping[str, str]) -> tuple[Settings, list[ConfError]]:
    """The settings in a file, and warnings; ConfErrors."""
    try:
        values = parse_file(path, environment)
    except ConfError as error:
        raise ConfErrors([error]) from None
    return _Reader(values, str(path), environment).finish()


def read_text(
    text: str, environment: Mapping[str, str], file: str = ""
) -> tuple[Settings, list[ConfError]]:
    """The settings in a text, which is read as the contents of that file."""
    try:
        values = parse_text(text, environment, file)
    except ConfError as error:
        raise ConfErrors([error]) from None
    return _Reader(values, file, environment).finish()


def read_values(
    values: Map, file: str, environment: Mapping[str, str]
) -> tuple[Settings, list[ConfError]]:
    """The settings in values that may also have foreign keys; those are noted and left out."""
    return _Reader(values, file, environment, tolerant=True).finish()


class _Reader:
    """Reads the top level."""

    def __init__(
        self, values: Map, file: str, environment: Mapping[str, str], *, tolerant: bool = False
    ) -> None:
        self.mistakes = Mistakes(tolerant=tolerant)
        self.file = file
        self.root = Block(Value(values, file, 1, 1), self.mistakes, "the configuration")
        if not values and not tolerant:
            self.mistakes.warn(self.root.value, "has no values")
        self.logins = auth.Logins(self.mistakes)
        self.leafs = Leafs(environment)
        self.positioned: list[PositionedAccount] = []

    def finish(self) -> tuple[Settings, list[ConfError]]:
        settings = self.numbers(self.names_and_logging(ORIGINAL))
        settings = self.accounts_and_operators(self.listeners(settings))
        settings = self.twinwire_block(settings)
        unsupported.gateway(self.root)
        unsupported.mqtt(self.root)
        settings = replace(settings, jetstream=jetstream.server(self.root))
        unsupported.profiling_and_ocsp(self.root)
        settings = replace(settings, cluster_name=unsupported.cluster_name(self.root))
        settings = replace(settings, digest=digest_of(self.root.value.it))
        self.root.done()
        if self.mistakes.errors:
            # Conflicts that only follow from a mistake are not reported.
            raise ConfErrors(self.in_order(self.mistakes.errors))
        conflicts.check(
            conflicts.Read(
                settings,
                self.mistakes,
                self.root.all,
                self.positioned,
                self.leafs,
                self.websocket_places,
            )
        )
        if self.mistakes.errors:
            raise ConfErrors(self.in_order(self.mistakes.errors))
        return settings, self.in_order(self.mistakes.warnings)

    def in_order(self, found: list[ConfError]) -> list[ConfError]:
        files = sorted({error.file for error in found}, key=lambda file: (file != self.file, file))
        return sorted(found, key=lambda e: (files.index(e.file), e.line, e.column))

    # --- groups of keys

    def names_and_logging(self, default: Settings) -> Settings:
        """Names, paths of files, and logging."""
        root = self.root
        host, port = root.listen("listen") or ("", 0)
        only_port = root.port("port")
        port = (port if only_port is None else only_port) or default.address[1]
        listen = root.text("host", "net") or host or default.address[0], max(port, 0)
        verbose, headers = root.flag("trace_verbose"), root.flag("trace_headers")
        base = root.text("http_base_path")
        return replace(
            default,
            listen=listen,
            server_name=root.name("server", "server_name"),
            client_advertise=root.text("client_advertise"),
            http=self.monitor(listen[0], "http", "http_port", "monitor_port"),
            https=self.monitor(listen[0], "https", "https_port"),
            http_base_path=posixpath.normpath("/" + base.lstrip("/")).rstrip("/") if base else "",
            debug=root.flag("debug"),
            trace=root.flag("trace") or verbose or headers,
            trace_verbose=verbose,
            trace_headers=headers,
            logtime=root.flag("logtime", default=True),
            logtime_utc=root.flag("logtime_utc"),
            logfile=root.text("logfile", "log_file"),
            logfile_size_limit=max(root.number("logfile_size_limit", "log_size_limit"), 0),
            logfile_max_num=max(root.number("logfile_max_num", "log_max_num"), 0),
            syslog=root.flag("syslog"),
            remote_syslog=root.text("remote_syslog"),
            pid_file=root.text("pid_file", "pidfile"),
            ports_file_dir=root.text("ports_file_dir"),
            max_traced_msg_len=max(root.number("max_traced_msg_len"), 0),
            no_header_support=root.flag("no_header_support"),
            disable_sublist_cache=root.flag("disable_sublist_cache", "no_sublist_cache"),
            allow_non_tls=root.flag("allow_non_tls"),
            no_auth_user=root.text("no_auth_user"),
            no_system_account=root.flag("no_system_account", "no_system", "no_sys_acc"),
            server_tags=self.tags(),
            server_metadata=root.pairs(str, "server_metadata"),
            feature_flags=root.pairs(bool, "feature_flags"),
            proxy_protocol=root.flag("proxy_protocol"),
            trusted_proxies=auth.trusted_proxies(root),
        )

    def monitor(self, host: str, listen: str, *ports: str) -> Address | None:
        found = self.root.listen(listen) or ("", 0)
        only_port = self.root.port(*ports)
        port = found[1] if only_port is None else only_port
        return (found[0] or host, max(port, 0)) if port else None

    def tags(self) -> tuple[str, ...]:
        found = (tag.strip().lower() for tag in self.root.texts("server_tags"))
        return tuple(dict.fromkeys(tag for tag in found if tag))

    def numbers(self, default: Settings) -> Settings:
        """Limits and times; 0 means the default."""
        root = self.root
        pending = (
            self.at_most(limits.NATS_MAX_PENDING_MAX, "max_pending", refused=COUNT_MAX)
            or default.max_pending
        )
        payload = self.at_most(limits.NATS_PAYLOAD_HUGE, "max_payload", low=-INT32)
        if payload < 0:
            payload = limits.NATS_PAYLOAD_HUGE
        return replace(
            default,
            max_control_line=self.at_most(limits.NATS_MAX_CONTROL_LINE_MAX, "max_control_line")
            or default.max_control_line,
            max_payload=payload or default.max_payload,
            max_pending=pending,
            max_connections=root.number(
                "max_connections", "max_conn", default=default.max_connections
            ),
            max_subscriptions=max(root.number("max_subscriptions", "max_subs"), 0),
            max_sub_tokens=root.number(
                "max_sub_tokens",
                "max_subscription_tokens",
                low=1,
                high=limits.NATS_SUB_TOKENS_MAX,
            ),
            max_closed_clients=root.number("max_closed_clients", low=0)
            or default.max_closed_clients,
            connect_error_reports=root.number("connect_error_reports", low=0)
            or default.connect_error_reports,
            reconnect_error_reports=root.number("reconnect_error_reports", low=0)
            or default.reconnect_error_reports,
            ping_interval_ns=root.duration("ping_interval", default=default.ping_interval_ns),
            ping_max=root.number("ping_max", low=0, high=INT32) or default.ping_max,
            write_deadline_ns=root.duration("write_deadline", default=default.write_deadline_ns),
            write_timeout=root.choice(WRITE_TIMEOUTS, "write_timeout"),
            lame_duck_duration_ns=self.lame_duck(default.lame_duck_duration_ns),
            lame_duck_grace_period_ns=root.duration(
                "lame_duck_grace_period", default=default.lame_duck_grace_period_ns, seconds="no"
            ),
        )

    def at_most(self, high: int, name: str, low: int = 0, refused: int = INT32) -> int:
        """A number of bytes; a larger number is treated as the maximum."""
        position = self.root.peek(name)
        found = self.root.number(name, low=low, high=refused)
        if found > high and position is not None:
            self.mistakes.note(position, f"{name}: {high} is the most here, and is taken instead")
        return min(found, high)

    def lame_duck(self, default: int) -> int:
        found = self.root.duration("lame_duck_duration", default=default, seconds="no")
        if found < limits.NATS_LAME_DUCK_DURATION_MIN:
            self.root.wrong("lame_duck_duration: 30s is the least", "lame_duck_duration")
        return found

    def listeners(self, settings: Settings) -> Settings:
        """TLS, and all listeners except that for clients."""
        root = self.root
        found, self.websocket_places = None, dict[str, Value]()
        inner = root.block("websocket", "ws")
        if inner is not None and isinstance(inner.value.it, dict):
            found, self.websocket_places = websocket(inner)
        leafs = root.block("leafnodes", "leaf")
        return replace(
            settings,
            tls=optional_tls(root),
            websocket=found,
            leafnodes=None
            if leafs is None or not isinstance(leafs.value.it, dict)
            else self.leafs.read(leafs),
        )

    def accounts_and_operators(self, settings: Settings) -> Settings:
        """Accounts, users, operators."""
        root = self.root
        value = root.take("accounts")
        if value is not None:
            self.positioned = accounts(value, self.mistakes, self.logins)
        authorization_block = root.block("authorization")
        authorization = Authorization()
        if authorization_block is not None and isinstance(authorization_block.value.it, dict):
            authorization = auth.authorization(authorization_block, self.logins)
        operator = OperatorMode(root)
        system_position = root.peek("system_account", "system")
        other = root.text("system")
        system = operator.system_account(root.text("system_account") or other, system_position)
        names = [positioned.account.name for positioned in self.positioned]
        if not system and SYSTEM_ACCOUNT in names:
            system = SYSTEM_ACCOUNT
        return replace(
            settings,
            mappings=mappings(root),
            accounts=tuple(positioned.account for positioned in self.positioned),
            authorization=authorization,
            resolver=operator.resolver if operator.used else None,
            system_account=system,
            default_sentinel=operator.sentinel,
            authorization_given=authorization_block is not None,
        )

    def twinwire_block(self, settings: Settings) -> Settings:
        """The block `twinwire`, which nats-server does not have."""
        if self.root.flag("no_fast_producer_stall"):
            settings = replace(settings, slow_consumer="drop")
        inner = self.root.block("twinwire")
        if inner is None:
            return settings
        what = inner.text("slow_consumer", default=settings.slow_consumer)
        if what not in SLOW_CONSUMERS:
            expected = ", ".join(SLOW_CONSUMERS)
            reason = f"slow_consumer: expected one of {expected}, got {what!r}"
            inner.wrong(reason, "slow_consumer")
        user, password = inner.text("monitor_user"), inner.text("monitor_password")
        if bool(user) != bool(password):
            reason = "monitor_user and monitor_password belong together"
            inner.wrong(reason, "monitor_user", "monitor_password")
        inner.done()
        return replace(settings, slow_consumer=what, monitor_user=user, monitor_password=password)
