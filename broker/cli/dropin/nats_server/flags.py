"""The flags of nats-server, and how they change the settings of a file.

A flag may have several names; of all names given, the last one counts. `target` identifies the flag
in this module; it is mostly a field of Settings.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final

from broker.base.values import dataclass
from broker.cli.dropin import errors
from broker.cli.dropin.goflags import BOOL, INT, STRING, Flag, FlagError, Kind, parse
from broker.protocols.nats.settings import ORIGINAL, JetStream, Settings, Tls

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

PROGRAM: Final = "nats-server"
ANY_PORT: Final = -1  # on the command line


@dataclass(frozen=True)
class Row:
    """One flag with all its names, the first of which is shown first."""

    names: tuple[str, ...]
    kind: Kind
    target: str
    usage: str
    value: str = ""  # name of its value in the help text


Group = tuple[str, tuple[Row, ...]]  # title, flags


def row(names: str, target: str, usage: str, value: str = "", kind: Kind = STRING) -> Row:
    """A flag; one without a name for its value is a boolean."""
    return Row(tuple(names.split()), kind if value else BOOL, target, usage, value)


GROUPS: Final[tuple[Group, ...]] = (
    (
        "Listeners",
        (
            row("a addr net", "host", "interface of the client port (default 0.0.0.0)", "HOST"),
            row("p port", "port", "client port (default 4222, -1: any)", "PORT", INT),
            row("m http_port", "http_port", "monitoring over HTTP (-1: any)", "PORT", INT),
            row("ms https_port", "https_port", "monitoring over HTTPS (-1: any)", "PORT", INT),
            row("client_advertise", "client_advertise", "address reported to clients", "HOST:PORT"),
        ),
    ),
    (
        "Configuration",
        (
            row("c config", "config", "configuration file", "FILE"),
            row("t", "check", "check the configuration file and exit"),
            row("n name server_name", "server_name", "name of this server", "NAME"),
        ),
    ),
    (
        "Process",
        (
            row("P pid", "pid_file", "write the process id to this file", "FILE"),
            row(
                "ports_file_dir",
                "ports_file_dir",
                "write the addresses to a file in this folder",
                "DIR",
            ),
            row(
                "sl signal",
                "signal",
                "send to a server: reload, reopen, ldm, quit, term, stop;\n"
                "PID: a process id, a file with one, or the first digits and *",
                "COMMAND[=PID]",
            ),
        ),
    ),
    (
        "Log",
        (
            row("l log", "logfile", "log to this file instead of standard error", "FILE"),
            row(
                "log_size_limit",
                "logfile_size_limit",
                "start a new log file after this many bytes",
                "N",
                INT,
            ),
            row("s syslog", "syslog", "log to the syslog of this host"),
            row("r remote_syslog", "remote_syslog", "log to udp://, tcp:// or unix://", "URL"),
            row("T logtime", "logtime", "begin each line with the time (default true)"),
            row("logtime_utc", "logtime_utc", "in UTC"),
            row("D debug", "debug", "log more"),
            row("V trace", "trace", "log operations and messages of connections"),
            row("VV", "VV", "the same, including the system account"),
            row("DV", "DV", "both -D and -V"),
            row("DVV", "DVV", "both -D and -VV"),
            row(
                "max_traced_msg_len",
                "max_traced_msg_len",
                "maximum bytes shown of a traced message",
                "N",
                INT,
            ),
        ),
    ),
    (
        "Authentication",
        (
            row("user", "user", "user name", "NAME"),
            row("pass", "password", "password", "TEXT"),
            row("auth", "token", "token", "TEXT"),
        ),
    ),
    (
        "TLS",
        (
            row("tls", "tls", "with the certificate below"),
            row("tlscert", "tlscert", "certificate (PEM)", "FILE"),
            row("tlskey", "tlskey", "its private key (PEM)", "FILE"),
            row("tlscacert", "tlscacert", "CAs for client certificates (PEM)", "FILE"),
            row("tlsverify", "tlsverify", "require a certificate of clients"),
        ),
    ),
    (
        "JetStream",
        (
            row("js jetstream", "jetstream", "serve JetStream clients"),
            row("sd store_dir", "store_dir", "folder for streams", "DIR"),
        ),
    ),
    (
        "Accepted without effect, or refused",
        (
            row("routes", "routes", "refused: clusters are not available", "URLS"),
            row("cluster cluster_listen", "cluster", "refused: clusters are not available", "URL"),
            row("cluster_name", "cluster_name", "name of the cluster that is shown", "NAME"),
            row("cluster_advertise", "cluster_advertise", "no effect", "HOST:PORT"),
            row("no_advertise", "no_advertise", "no effect"),
            row("connect_retries", "connect_retries", "no effect", "N", INT),
            row("profile", "profile", "no effect: no profiler", "PORT", INT),
        ),
    ),
    (
        "Other",
        (
            row("h help", "help", "this text"),
            row("help_tls", "help_tls", "show how to configure TLS"),
            row("v version", "version", "the version"),
        ),
    ),
)


def flags_of(groups: Sequence[Group]) -> dict[str, Flag]:
    """The flag of each name."""
    return {
        name: Flag(name, one.kind, None, one.usage, one.target)
        for _, rows in groups
        for one in rows
        for name in one.names
    }


ROWS: Final = tuple(one for _, rows in GROUPS for one in rows)
FLAGS: Final = flags_of(GROUPS)

# Flags for features that are not available; only an empty value is accepted.
REFUSED: Final = {
    "routes": ("--routes", "clusters are not available; use leaf nodes"),
    "cluster": ("--cluster", "clusters are not available; use leaf nodes"),
}
NO_EFFECT: Final = {
    "cluster_advertise": ("--cluster_advertise", "there is no cluster"),
    "no_advertise": ("--no_advertise", "there is no cluster"),
    "connect_retries": ("--connect_retries", "there is no cluster"),
    "profile": ("--profile", "there is no profiler"),
}
# Targets that are fields of Settings.
_FIELDS: Final = (
    *("server_name", "client_advertise", "pid_file", "ports_file_dir", "logfile"),
    *("logfile_size_limit", "syslog", "remote_syslog", "logtime", "logtime_utc", "debug", "trace"),
    *("max_traced_msg_len", "cluster_name"),
)
# Applied in this order, after -D and -V: the fields that each sets to its value.
_MODES: Final = (
    ("DV", ("debug", "trace")),
    ("DVV", ("debug", "trace", "trace_verbose")),
    ("VV", ("trace", "trace_verbose")),
)
_TLS_FILES: Final = ("tlscert", "tlskey", "tlscacert", "tlsverify")


def read(args: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Value of each target that was given, and the words after the flags. FlagError."""
    found = parse(FLAGS, args)
    return {FLAGS[name].target: value for name, value in found.given.items()}, found.rest


