"""The JSON that two servers exchange during the handshake of a leaf link: INFO and CONNECT.

Fields are decoded as in the original: unknown ones are ignored, a wrong type invalidates the
whole object. Source: nats-server leafnode.go leafConnectInfo, processLeafnodeInfo.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import orjson

from broker.base.patterns import lazy_pattern
from broker.base.values import dataclass
from broker.protocols.nats.auth import nkeys
from broker.protocols.nats.leafnodes.limits import NATS_LEAF_URLS_MAX
from broker.protocols.nats.settings import Permissions, Rules, SubjectRule
from broker.protocols.nats.wire.options import parse_object

if TYPE_CHECKING:
    from collections.abc import Iterable

    from broker.protocols.nats.settings import Remote

# The token, then the seed, each between two lines with dashes.
_ARMOURED: Final = lazy_pattern(r"-{3,}[^\n]*-{3,}\r?\n(.+?)\r?\n\s*-{3,}[^\n]*-{3,}")
_VERSION: Final = lazy_pattern(r"[vV]?(\d+)\.(\d+)\.(\d+)")


def fold(raw: bytes) -> dict[str, Any]:
    """Decode an object to lower-case names, without nulls; ValueError if it is invalid."""
    return {key.lower(): value for key, value in parse_object(raw).items() if value is not None}


def _take(fields: dict[str, Any], key: str, kind: type, default: Any) -> Any:
    value = fields.get(key, default)
    if type(value) is not kind:
        raise ValueError(f"{key}: not a {kind.__name__}")
    return value


def _strings(fields: dict[str, Any], key: str) -> tuple[str, ...]:
    value = fields.get(key, [])
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise ValueError(f"{key}: not a list of strings")
    return tuple(value)


@dataclass(frozen=True, slots=True)
class PeerConnect:
    """CONNECT of a server that joins this one; its login is in ClientOptions."""

    name: str
    version: str
    cluster: str
    domain: str  # of its JetStream
    hub: bool  # it requests to be the hub
    headers: bool
    isolate: bool  # subscriptions of other leafs must not be announced to it
    deny_pub: tuple[str, ...]  # subjects that must not be sent to it
    gateway: str
    remote_account: str
    compression: str  # the compression that it considers agreed

    @classmethod
    def read(cls, raw: bytes) -> PeerConnect:
        """Decode CONNECT; ValueError if it is invalid."""
        fields = fold(raw)
        return cls(
            name=_take(fields, "name", str, ""),
            version=_take(fields, "version", str, ""),
            cluster=_take(fields, "cluster", str, ""),
            domain=_take(fields, "domain", str, ""),
            hub=_take(fields, "is_hub", bool, False),
            headers=_take(fields, "headers", bool, False),
            isolate=_take(fields, "isolate", bool, False),
            deny_pub=_strings(fields, "deny_pub"),
            gateway=_take(fields, "gateway", str, ""),
            remote_account=_take(fields, "remote_account", str, ""),
            compression=_take(fields, "compress_mode", str, ""),
        )


@dataclass(frozen=True, slots=True)
class PeerInfo:
    """INFO of a server that this one joins, the first or a later one."""

    server_id: str
    name: str
    cluster: str
    domain: str  # of its JetStream
    client_id: int
    nonce: str
    headers: bool
    max_payload: int  # 0 = not reported
    tls_required: bool
    info_on_connect: bool
    connect_info: bool
    compression: str  # its mode
    remote_account: str
    urls: tuple[str, ...] | None  # None: absent, as on listeners of other kinds
    publish: Rules | None  # subjects that may be sent; None: absent
    subscribe: Rules | None

    @classmethod
    def read(cls, raw: bytes) -> PeerInfo:
        """Decode INFO; ValueError if it is invalid."""
        fields = fold(raw)
        return cls(
            server_id=_take(fields, "server_id", str, ""),
            name=_take(fields, "server_name", str, ""),
            cluster=_take(fields, "cluster", str, ""),
            domain=_take(fields, "domain", str, ""),
            client_id=_take(fields, "client_id", int, 0),
            nonce=_take(fields, "nonce", str, ""),
            headers=_take(fields, "headers", bool, False),
            max_payload=max(0, _take(fields, "max_payload", int, 0)),
            tls_required=_take(fields, "tls_required", bool, False),
            info_on_connect=_take(fields, "info_on_connect", bool, False),
            connect_info=_take(fields, "connect_info", bool, False),
            compression=_take(fields, "compression", str, ""),
            remote_account=_take(fields, "remote_account", str, ""),
            urls=_strings(fields, "leafnode_urls")[:NATS_LEAF_URLS_MAX]
            if "leafnode_urls" in fields
            else None,
            publish=_rules(fields, "export", empty_allows=False),
            subscribe=_rules(fields, "import", empty_allows=True),
        )


def _rules(fields: dict[str, Any], key: str, *, empty_allows: bool) -> Rules | None:
    if key not in fields:
        return None
    inner = _take(fields, key, dict, None)
    lists = {name.lower(): value for name, value in inner.items() if value is not None}
    allow = _subjects(_strings(lists, "allow")) if "allow" in lists else None
    return Rules(
        allow=None if empty_allows and not allow else allow,
        deny=_subjects(_strings(lists, "deny")),
    )


def _subjects(texts: Iterable[str]) -> tuple[SubjectRule, ...]:
    found = []
    for text in texts:
        subject, _, queue = text.partition(" ")
        if not subject or queue.strip() != queue:
            raise ValueError("not a subject")
        tokens = subject.split(".")
        if "" in tokens or ">" in tokens[:-1]:
            raise ValueError("not a subject")
        found.append(SubjectRule(subject, queue))
    return tuple(found)


def denied(rules: Rules | None, more: Iterable[str]) -> Rules:
    """The rules with further subjects denied."""
    rules = rules or Rules()
    return Rules(rules.allow, (*rules.deny, *_subjects(more)))


def permissions_info(permissions: Permissions | None) -> dict[str, Any]:
    """The INFO fields with the permissions of a leaf."""
    if permissions is None:
        return {}
    return {
        "import": _shown(permissions.subscribe),
        "export": _shown(permissions.publish),
    }


def _shown(rules: Rules) -> dict[str, list[str]]:
    lists = {"allow": rules.allow or (), "deny": rules.deny}
    return {
        name: [f"{rule.subject} {rule.queue}".rstrip() for rule in rows]
        for name, rows in lists.items()
        if rows
    }


class CredentialsError(Exception):
    """The credentials cannot be read; the text names the file and contains no secrets."""


def sign_in(remote: Remote, nonce: bytes, user: str, password: str) -> dict[str, str]:
    """The login fields of CONNECT; CredentialsError if a file is invalid."""
    if remote.credentials:
        token, key = _read_credentials(remote.credentials)
        return {"jwt": token, "sig": nkeys.to_base64(key.sign(nonce))}
    if remote.nkey:
        key = _read_nkey(remote.nkey)
        return {"nkey": key.public, "sig": nkeys.to_base64(key.sign(nonce))}
    fields = {"user": user, "pass": password}
    return {name: text for name, text in fields.items() if text}


def _read_credentials(path: str) -> tuple[str, nkeys.KeyPair]:
    try:
        found = _ARMOURED.findall(Path(path).read_text())
    except (OSError, ValueError) as problem:
        raise CredentialsError(f"credentials file {path}: {problem}") from None
    if len(found) < 2:
        raise CredentialsError(f"credentials file {path} is malformed")
    try:
        return found[0].strip(), nkeys.KeyPair.from_seed(found[1].strip())
    except ValueError:
        raise CredentialsError(f"credentials file {path} has a malformed seed") from None


def _read_nkey(text: str) -> nkeys.KeyPair:
    """A seed, or the path of a file with one."""
    try:
        return nkeys.KeyPair.from_seed(text)
    except ValueError:
        pass
    try:
        return nkeys.KeyPair.from_seed(Path(text).read_text().strip())
    except (OSError, ValueError):
        raise CredentialsError("the remote's nkey is neither a seed nor a file with one") from None


def connect_line(fields: dict[str, Any]) -> bytes:
    """The CONNECT line, without empty fields."""
    present = {name: value for name, value in fields.items() if value}
    return b"CONNECT " + orjson.dumps(present) + b"\r\n"


def at_least(version: str, least: str) -> bool:
    """Whether a server's version is `least` or later."""
    found, wanted = _VERSION.match(version), _VERSION.match(least)
    if found is None or wanted is None:
        return wanted is None
    return tuple(map(int, found.groups())) >= tuple(map(int, wanted.groups()))
