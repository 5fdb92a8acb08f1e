"""Client info: fields about a client for services (header Nats-Request-Info) and events.

Source: nats-server events.go ClientInfo (the order of the fields too), client.go getClientInfo.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import orjson

from broker.base.patterns import lazy_pattern
from broker.base.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Mapping

HEADER: Final = b"Nats-Request-Info"
_VERSION: Final = b"NATS/1.0"
_FIRST_LINE: Final = lazy_pattern(_VERSION + rb"[^\r\n]*")
# The name, with blanks or unprintable bytes around it, up to the end of its last folded line.
_SIMILAR_HEADER: Final = lazy_pattern(
    rb"(?i)(?<=[\r\n])[\x00-\x09\x0b\x0c\x0e-\x20\x7f-\xff]*"
    + HEADER
    + rb"[\x00-\x09\x0b\x0c\x0e-\x20\x7f-\xff]*:[^\r\n]*(?:\r\n?|\n|\Z)"
    rb"(?:[ \t][^\r\n]*(?:\r\n?|\n|\Z))*"
)
_ORDER: Final = (
    "start", "host", "id", "acc", "svc", "user", "name", "lang", "ver", "rtt", "server", "cluster",
    "alts", "stop", "jwt", "issuer_key", "name_tag", "tags", "kind", "client_type", "client_id",
    "nonce",
)  # fmt: skip
# Go escapes characters that have a meaning in HTML.
_ESCAPES: Final = {
    b"<": b"\\u003c",
    b">": b"\\u003e",
    b"&": b"\\u0026",
    "\u2028".encode(): b"\\u2028",
    "\u2029".encode(): b"\\u2029",
}


def go_json(value: object) -> bytes:
    """JSON in Go's format."""
    text = orjson.dumps(value)
    for plain, escaped in _ESCAPES.items():
        if plain in text:
            text = text.replace(plain, escaped)
    return text


def go_time(wall_ns: int) -> str:
    """A time in Go's format RFC3339Nano in UTC, without trailing zeros."""
    seconds, ns = divmod(wall_ns, SECOND)
    text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    return text + (f".{ns:09}".rstrip("0") if ns else "") + "Z"


def is_leaf(session: Any) -> bool:
    """Whether the session is a leaf node's."""
    return str(session.kind).startswith("LEAFNODE")


def server_of(session: Any, server: Mapping[str, str]) -> dict[str, str]:
    """The server that a session's clients are connected to: this one, or a leaf node."""
    return {**server, "server": session.peer_name} if is_leaf(session) else dict(server)


def client_info(session: Any, server: Mapping[str, str] | None) -> dict[str, Any]:
    """The fields about a session. Without `server` (the server's name and cluster) only its account
    and round-trip time. Empty for the server itself (`session` None).
    """
    if session is None:
        return {}
    info: dict[str, Any] = {"acc": session.account.name, "rtt": session.rtt_ns}
    if server is not None:
        options, identity = session.options, session.identity
        leaf = is_leaf(session)
        info |= server_of(session, server)
        info |= {
            "start": go_time(session.start_ns),
            "host": session.host,
            "id": session.client_id,
            "kind": "Leafnode" if leaf else "Client",
            "client_type": "" if leaf else "websocket" if session.kind == "WEBSOCKET" else "nats",
        }
        if options is not None:
            info |= {"name": options.name, "lang": options.lang, "ver": options.version}
        if identity is not None:
            info |= {
                "user": identity.user,
                "jwt": identity.jwt,
                "issuer_key": identity.issuer_key,
                "name_tag": identity.name_tag,
                "tags": list(identity.tags),
            }
    return ordered(info)


def ordered(info: Mapping[str, Any]) -> dict[str, Any]:
    """The fields in the original's order, without empty ones."""
    return {name: info[name] for name in _ORDER if info.get(name)}


def passed_on(value: bytes, service: str, server: Mapping[str, str] | None) -> dict[str, Any]:
    """The client info for the next account to which a request is forwarded; the fields of `server`
    are added. `value`: the header that the server itself added to the request."""
    info = orjson.loads(value)
    info["svc"] = service
    return ordered({**info, **(server or {})})


def without_header(block: bytes) -> bytes | None:
    """A block of headers without any line that could be read as Nats-Request-Info.

    Clients parse such a block in different ways: some end lines at a lone CR or LF, ignore the case
    of names, strip blanks around them, or join lines that begin with a blank to the previous one.
    None if no such line exists.
    """
    text, count = _SIMILAR_HEADER.subn(b"", block)
    return text if count else None


def with_header(block: bytes, info: bytes) -> bytes:
    """A block of headers with this as the first and only Nats-Request-Info."""
    line = b"%b: %b\r\n" % (HEADER, info)
    version, newline, rest = (without_header(block) or block).partition(b"\r\n")
    if not newline or not _FIRST_LINE.fullmatch(version):
        version = _VERSION
    return b"%b\r\n%b%b" % (version, line, rest or b"\r\n")
