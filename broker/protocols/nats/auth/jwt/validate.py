"""Validates tokens with a correct signature: times, subjects, limits, keys."""

from __future__ import annotations

import ipaddress
import re
import time
import zoneinfo
from collections.abc import Iterator
from datetime import datetime, timedelta
from datetime import time as Time  # noqa: N812 - beside the module
from typing import Final
from urllib.parse import urlsplit

from broker.protocols.nats.auth import nkeys
from broker.protocols.nats.auth.jwt import tokens
from broker.protocols.nats.auth.jwt.tokens import (
    AccountBody,
    ActivationBody,
    Claims,
    ExportClaim,
    ImportClaim,
    Invalid,
    MessageTrace,
    OperatorBody,
    Permission,
    Token,
    UserPermissions,
)

_CLOCK: Final = re.compile(r"(\d{1,2}):(\d\d):(\d\d)(?:[.,]\d+)?")
_NETWORK: Final = re.compile(r"[0-9a-fA-F.:]+/\d{1,3}")
_REFERENCE: Final = re.compile(r"\$(\d+)")
_RESPONSES: Final = {"", "Singleton", "Stream", "Chunked"}
_TRAFFIC: Final = {"", "system", "owner"}
_WEIGHT: Final = 100


def check(token: Token, now: float | None = None) -> None:
    """Raise Invalid for the first fault."""
    fault = next(faults(token, time.time() if now is None else now), None)
    if fault is not None:
        raise Invalid(fault)


def faults(token: Token, now: float) -> Iterator[str]:
    """All faults of a token."""
    yield from time_faults(token.claims, now)
    yield from content_faults(token)


def time_faults(claims: Claims, now: float) -> Iterator[str]:
    """Faults of a token's times. It is valid through the second of its expiry."""
    if 0 < claims.exp < int(now):
        yield "expired"
    if claims.nbf > int(now):
        yield "not valid yet"


def content_faults(token: Token) -> Iterator[str]:
    """Faults of a token that do not depend on the time."""
    body = token.body
    if isinstance(body, UserPermissions):
        yield from _user_permissions(body)
        issuer = getattr(body, "issuer_account", "")
        if issuer and not nkeys.is_public(nkeys.ACCOUNT, issuer):
            yield "invalid issuer_account: not an account key"
    elif isinstance(body, AccountBody):
        yield from _account(token.claims.sub, body)
    elif isinstance(body, ActivationBody):
        yield from _activation(body)
    elif isinstance(body, OperatorBody):
        yield from _operator(body)


# --- subjects


def subject_fault(subject: str) -> str | None:
    """Why a token must not name this subject; None if it may."""
    if not subject:
        return "a subject is empty"
    if " " in subject or "" in subject.split("."):
        return f"{subject!r} is not a subject"
    return None


def _subject(subject: str) -> Iterator[str]:
    fault = subject_fault(subject)
    if fault is not None:
        yield fault


def has_wildcards(subject: str) -> bool:
    parts = subject.split(".")
    return "*" in parts or parts[-1] == ">"


def contained(subject: str, other: str, *, strict: bool = False) -> bool:
    """Whether every match of `subject` also matches `other`.

    Tokens are compared as the original's library does: a `>` in `subject` matches a `*` in `other`.
    With `strict` it does not.
    """
    mine, theirs = subject.split("."), other.split(".")
    if len(mine) < len(theirs) or (len(mine) > len(theirs) and theirs[-1] != ">"):
        return False
    for at, part in enumerate(theirs):
        if part == ">" and at == len(theirs) - 1:
            return True
        if part not in {mine[at], "*"} or (strict and mine[at] == ">"):
            return False
    return True


def _permission(permission: Permission, queues: bool) -> Iterator[str]:
    for text in (*(permission.allow or ()), *(permission.deny or ())):
        parts = text.split(" ")
        if len(parts) > 2 or (len(parts) == 2 and not queues):
            yield f"{text!r} has too many blanks"
        for part in parts[:2]:
            yield from _subject(part)


# --- users


def network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    """Parse an address with a prefix length; None if it is invalid."""
    try:
        return ipaddress.ip_network(text, strict=False) if _NETWORK.fullmatch(text) else None
    except ValueError:
        return None


def clock(text: str) -> Time | None:
    """Parse HH:MM:SS; None if it is invalid."""
    match = _CLOCK.fullmatch(text)
    try:
        return Time(int(match[1]), int(match[2]), int(match[3])) if match else None
    except ValueError:
        return None


def _user_permissions(permissions: UserPermissions) -> Iterator[str]:
    yield from _permission(permissions.pub, queues=False)
    yield from _permission(permissions.sub, queues=True)
    if any(network(text) is None for text in permissions.sources()):
        yield "invalid network in src"
    for one in permissions.times or ():
        if clock(one.start) is None or clock(one.end) is None:
            yield "invalid time of day: expected HH:MM:SS"
    if permissions.times_location and _zone(permissions.times_location) is None:
        yield "unknown time zone of the times"