def check(given: Mapping[str, Any]) -> None:
    """FlagError for a flag of a feature that is not available."""
    for target, (name, reason) in REFUSED.items():
        if given.get(target):
            raise FlagError(errors.FLAG_REFUSED.format(name, reason))


def remarks(given: Mapping[str, Any]) -> Iterator[str]:
    """A line for each given flag that has no effect."""
    for target, (name, reason) in NO_EFFECT.items():
        if given.get(target):
            yield errors.FLAG_NO_EFFECT.format(name, reason)


def apply(settings: Settings, given: Mapping[str, Any]) -> Settings:
    """The settings, overridden by the command line. FlagError."""
    changed: dict[str, Any] = {name: given[name] for name in _FIELDS if name in given}
    for mode, names in _MODES:
        if mode in given:
            changed |= dict.fromkeys(names, given[mode])
    changed |= _listening(settings, given)
    login = {name: given[name] for name in ("user", "password", "token") if name in given}
    if login:
        changed["authorization"] = dataclasses.replace(settings.authorization, **login)
    changed["tls"] = _tls(settings.tls, given)
    if "jetstream" in given or "store_dir" in given:
        changed["jetstream"] = _jetstream(settings.jetstream, given)
    return dataclasses.replace(settings, **changed)


def _listening(settings: Settings, given: Mapping[str, Any]) -> dict[str, Any]:
    """Set the client port and the monitoring port, which has the same host unless it is given."""
    usual = ORIGINAL.address
    before, port = settings.address
    host = (given["host"] or usual[0]) if "host" in given else before
    if "port" in given:
        port = _port(given["port"]) if given["port"] else usual[1]
    found: dict[str, Any] = {"listen": (host, port)}
    pages = settings.http or settings.https or (before, 0)
    at = host if pages[0] == before else pages[0]
    for target in ("http", "https"):
        was = getattr(settings, target)
        asked = given.get(f"{target}_port")
        if asked is not None:
            found[target] = (at, _port(asked)) if asked else None
        elif was is not None:
            found[target] = (at, was[1])
    return found


def _port(asked: int) -> int:
    """A port number; 0 means any free port in Settings, -1 on the command line."""
    return 0 if asked == ANY_PORT else asked


def _tls(before: Tls | None, given: Mapping[str, Any]) -> Tls | None:
    """Any of the TLS flags replaces the certificate of the file; -tls=false disables TLS."""
    if given.get("tls") is False:
        return None
    if not given.get("tls") and not any(name in given for name in _TLS_FILES):
        return before
    if not given.get("tlscert"):
        raise FlagError(errors.TLS_NO_CERTIFICATE)
    if not given.get("tlskey"):
        raise FlagError(errors.TLS_NO_KEY)
    return dataclasses.replace(
        before or Tls("", ""),
        cert_file=given["tlscert"],
        key_file=given["tlskey"],
        ca_file=given.get("tlscacert", ""),
        verify=given.get("tlsverify", False),
    )


def _jetstream(before: JetStream | None, given: Mapping[str, Any]) -> JetStream:
    """The block of the file, overridden by the flags."""
    block = before or JetStream(enabled=False)
    return dataclasses.replace(
        block,
        enabled=given.get("jetstream", block.enabled),
        store_dir=given.get("store_dir") or block.store_dir,
    )


def usage(program: str = PROGRAM, groups: Sequence[Group] = GROUPS) -> str:
    """The usage text of -h."""
    lines = [f"Usage: {program} [FLAG ...]", ""]
    for title, rows in groups:
        lines.append(f"{title}:")
        for one in rows:
            names = ", ".join(
                ("-" if len(name) < 3 or name.isupper() else "--") + name for name in one.names
            )
            first, *more = one.usage.split("\n")
            shown = f"  {names} {one.value}".rstrip()
            lines.append(f"{shown:<37} {first}" if len(shown) < 38 else f"{shown}\n{'':37} {first}")
            lines += [f"{'':37} {line}" for line in more]
        lines.append("")
    return "\n".join(lines)


HELP_TLS: Final = """\
TLS is set up by a block of the configuration file:

    tls {
        cert_file: "server-cert.pem"
        key_file:  "server-key.pem"
        ca_file:   "ca.pem"     # CAs for client certificates
        verify:    true         # clients need one
        timeout:   2            # seconds for a handshake
    }

or by --tls --tlscert FILE --tlskey FILE [--tlsverify --tlscacert FILE].
docs/guides/nats-server.md has all keys.
"""
