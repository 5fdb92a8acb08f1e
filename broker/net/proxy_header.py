"""The PROXY protocol: a load balancer first sends the address of the client that it connects.

    PROXY TCP4 192.0.2.1 198.51.100.7 51514 4222\\r\\n          version 1: a line
    0D 0A 0D 0A 00 0D 0A 51 55 49 54 0A, version and command, family and protocol,
    length (2 bytes), addresses, more of that length         version 2

A connection that begins otherwise is that of a client that came without a proxy. Source: HAProxy's
proxy-protocol.txt, and nats-server client_proxyproto.go for what is refused.
"""

from __future__ import annotations

import asyncio
import ipaddress
import struct
from typing import TYPE_CHECKING, Final

from broker.base.units import SECOND
from broker.base.values import dataclass
from broker.net import limits

if TYPE_CHECKING:
    from collections.abc import Callable

    from broker.net.conn import Conn

_LINE: Final = b"PROXY "
_LINE_MAX: Final = 107  # bytes, with its end
_SIGNATURE: Final = b"\r\n\r\n\x00\r\nQUIT\n"
_DETECTED: Final = len(_LINE)  # bytes that tell both versions from other traffic
_FIXED: Final = 16  # bytes of version 2 before the addresses
_LOCAL, _PROXY = 0, 1
_UNSPECIFIED, _INET, _INET6 = 0x0, 0x1, 0x2
_STREAM: Final = 0x1
_ADDRESSES: Final = {_INET: (4, 12), _INET6: (16, 36)}  # bytes of an address, and of all
_PORT_MAX: Final = 65535


class HeaderError(ValueError):
    """A connection that begins like a header but is invalid; the text is for the log."""


@dataclass(frozen=True, slots=True)
class Found:
    """The first bytes of a connection."""

    length: int  # of the header; 0: there is none
    peer: tuple[str, int] | None = None  # None: the other end of the connection


def read(data: bytes) -> Found | None:
    """The header at the beginning of `data`; None: more bytes are needed. HeaderError."""
    begin = data[:_DETECTED]
    if begin == _LINE:
        return _read_line(data)
    if begin == _SIGNATURE[:_DETECTED]:
        return _read_binary(data)
    if len(data) < _DETECTED and (_LINE.startswith(begin) or _SIGNATURE.startswith(begin)):
        return None
    return Found(0)


def _read_line(data: bytes) -> Found | None:
    line, end, _ = data[:_LINE_MAX].partition(b"\r\n")
    if not end:
        if len(data) >= _LINE_MAX:
            raise HeaderError("invalid PROXY protocol header: v1 line too long")
        return None
    length = len(line) + len(end)
    words = line.decode("latin-1").split()[1:]
    if words[:1] == ["UNKNOWN"]:
        return Found(length)
    if len(words) != 5:
        raise HeaderError("invalid PROXY protocol header: invalid v1 format")
    kind, source, target, port, target_port = words
    try:
        if "%" in source + target:
            raise ValueError
        shown = [ipaddress.ip_address(text) for text in (source, target)]
    except ValueError:
        raise HeaderError("invalid PROXY protocol header: invalid address") from None
    for name, text in (("source", port), ("dest", target_port)):
        if not (text.isascii() and text.isdigit() and int(text) <= _PORT_MAX):
            raise HeaderError(f"invalid {name} port: {text}")
    version = {"TCP4": 4, "TCP6": 6}.get(kind)
    if version is None:
        raise HeaderError(f"invalid PROXY protocol header: invalid protocol {kind}")
    if any(one.version != version for one in shown):
        other = 10 - version
        raise HeaderError(f"invalid PROXY protocol header: {kind} with IPv{other} address")
    return Found(length, (_text_of(shown[0]), int(port)))


def _read_binary(data: bytes) -> Found | None:
    if len(data) >= len(_SIGNATURE) and not data.startswith(_SIGNATURE):
        raise HeaderError("invalid PROXY protocol header: invalid signature")
    if len(data) < _FIXED:
        return None
    command, family, size = struct.unpack_from(">BBH", data, len(_SIGNATURE))
    if command >> 4 != 2:
        raise HeaderError(f"invalid PROXY protocol header: invalid version 0x{command & 0xF0:02x}")
    command &= 0xF
    family, transport = family >> 4, family & 0xF
    if command not in (_LOCAL, _PROXY):
        raise HeaderError(f"unknown PROXY protocol command: 0x{command:02x}")
    if command == _PROXY:
        if transport != _STREAM:
            raise HeaderError("unsupported PROXY protocol feature: only STREAM protocol supported")
        if family not in (_UNSPECIFIED, *_ADDRESSES):
            raise HeaderError(
                "unsupported PROXY protocol feature: unsupported address family"
                f" 0x{family << 4:02x}"
            )
        if family in _ADDRESSES and size < _ADDRESSES[family][1]:
            name = "IPv4" if family == _INET else "IPv6"
            raise HeaderError(f"{name} address data too short: {size} bytes")
    length = _FIXED + size
    if len(data) < length:
        return None
    if command == _LOCAL or family == _UNSPECIFIED:
        return Found(length)
    wide, whole = _ADDRESSES[family]
    host = ipaddress.ip_address(data[_FIXED : _FIXED + wide])
    (port,) = struct.unpack_from(">H", data, _FIXED + whole - 4)
    return Found(length, (_text_of(host), port))


def _text_of(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> str:
    """The address; an IPv4 address that is written as an IPv6 one is returned as IPv4."""
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address)


class ProxyHeader:
    """Reads the header of one connection: see Conn.expect_prefix."""

    def __init__(self, conn: Conn, refused: Callable[[str], None]) -> None:
        """`refused` is called with the reason, and has to end the connection."""
        self._refused = refused
        self._head = b""
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(limits.PROXY_HEADER / SECOND, self._late)
        conn.expect_prefix(self)

    def received(self, conn: Conn, data: bytes) -> None:
        """More bytes have come."""
        self._head += data
        try:
            found = read(self._head)
        except HeaderError as problem:
            self._timer.cancel()
            self._refused(str(problem))
            return
        if found is not None:
            self._timer.cancel()
            conn.end_prefix(self._head[found.length :], found.peer)

    def closed(self) -> None:
        """The connection has ended."""
        self._timer.cancel()

    def _late(self) -> None:
        self._refused("timeout reading PROXY protocol header")
