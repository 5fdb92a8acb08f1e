"""The tokens of operator mode: JSON Web Tokens signed by nkeys, in versions 2 and 1.

    base64({"typ":"JWT","alg":"ed25519-nkey"}) . base64(claims) . base64(signature)

Version 2 signs the first two parts with the dot between them; version 1 only the second part. A
token names its own issuer (`iss`): a valid signature proves nothing until the caller checks that
the issuer's key is trusted.
"""

from __future__ import annotations

import re
import time
from typing import Annotated, Any, Final, TypeVar

import msgspec
import orjson

from broker.base.units import INT64_MAX, INT64_MIN
from broker.protocols.nats.auth import nkeys

PREFIX: Final = "eyJ"  # the beginning of every token
ANY: Final = "*"  # in revocations: all users; in allowed accounts: any account
_ALGORITHMS: Final = {"ed25519-nkey", "ed25519"}
_VERSION: Final = 2
_HEADER: Final = nkeys.to_base64(b'{"typ":"JWT","alg":"ed25519-nkey"}')
_DEPTH_MAX: Final = 32  # JSON inside JSON

_Body = TypeVar("_Body")
Int64 = Annotated[int, msgspec.Meta(ge=INT64_MIN, le=INT64_MAX)]


class Invalid(Exception):  # noqa: N818 - what the token is
    """Not a token, not signed by its issuer, or not of the expected kind."""


class Claims(msgspec.Struct, frozen=True, kw_only=True):
    """The claims that all tokens have."""

    iss: str = ""  # the key that signed it
    sub: str = ""
    aud: str = ""
    name: str = ""
    jti: str = ""
    iat: Int64 = 0  # seconds since 1970
    exp: Int64 = 0  # 0 = never
    nbf: Int64 = 0


class Permission(msgspec.Struct, frozen=True):
    """Lists of subjects, each with an optional queue group after a blank."""

    allow: list[str] | None = None
    deny: list[str] | None = None


class Responses(msgspec.Struct, frozen=True):
    """Permission to publish to reply subjects."""

    max: Int64 = 0
    ttl: Int64 = 0  # ns


class TimeRange(msgspec.Struct, frozen=True):
    """A time span of each day."""

    start: str = ""
    end: str = ""


class UserPermissions(msgspec.Struct, frozen=True, kw_only=True):
    """The permissions of a user; also the template of a scoped signing key."""

    pub: Permission = Permission()
    sub: Permission = Permission()
    resp: Responses | None = None
    src: list[str] | str | None = None
    times: list[TimeRange] | None = None
    times_location: str = ""
    subs: Int64 = 0
    data: Int64 = 0
    payload: Int64 = 0
    bearer_token: bool = False
    allowed_connection_types: list[str] | None = None
    proxy_required: bool = False  # the user may only connect through a trusted proxy

    def sources(self) -> list[str]:
        """The allowed networks; version 1 has them in one string."""
        if isinstance(self.src, str):
            return [part for text in self.src.lower().split(",") if (part := text.strip())]
        return self.src or []


class UserBody(UserPermissions, frozen=True, kw_only=True):
    """The body of a user's token."""

    issuer_account: str = ""  # the account of the signing key
    tags: list[str] = []

    def has_own_permissions(self) -> bool:
        """Whether a value differs from its default, which scoped keys do not allow."""
        return any(
            getattr(self, n) != getattr(_NO_PERMISSIONS, n)
            for n in UserPermissions.__struct_fields__
        )


_NO_PERMISSIONS: Final = UserPermissions()


class Latency(msgspec.Struct, frozen=True):
    """Sampling of a service's response times."""

    sampling: Int64 | str = 0  # percent; 0 or "headers": the headers of a request decide
    results: str = ""


class ExportClaim(msgspec.Struct, frozen=True, kw_only=True):
    """A stream or service that others may import."""

    name: str = ""
    subject: str = ""
    type: str = ""
    token_req: bool = False
    revocations: dict[str, Int64] = {}
    response_type: str = ""
    response_threshold: Int64 = 0  # ns
    service_latency: Latency | None = None
    account_token_position: Annotated[int, msgspec.Meta(ge=0)] = 0
    allow_trace: bool = False
    info_url: str = ""


class ImportClaim(msgspec.Struct, frozen=True, kw_only=True):
    """An import from another account."""

    name: str = ""
    subject: str = ""
    account: str = ""
    token: str = ""  # activation
    to: str = ""
    local_subject: str = ""
    type: str = ""
    share: bool = False
    allow_trace: bool = False


class Weighted(msgspec.Struct, frozen=True):
    """One destination of a mapping."""

    subject: str = ""
    weight: Annotated[int, msgspec.Meta(ge=0, le=255)] = 0  # 0 = 100
    cluster: str = ""


class StreamLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of JetStream; -1 = none. All of them 0: it is not enabled."""

    mem_storage: Int64 = 0
    disk_storage: Int64 = 0
    streams: Int64 = 0
    consumer: Int64 = 0  # of one stream
    max_ack_pending: Int64 = 0
    mem_max_stream_bytes: Int64 = 0
    disk_max_stream_bytes: Int64 = 0
    max_bytes_required: bool = False


class Limits(StreamLimits, frozen=True, kw_only=True):
    """Limits; -1 = none, absent values are 0."""

    subs: Int64 = 0
    data: Int64 = 0
    payload: Int64 = 0
    imports: Int64 = 0
    exports: Int64 = 0
    wildcards: bool = False
    disallow_bearer: bool = False
    conn: Int64 = 0
    leaf: Int64 = 0
    tiered_limits: dict[str, StreamLimits] = {}  # by the number of replicas: R1, R3


class Permissions(msgspec.Struct, frozen=True):
    """Permissions of users without their own."""

    pub: Permission = Permission()
    sub: Permission = Permission()
    resp: Responses | None = None


class External(msgspec.Struct, frozen=True):
    """An authorization service that decides about logins."""

    auth_users: list[str] = []
    allowed_accounts: list[str] = []
    xkey: str = ""


class MessageTrace(msgspec.Struct, frozen=True):
    """The subject for traces of messages with a `traceparent`, and how many are sampled."""

    dest: str = ""
    sampling: Int64 = 0  # percent; 0: all


class Scope(msgspec.Struct, frozen=True, kw_only=True):
    """A signing key with a template for the permissions of all users that it signs."""

    kind: str
    key: str
    role: str = ""
    template: dict[str, Any] = {}

    def permissions(self) -> UserPermissions:
        """The template's permissions; absent limits mean no limit."""
        return _convert({"subs": -1, "data": -1, "payload": -1} | self.template, UserPermissions)


class AccountBody(msgspec.Struct, frozen=True, kw_only=True):
    """The body of an account's token."""

    imports: list[ImportClaim] = []
    exports: list[ExportClaim] = []
    limits: Limits = Limits()
    signing_keys: list[str | Scope] = []
    revocations: dict[str, Int64] = {}  # users' keys -> seconds since 1970
    default_permissions: Permissions = Permissions()
    mappings: dict[str, list[Weighted]] = {}
    authorization: External = External()
    trace: MessageTrace | None = None
    cluster_traffic: str = ""
    info_url: str = ""
    tags: list[str] = []


class OperatorBody(msgspec.Struct, frozen=True, kw_only=True):
    """The body of an operator's token."""

    signing_keys: list[str] = []
    account_server_url: str = ""
    operator_service_urls: list[str] = []
    system_account: str = ""
    assert_server_version: str = ""
    strict_signing_key_usage: bool = False
    tags: list[str] = []


class ActivationBody(msgspec.Struct, frozen=True, kw_only=True):
    """The body of a token that allows one account to import from another."""

    subject: str = ""
    kind: str = ""  # stream, service
    issuer_account: str = ""


class AnswerBody(msgspec.Struct, frozen=True, kw_only=True):
    """The body of an authorization service's answer."""

    jwt: str = ""
    error: str = ""
    issuer_account: str = ""


class Token(msgspec.Struct, frozen=True):
    """A token with a verified signature of its issuer."""

    claims: Claims
    body: Any
    kind: str
    text: str

    def __repr__(self) -> str:  # a bearer token is a secret
        return f"Token({self.kind} {self.claims.sub})"


# Kind -> type of its body, and the kinds of keys that may sign it.
_KINDS: Final[dict[str, tuple[type, str]]] = {
    "operator": (OperatorBody, nkeys.OPERATOR),
    "account": (AccountBody, nkeys.ACCOUNT + nkeys.OPERATOR),
    "user": (UserBody, nkeys.ACCOUNT),
    "activation": (ActivationBody, nkeys.ACCOUNT + nkeys.OPERATOR),
    "authorization_response": (AnswerBody, nkeys.ACCOUNT),
    "authorization_request": (dict, nkeys.SERVER),
}
_ANY_VERSION: Final = {"authorization_response", "authorization_request"}
_V1_FIELDS: Final = {
    "operator": {"signing_keys", "account_server_url", "operator_service_urls", "system_account"},
    "account": {"imports", "exports", "limits", "signing_keys", "revocations"},
    "user": {"pub", "sub", "resp", "src", "times", "times_location", "subs", "data", "payload",
             "bearer_token"},
    "activation": {"subject"},
}  # fmt: skip