def _zone(name: str) -> zoneinfo.ZoneInfo | None:
    try:
        return zoneinfo.ZoneInfo(name)
    except (ValueError, OSError, zoneinfo.ZoneInfoNotFoundError):
        return None


def host_allowed(permissions: UserPermissions, host: str) -> bool:
    """Whether a user may connect from that address."""
    sources = permissions.sources()
    if not sources:
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    address = getattr(address, "ipv4_mapped", None) or address
    nets = [network(text) for text in sources]
    return any(net is not None and address in net for net in nets)


def seconds_left(permissions: UserPermissions, now: float) -> float | None:
    """Seconds to the end of the user's allowed time of day: 0 = no end, None = not allowed now."""
    if not permissions.times:
        return 0.0
    zone = _zone(permissions.times_location) if permissions.times_location else None
    if permissions.times_location and zone is None:
        return None
    here = datetime.fromtimestamp(now, zone).astimezone(zone)
    for one in permissions.times:
        start, end = clock(one.start), clock(one.end)
        if start is None or end is None:
            return None
        # A span that ends on the next day applies before midnight only, as in the original.
        last = here.date() + timedelta(days=start > end)
        opens = datetime.combine(here.date(), start, here.tzinfo)
        closes = datetime.combine(last, end, here.tzinfo)
        if opens.timestamp() < now < closes.timestamp():
            return closes.timestamp() - now
    return None


# --- accounts


def _account(name: str, body: AccountBody) -> Iterator[str]:
    yield from _imports(name, body.imports)
    yield from _exports(body.exports)
    default = body.default_permissions
    yield from _permission(default.pub, queues=False)
    yield from _permission(default.sub, queues=True)
    yield from _mappings(body)
    yield from _external(body)
    yield from _trace(body.trace)
    yield from _info_url(body.info_url)
    if body.cluster_traffic not in _TRAFFIC:
        yield "unknown cluster traffic option"
    limits = body.limits
    if "" in limits.tiered_limits:
        yield "a tier of JetStream without a name"
    if limits.imports != -1 and len(body.imports) > limits.imports:
        yield "more imports than allowed"
    if limits.exports != -1:
        if len(body.exports) > limits.exports:
            yield "more exports than allowed"
        if not limits.wildcards and any(has_wildcards(e.subject) for e in body.exports):
            yield "wildcards in exports are not allowed"
    for key in body.signing_keys:
        if not nkeys.is_public(nkeys.ACCOUNT, key if isinstance(key, str) else key.key):
            yield "invalid signing key: not an account key"
        if not isinstance(key, str):
            if key.kind != "user_scope":
                yield "a signing key of an unknown kind"
            key.permissions()  # raises Invalid for wrong types


def _trace(trace: MessageTrace | None) -> Iterator[str]:
    if trace is not None:
        yield from _subject(trace.dest)
        if has_wildcards(trace.dest):
            yield "wildcards in the subject for traces"
        if not 0 <= trace.sampling <= 100:
            yield "invalid sampling of traces"


def _info_url(text: str) -> Iterator[str]:
    try:
        parts = urlsplit(text)
        known = bool(parts.scheme and parts.hostname)
    except ValueError:
        known = False
    if text and not known:
        yield "invalid info_url"


def _mappings(body: AccountBody) -> Iterator[str]:
    for source, destinations in body.mappings.items():
        yield from _subject(source)
        sums: dict[str, int] = {}
        for one in destinations:
            yield from _subject(one.subject)
            weight = one.weight if one.cluster else one.weight or _WEIGHT
            sums[one.cluster] = sums.get(one.cluster, 0) + weight
        if any(total > _WEIGHT for total in sums.values()):
            yield f"the weights of {source!r} exceed 100"


def _external(body: AccountBody) -> Iterator[str]:
    external = body.authorization
    if external.allowed_accounts and not external.auth_users:
        yield "accounts of an authorization service without its users"
    if not all(nkeys.is_public(nkeys.USER, user) for user in external.auth_users):
        yield "invalid user of the authorization service"
    for account in external.allowed_accounts:
        if account == tokens.ANY:
            if len(external.allowed_accounts) > 1:
                yield "* together with other accounts of the authorization service"
        elif not nkeys.is_public(nkeys.ACCOUNT, account):
            yield "invalid account of the authorization service"
    if external.xkey and not nkeys.is_public(nkeys.CURVE, external.xkey):
        yield "invalid xkey: not a curve key"


def _exports(exports: list[ExportClaim]) -> Iterator[str]:
    for one in exports:
        yield from _export(one)
    for kind in ("stream", "service"):
        subjects = [one.subject for one in exports if one.type == kind]
        for at, subject in enumerate(subjects):
            others = subjects[:at] + subjects[at + 1 :]
            if any(contained(subject, other) for other in others):
                yield f"{subject!r} is exported twice"


