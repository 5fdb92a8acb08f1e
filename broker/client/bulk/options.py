"""Options of a connection: plain values, so that they can be sent to another process."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from broker.client.bulk import limits
from broker.client.tls import client_context

if TYPE_CHECKING:
    import ssl

_ENCODINGS: Final = ("", "gzip", "zstd")
_SERVER: Final = re.compile(
    r"(?:(?P<scheme>https?)://)?(?P<host>\[[0-9A-Za-z:.%]+\]|[^\s/:\[\]]+)(?::(?P<port>[0-9]+))?/?"
)


@dataclass(frozen=True, slots=True)
class Tls:
    """Files in PEM. Without `ca_file` the certificate authorities of the system are trusted."""

    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    server_name: str = ""  # checked against the certificate; empty = the host of the address
    insecure: bool = False  # accept any certificate

    def context(self) -> ssl.SSLContext:
        """The context for these files; OSError: they cannot be used."""
        files = (self.ca_file or None, self.cert_file or None, self.key_file or None)
        return client_context(*files, insecure=self.insecure)


@dataclass(frozen=True, slots=True)
class Options:
    """Options of a connection to a broker. They can be pickled.

    A token file is read for each connection, and again when the broker rejects the token, so that
    it can be replaced while a job runs. The broker may ignore `compress`.
    """

    token: str = field(default="", repr=False)
    token_file: str = ""
    tls: Tls | None = None
    timeout_s: float = limits.TIMEOUT_S
    retries: int = limits.RETRIES
    fetch_bytes: int = limits.FETCH_BYTES
    compress: str = ""  # "zstd" (needs PyArrow) or "gzip"

    def __post_init__(self) -> None:
        if self.token and self.token_file:
            raise ValueError("give token or token_file, not both")
        if self.compress not in _ENCODINGS:
            raise ValueError(f"invalid compress {self.compress!r}: expected gzip or zstd")
        if self.timeout_s <= 0 or self.retries < 0 or self.fetch_bytes <= 0:
            raise ValueError("timeout_s and fetch_bytes must be above 0, retries at least 0")

    def secret(self) -> str:
        """The token to send now, empty = none."""
        if not self.token_file:
            return self.token
        return Path(self.token_file).read_text(encoding="utf-8").strip()


def parse_server(text: str) -> tuple[str, int, bool]:
    """(host, port, with TLS) of `HOST`, `HOST:PORT` or `[IPV6]:PORT`, which http:// or https:// may
    precede. ValueError."""
    match = _SERVER.fullmatch(text.strip())
    port = int(match["port"] or limits.PORT) if match else 0
    if match is None or not 0 < port < 65536:
        raise ValueError(f"invalid address {text!r}: expected HOST:PORT or https://HOST:PORT")
    host = match["host"].removeprefix("[").removesuffix("]")
    return host, port, match["scheme"] == "https"


def parse_servers(servers: str | list[str] | tuple[str, ...]) -> tuple[str, ...]:
    """The addresses of a list, or of a text separated by commas. ValueError."""
    words = servers.split(",") if isinstance(servers, str) else servers
    found = tuple(dict.fromkeys(word.strip() for word in words if word.strip()))
    if not found:
        raise ValueError("give at least one server")
    for server in found:
        parse_server(server)
    return found
