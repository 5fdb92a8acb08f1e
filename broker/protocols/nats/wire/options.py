"""The JSON of the NATS protocol: the options in CONNECT, and the address in INFO.

CONNECT is decoded as in Go: names match in any case, unknown ones are ignored, null keeps the old
value, a wrong type invalidates the whole object.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any, Final

import orjson

if TYPE_CHECKING:
    from collections.abc import Iterable

_INT_BITS: Final = 63

# The names of CONNECT on the wire, and of the fields here.
_BOOLS: Final = {
    "verbose": "verbose",
    "pedantic": "pedantic",
    "echo": "echo",
    "headers": "headers",
    "no_responders": "no_responders",
    "tls_required": "tls_required",
    "new_account": "new_account",
}
_STRINGS: Final = {
    "name": "name",
    "lang": "lang",
    "version": "version",
    "account": "account",
    "user": "user",
    "pass": "password",
    "auth_token": "token",
    "nkey": "nkey",
    "jwt": "jwt",
    "sig": "signature",
    "proxy_sig": "proxy_signature",
    "remote_account": "remote_account",
}
_OBJECTS: Final = frozenset({"import", "export"})  # from other servers; only their type is checked


class ClientOptions:
    """The merged options of all CONNECTs of a client."""

    __slots__ = (
        "account",
        "echo",
        "headers",
        "jwt",
        "lang",
        "name",
        "new_account",
        "nkey",
        "no_responders",
        "password",
        "pedantic",
        "protocol",
        "proxy_signature",
        "remote_account",
        "signature",
        "tls_required",
        "token",
        "user",
        "verbose",
        "version",
    )

    def __init__(self) -> None:
        self.verbose = self.pedantic = self.echo = True
        self.headers = self.no_responders = self.tls_required = self.new_account = False
        self.protocol = 0
        self.name = self.lang = self.version = self.account = self.remote_account = ""
        self.user = self.password = self.token = self.nkey = self.jwt = self.signature = ""
        self.proxy_signature = ""

    def merge(self, raw: bytes) -> None:
        """Merge the fields of one CONNECT; ValueError if Go would not accept it."""
        fields = parse_object(raw)
        for key, value in fields.items():
            self._set(_fold(key), value)
        self.lang = sys.intern(self.lang)  # thousands of connections share a few values
        self.version = sys.intern(self.version)

    def complete(self, fields: Iterable[tuple[str, str]]) -> None:
        """Set fields that no CONNECT has set, by the names of attributes."""
        for name, text in fields:
            if not getattr(self, name):
                setattr(self, name, text)

    def _set(self, key: str, value: object) -> None:
        if value is None:
            return
        if key in _BOOLS:
            if not isinstance(value, bool):
                raise ValueError(f"{key}: not a boolean")
            setattr(self, _BOOLS[key], value)
        elif key in _STRINGS:
            if not isinstance(value, str):
                raise ValueError(f"{key}: not a string")
            setattr(self, _STRINGS[key], value)
        elif key == "protocol":
            if type(value) is not int or value.bit_length() > _INT_BITS:
                raise ValueError("protocol: not a number")
            self.protocol = value
        elif key in _OBJECTS and not isinstance(value, dict):
            raise ValueError(f"{key}: not an object")


def _fold(key: str) -> str:
    """The name in lower case, with the two non-ASCII letters that Go treats as ASCII."""
    return key.lower().replace("\u017f", "s")


def parse_object(raw: bytes) -> dict[str, Any]:
    """A JSON object, or null for an empty one; ValueError otherwise."""
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError:
        # Go replaces invalid UTF-8 and lone surrogates, which orjson refuses
        try:
            value = json.loads(raw.decode("utf-8", "replace"), parse_constant=_refuse)
        except RecursionError as error:
            raise ValueError("nested too deeply") from error
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ValueError("not an object")
    return value


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is not JSON")


def advertised(where: str, address: tuple[str, int]) -> tuple[str, int]:
    """The address for INFO: HOST[:PORT] if configured. Port 0 or -1 means the listener's own."""
    if not where:
        return address
    host, colon, port = where.rpartition(":")
    if not colon or where.endswith("]"):
        host, port = where, ""
    number = int(port or 0)
    return host.strip("[] "), number if number > 0 else address[1]