def _export(one: ExportClaim) -> Iterator[str]:
    service = one.type == "service"
    if one.type not in {"service", "stream"}:
        yield "an export of an unknown kind"
    if one.response_type not in (_RESPONSES if service else {""}):
        yield "an unknown kind of response"
    if one.response_threshold < 0 or (one.response_threshold and not service):
        yield "invalid response threshold"
    latency = one.service_latency
    if latency is not None:
        if not service:
            yield "latency is only for services"
        sampling = latency.sampling
        if not (0 <= sampling <= 100 if isinstance(sampling, int) else sampling == "headers"):
            yield "invalid sampling"
        yield from _subject(latency.results)
        if has_wildcards(latency.results):
            yield "wildcards in the subject for latency"
    if one.allow_trace and not service:
        yield "allow_trace is only for exports of services"
    yield from _info_url(one.info_url)
    yield from _subject(one.subject)
    if one.account_token_position:
        parts = one.subject.split(".")
        at = one.account_token_position - 1
        if at >= len(parts) or parts[at] != "*":
            yield "the account token position of the subject is not a wildcard"


def _imports(name: str, imports: list[ImportClaim]) -> Iterator[str]:
    seen: dict[str, list[str]] = {}
    for one in imports:
        if one.type == "service":
            here = one.to or without_references(one.local_subject) or one.subject
            others = seen.setdefault(one.account, [])
            if any(contained(here, other) or contained(other, here) for other in others):
                yield f"{here!r} is imported twice"
            others.append(here)
        yield from import_faults(name, one)


def without_references(subject: str) -> str:
    """Replace each `$1` by a wildcard."""
    parts = subject.split(".")
    return ".".join("*" if _REFERENCE.fullmatch(part) else part for part in parts)


def import_faults(name: str, one: ImportClaim) -> Iterator[str]:
    """Faults of one import of the account `name`."""
    if one.type not in {"service", "stream"}:
        yield "an import of an unknown kind"
    if not one.account:
        yield "an import without an account"
    yield from _subject(one.subject)
    if one.local_subject:
        yield from _local_subject(one.local_subject, one.subject)
        if one.to:
            yield "an import with two local subjects"
    if one.allow_trace and one.type == "service":
        yield "allow_trace is only for imports of streams"
    if one.share and one.type != "service":
        yield "share is only for imports of services"
    if one.token:
        yield from _token_of(name, one)


def _is_open(subject: str) -> bool:
    return subject == ">" or subject.endswith(".>")


def _local_subject(local: str, subject: str) -> Iterator[str]:
    yield from _subject(local)
    if _is_open(local) != _is_open(subject):
        yield "only one of a subject and its local form ends in >"
    wildcards, used = subject.split(".").count("*"), local.split(".").count("*")
    for part in local.split("."):
        reference = _REFERENCE.fullmatch(part)
        if reference:
            used += 1
            if int(reference[1]) > wildcards:
                yield "a reference to a missing wildcard"
    if used != wildcards:
        yield "not all wildcards are used"


def _token_of(name: str, one: ImportClaim) -> Iterator[str]:
    try:
        token = tokens.decode(one.token, "activation")
    except Invalid as error:
        yield f"activation: {error}"
        return
    body = token.body
    if one.account not in {token.claims.iss, body.issuer_account}:
        yield "the activation was issued by another account"
    if token.claims.sub != name:
        yield "the activation is for another account"
    if body.kind != one.type:
        yield "the activation is of another kind"
    yield from _activation(body)
    wanted = one.to if one.type == "service" and one.to else one.subject
    if not contained(wanted, body.subject):
        yield "the activation is for another subject"


def _activation(body: ActivationBody) -> Iterator[str]:
    if body.kind not in {"service", "stream"}:
        yield "an activation of an unknown kind"
    yield from _subject(body.subject)
    if body.issuer_account and not nkeys.is_public(nkeys.ACCOUNT, body.issuer_account):
        yield "invalid issuer_account: not an account key"


# --- operators


def _operator(body: OperatorBody) -> Iterator[str]:
    for key in body.signing_keys:
        if not nkeys.is_public(nkeys.OPERATOR, key):
            yield "invalid signing key: not an operator key"
    if body.system_account and not nkeys.is_public(nkeys.ACCOUNT, body.system_account):
        yield "invalid system account"
    if body.account_server_url and not urlsplit(body.account_server_url).scheme:
        yield "invalid address of the account server"
    if server_version(body.assert_server_version) is None:
        yield "invalid asserted server version"


def server_version(text: str) -> tuple[int, ...] | None:
    """Parse three numbers of a version; an empty text is the oldest version."""
    if not text:
        return (0, 0, 0)
    match = re.fullmatch(r"(\d+)\.(\d+)\.(\d+)", text)
    return tuple(map(int, match.groups())) if match else None
