"""Options of a connection to an NSQ server, and their `--consumer-opt` form."""

from __future__ import annotations

import json
import re
import socket
import ssl
from collections.abc import Iterable
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any, Final

from broker import __version__
from broker.client.nsq import limits
from broker.client.tls import client_context

Address = tuple[str, int]
_NAME: Final = re.compile(r"[.a-zA-Z0-9_-]+(?:#ephemeral)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Options:
    """Settings of the handshake; times are in milliseconds as in IDENTIFY, 0 = the server's
    default.

    If the server does not offer TLS, a connection with `tls` fails. If it does not offer the
    compression, the connection is not compressed.
    """

    client_id: str = ""
    hostname: str = ""
    user_agent: str = f"twinwire/{__version__}"
    heartbeat_interval_ms: int = limits.HEARTBEAT_MS
    output_buffer_size: int = 0
    output_buffer_timeout_ms: int = 0
    msg_timeout_ms: int = 0
    sample_rate: int = 0
    tls: ssl.SSLContext | None = None
    tls_server_name: str = ""  # checked against the certificate; empty = the host of the address
    snappy: bool = False
    deflate: bool = False
    deflate_level: int = limits.DEFLATE_LEVEL
    auth_secret: str = ""
    connect_timeout_s: float = limits.CONNECT_S

    def __post_init__(self) -> None:
        if self.snappy and self.deflate:
            raise ValueError("give snappy or deflate, not both")
        if self.snappy and find_spec("snappy") is None:
            raise ImportError("snappy=True needs python-snappy: pip install python-snappy")

    def identify(self) -> bytes:
        """The body of IDENTIFY."""
        host = self.hostname or socket.gethostname()
        body: dict[str, Any] = {
            "client_id": self.client_id or host.partition(".")[0],
            "hostname": host,
            "user_agent": self.user_agent,
            "feature_negotiation": True,
            "heartbeat_interval": self.heartbeat_interval_ms,
            "tls_v1": self.tls is not None,
            "snappy": self.snappy,
            "deflate": self.deflate,
        }
        requested = {
            "output_buffer_size": self.output_buffer_size,
            "output_buffer_timeout": self.output_buffer_timeout_ms,
            "msg_timeout": self.msg_timeout_ms,
            "sample_rate": self.sample_rate,
            "deflate_level": self.deflate_level if self.deflate else 0,
        }
        body.update((key, value) for key, value in requested.items() if value)
        return json.dumps(body).encode()


_INTEGERS: Final = {
    "heartbeat_interval": "heartbeat_interval_ms",
    "output_buffer_size": "output_buffer_size",
    "output_buffer_timeout": "output_buffer_timeout_ms",
    "msg_timeout": "msg_timeout_ms",
    "sample_rate": "sample_rate",
    "deflate_level": "deflate_level",
}
_STRINGS: Final = frozenset({"client_id", "hostname", "user_agent", "auth_secret"})
_BOOLEANS: Final = frozenset({"snappy", "deflate"})
_TLS: Final = frozenset(
    {"tls_v1", "tls_root_ca_file", "tls_cert", "tls_key", "tls_insecure_skip_verify"}
)
_UNITS_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000}


def parse_options(words: Iterable[str], options: Options | None = None) -> Options:
    """Parse `key=value` or `key` (= true), as the original tools accept them. ValueError.

    Times are milliseconds or have a unit: 500, 500ms, 2s, 1m.
    """
    changes: dict[str, Any] = {}
    tls: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        key = key.strip().replace("-", "_")
        value = value if equals else "true"
        if key in _INTEGERS:
            changes[_INTEGERS[key]] = _number(key, value)
        elif key in _STRINGS:
            changes[key] = value
        elif key in _BOOLEANS:
            changes[key] = _boolean(key, value)
        elif key == "tls_server_name":
            changes[key] = value
        elif key in _TLS:
            tls[key] = value
        else:
            known = ", ".join(sorted({*_INTEGERS, *_STRINGS, *_BOOLEANS, *_TLS, "tls_server_name"}))
            raise ValueError(f"unknown option {key!r}; known are {known}")
    if tls and _boolean("tls_v1", tls.get("tls_v1", "true")):
        changes["tls"] = _context(tls)
    return replace(options or Options(), **changes)


def _number(key: str, text: str) -> int:
    digits = text.rstrip("mhs")
    unit = text[len(digits) :]
    try:
        return int(digits) * (_UNITS_MS[unit] if unit else 1)
    except (ValueError, KeyError):
        raise ValueError(f"{key}: invalid number {text!r}") from None


def _boolean(key: str, text: str) -> bool:
    lowered = text.lower()
    if lowered in {"true", "1", "t", "yes"}:
        return True
    if lowered in {"false", "0", "f", "no"}:
        return False
    raise ValueError(f"{key}: invalid value {text!r}: expected true or false")


def _context(words: dict[str, str]) -> ssl.SSLContext:
    insecure = _boolean("tls_insecure_skip_verify", words.get("tls_insecure_skip_verify", "false"))
    files = (words.get(key) for key in ("tls_root_ca_file", "tls_cert", "tls_key"))
    try:
        return client_context(*files, insecure=insecure)
    except OSError as error:
        named = f"{error.filename}: {error.strerror}" if error.filename is not None else error
        raise ValueError(f"TLS files: {named}") from error


def parse_address(text: str, port: int = limits.PORT) -> Address:
    """Parse `HOST`, `HOST:PORT` or `[IPV6]:PORT`. ValueError, TypeError."""
    if not isinstance(text, str):
        raise TypeError(f"an address must be a str 'HOST:PORT', not {type(text).__name__}")
    host, colon, number = text.rpartition(":")
    if not colon or text.endswith("]"):
        host, number = text, str(port)
    host = host.removeprefix("[").removesuffix("]")
    if not host or not number.isdecimal() or not 0 < int(number) < 65536:
        raise ValueError(f"invalid address {text!r}: expected HOST:PORT")
    return host, int(number)


def several(name: str, given: str | Iterable[str]) -> list[str]:
    """The list of addresses of an argument that is one address or several. TypeError."""
    if isinstance(given, str):
        return [given]
    try:
        return list(given)
    except TypeError:
        kind = type(given).__name__
        raise TypeError(f"{name} must be an address or a list of them, not {kind}") from None


def checked(name: str, kind: str = "topic") -> bytes:
    """Check the name of a topic or channel, and encode it. ValueError, TypeError."""
    if not isinstance(name, str):
        raise TypeError(f"a {kind} name must be a str, not {type(name).__name__}")
    if len(name) > limits.NAME_MAX or not _NAME.fullmatch(name):
        raise ValueError(
            f"invalid {kind} name {name!r}: use letters, digits, '.', '_' and '-',"
            f" at most {limits.NAME_MAX} characters"
        )
    return name.encode()