def _plain(value: Any, depth: int = _DEPTH_MAX) -> Any:
    """JSON without nulls, which mean the same as absence."""
    if depth == 0:
        raise Invalid("nested too deeply")
    if isinstance(value, dict):
        return {k: _plain(v, depth - 1) for k, v in value.items() if v is not None}
    if isinstance(value, list):
        return [_plain(v, depth - 1) for v in value]
    return value


def _object(part: str) -> dict[str, Any]:
    try:
        value = orjson.loads(nkeys.from_base64(part))
    except ValueError as error:  # from base64 or JSON
        raise Invalid("not a token") from error
    if not isinstance(value, dict):
        raise Invalid("not a token")
    plain: dict[str, Any] = _plain(value)
    return plain


def _convert(value: Any, kind: type[_Body]) -> _Body:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise Invalid(f"wrong type: {error}") from error


def _parts(token: str) -> tuple[str, str, bytes, str]:
    """Split a token into header and claims as text, signature, algorithm."""
    parts = token.split(".")
    if len(parts) != 3:
        raise Invalid("not a token of three parts")
    header = _object(parts[0])
    kind, algorithm = header.get("typ"), header.get("alg")
    if not isinstance(kind, str) or kind.upper() != "JWT":
        raise Invalid("not a JWT")
    if not isinstance(algorithm, str) or algorithm.lower() not in _ALGORITHMS:
        raise Invalid("unknown signature algorithm")
    try:
        return parts[0], parts[1], nkeys.from_base64(parts[2]), algorithm
    except ValueError as error:
        raise Invalid("not a token") from error


def decode(token: str, kind: str) -> Token:
    """Decode a token of that kind and verify its signature; raises Invalid."""
    header, payload, signature, _ = _parts(token)
    fields = _object(payload)
    nats = fields.get("nats", {})
    if not isinstance(nats, dict):
        raise Invalid("wrong type: nats")
    v1_kind = fields.get("type", "")
    version = 1 if v1_kind else nats.get("version", 0)
    if (v1_kind or nats.get("type")) != kind:
        raise Invalid(f"not a token of type {kind}")
    if kind not in _ANY_VERSION and version not in {1, _VERSION}:
        raise Invalid("unsupported version")
    body_type, signers = _KINDS[kind]
    claims = _convert(fields, Claims)
    signed = f"{header}.{payload}" if version == _VERSION else payload
    if not nkeys.verify(claims.iss, signed.encode(), signature):
        raise Invalid("the signature does not match the issuer")
    if claims.iss[0] not in signers:
        raise Invalid("signed by a key of the wrong kind")
    if version == 1 and kind in _V1_FIELDS:
        nats = _migrated(kind, fields, nats)
    return Token(claims, _convert(nats, body_type), kind, token)


def _migrated(kind: str, fields: dict[str, Any], nats: dict[str, Any]) -> dict[str, Any]:
    """Convert a body of version 1 to version 2."""
    body = {name: nats[name] for name in _V1_FIELDS[kind] if name in nats}
    if kind == "user":
        body = {"subs": -1, "data": -1, "payload": -1} | body
    if kind == "activation":
        body["kind"] = nats.get("type", "")
    for name in ("tags", "issuer_account"):
        if name in fields:
            body[name] = fields[name]
    return body


def decode_generic(token: str) -> tuple[Claims, dict[str, Any]]:
    """The verified claims and body of a token of any kind; raises Invalid."""
    header, payload, signature, algorithm = _parts(token)
    fields = _object(payload)
    claims = _convert(fields, Claims)
    signed = payload if algorithm == "ed25519" else f"{header}.{payload}"
    if not nkeys.verify(claims.iss, signed.encode(), signature):
        raise Invalid("the signature does not match the issuer")
    return claims, _convert(fields.get("nats", {}), dict)


def encode(pair: nkeys.KeyPair, claims: dict[str, Any], body: dict[str, Any], kind: str) -> str:
    """Create and sign a token of version 2; `iss` and `iat` are filled in."""
    fields = {"iat": int(time.time()), **claims, "iss": pair.public}
    fields["nats"] = {**body, "type": kind, "version": _VERSION}
    signed = f"{_HEADER}.{nkeys.to_base64(orjson.dumps(fields))}"
    return f"{signed}.{nkeys.to_base64(pair.sign(signed.encode()))}"


_FENCED: Final = r"-{3,}[^\n]*-{3,}\r?\n([\w\-.=]+)\r?\n-{3,}[^\n]*-{3,}"


def undecorated(text: str) -> str:
    """The token in a text that may have lines of dashes around it."""
    found = re.search(_FENCED, text)
    return found[1] if found else text.strip()
