"""Converts claims of tokens to settings: permissions of users, accounts, imports and exports."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from typing import TYPE_CHECKING, Final

import msgspec

from broker.base.gotext import go_quote
from broker.base.units import DURATION_MAX, INT32_MAX
from broker.protocols.nats import errors, limits, settings
from broker.protocols.nats.accounts.mapping import Mapper
from broker.protocols.nats.accounts.placeholders import MappingError
from broker.protocols.nats.accounts.subjects import is_subject
from broker.protocols.nats.auth.jwt import tokens
from broker.protocols.nats.auth.jwt.tokens import (
    Invalid,
    Permission,
    Responses,
    Token,
    UserPermissions,
)
from broker.protocols.nats.auth.jwt.validate import contained

if TYPE_CHECKING:
    from collections.abc import Callable

_RESPONSES: Final = {"Stream": "stream", "Chunked": "chunked"}
_BLANKS: Final = frozenset("\t\n\f\r ")
_ASK_HEADERS: Final = -1  # settings.Export.latency_sampling


# --- permissions


def permissions(
    publish: Permission, subscribe: Permission, responses: Responses | None
) -> settings.Permissions | None:
    """The permissions in a token; None if it has none."""
    if responses is None and not any(
        (publish.allow, publish.deny, subscribe.allow, subscribe.deny)
    ):
        return None
    # An empty `allow` next to a `deny` allows no publishing. For subscriptions, an empty `allow`
    # always means no restriction.
    has_rules = bool(publish.allow or publish.deny)
    allowed = publish.allow if has_rules else None
    if responses is not None and allowed is None:
        allowed = []
    return settings.Permissions(
        settings.Rules(None if allowed is None else _rules(allowed), _rules(publish.deny or [])),
        settings.Rules(_rules(subscribe.allow or []) or None, _rules(subscribe.deny or [])),
        None if responses is None else _responses(responses),
    )


def _rules(texts: list[str]) -> tuple[settings.SubjectRule, ...]:
    return tuple(settings.SubjectRule(*text.split()[:2]) for text in texts if text.split())


def _responses(responses: Responses) -> settings.ResponseRule:
    return settings.ResponseRule(
        _bounded(responses.max, INT32_MAX) or limits.NATS_RESPONSES_MAX,
        _bounded(responses.ttl, DURATION_MAX) or limits.NATS_RESPONSES_EXPIRE,
    )


def _bounded(number: int, most: int) -> int:
    """The number up to `most`; any negative number means no limit."""
    return max(-1, min(number, most))


# --- templates of scoped signing keys


def fill_in(template: UserPermissions, user: Token, account: Token) -> UserPermissions:
    """The permissions of a user whose token was signed by a scoped key; raises Invalid."""
    publish, subscribe = template.pub, template.sub

    def fill(texts: list[str] | None, *, strict: bool) -> list[str] | None:
        return None if texts is None else _fill(texts, user, account, strict=strict)

    return msgspec.structs.replace(
        template,
        pub=_closed(
            publish, Permission(fill(publish.allow, strict=False), fill(publish.deny, strict=True))
        ),
        sub=_closed(
            subscribe,
            Permission(fill(subscribe.allow, strict=False), fill(subscribe.deny, strict=True)),
        ),
    )


def _closed(before: Permission, after: Permission) -> Permission:
    """Allow nothing if no allowed subject is left, because an empty list would allow all."""
    if before.allow and not after.allow:
        return Permission(after.allow, [*(after.deny or []), ">"])
    return after


def _fill(texts: list[str], user: Token, account: Token, *, strict: bool) -> list[str]:
    if not any(_is_placeholder(part) for text in texts for part in text.split(".")):
        return texts
    found: list[str] = []
    for text in texts:
        for subject in _subjects(text, user, account):
            if _is_subject(subject):
                found.append(subject)
            elif strict:
                raise Invalid("the scope has an invalid subject")
            if len(found) > limits.NATS_TEMPLATE_SUBJECTS_MAX:
                raise Invalid("the scope makes too many subjects")
    return found


def _is_placeholder(part: str) -> bool:
    return part.startswith("{{") and part.endswith("}}")


def _subjects(text: str, user: Token, account: Token) -> list[str]:
    """The subjects of a template, one for each combination of the tags' values."""
    parts, values = [], []
    for part in text.split("."):
        if not _is_placeholder(part):
            parts.append(part)
            continue
        name = part[2:-2].lower()
        tagged = _tag_values(name, user, account)
        if tagged is None:
            parts.append(_claim_value(name, user, account))
            continue
        parts.append("")
        if tagged:
            values.append(tagged)
    count = 1
    for tagged in values:
        count *= len(tagged)
    if count > limits.NATS_TEMPLATE_SUBJECTS_MAX:
        raise Invalid("the scope makes too many subjects")
    if not values:
        return [".".join(parts)]
    return [_joined(parts, chosen) for chosen in itertools.product(*values)]


def _joined(parts: list[str], chosen: tuple[str, ...]) -> str:
    left = iter(chosen)
    return ".".join(part or next(left, "") for part in parts)


def _tag_values(name: str, user: Token, account: Token) -> list[str] | None:
    """The values of a tag; None if the name is not that of a tag."""
    for function, token in (("tag(", user), ("account-tag(", account)):
        if name.startswith(function) and name.endswith(")"):
            prefix = name[len(function) : -1] + ":"
            return [tag[len(prefix) :] for tag in token.body.tags if tag.startswith(prefix)]
    return None


def _claim_value(name: str, user: Token, account: Token) -> str:
    named: dict[str, str] = {
        "name()": user.claims.name,
        "subject()": user.claims.sub,
        "account-name()": account.claims.name,
        "account-subject()": user.body.issuer_account,
    }
    return named.get(name, " ")  # a blank, which no subject contains


def _is_subject(text: str) -> bool:
    parts = text.split(".")
    return all(part and not _BLANKS & set(part) for part in parts) and ">" not in parts[:-1]


# --- accounts


def account(token: Token, find: Callable[[str], Token | None], now: float) -> settings.Account:
    """The settings in an account's token; `find` returns other known accounts."""
    body: tokens.AccountBody = token.body
    default = body.default_permissions
    return settings.Account(
        name=token.claims.sub,
        exports=tuple(_export(one) for one in body.exports),
        imports=tuple(
            made for one in body.imports if (made := _import(token, one, find, now)) is not None
        ),
        mappings=_mappings(body),
        limits=settings.AccountLimits(
            max_connections=at_least(body.limits.conn),
            max_subscriptions=at_least(body.limits.subs),
            max_payload=at_least(body.limits.payload),
            max_leafnodes=at_least(body.limits.leaf),
        ),
        jetstream=_jetstream(body.limits),
        default_permissions=permissions(default.pub, default.sub, default.resp),
        trace_dest=body.trace.dest if body.trace is not None else "",
        trace_sampling=(body.trace.sampling or 100) if body.trace is not None else 100,
    )


def _mappings(body: tokens.AccountBody) -> tuple[settings.Mapping, ...]:
    return tuple(
        settings.Mapping(
            source,
            tuple(
                settings.Destination(one.subject, one.weight or 100, one.cluster)
                for one in destinations
            ),
        )
        for source, destinations in body.mappings.items()
    )


def mapping_fault(token: Token) -> str | None:
    """Why a mapping of an account is invalid; None if all are valid. Tokens with invalid mappings
    are not stored, but tokens that are stored already are used without these mappings."""
    mappings = _mappings(token.body)
    with contextlib.suppress(MappingError):
        Mapper(mappings)  # all together first, because an account may have thousands
        return None
    for one in mappings:
        shown = f"mapping {go_quote(one.source)}"
        if not is_subject(one.source):
            return f"{shown}: {errors.NATS_BAD_SUBJECT}"
        for destination in one.destinations:
            try:
                Mapper((settings.Mapping(one.source, (destination,)),))
            except MappingError as error:
                return f"{shown} -> {go_quote(destination.subject)}: {error}"
        try:
            Mapper((one,))
        except MappingError as error:
            return f"{shown}: {error}"
    return None


def at_least(limit: int) -> int:
    """A limit of connections, subscriptions or bytes: only -1 means none, as in the original."""
    return limit if limit >= -1 else 0


def _jetstream(most: tokens.Limits) -> settings.JetStreamLimits | None:
    """The limits of JetStream; None if it is not enabled."""
    found = list(most.tiered_limits.values()) or [most]
    if not any(own.mem_storage or own.disk_storage for own in found):
        return None
    if not most.tiered_limits:
        return _tier(most)
    tiers = {name: _tier(own) for name, own in sorted(most.tiered_limits.items())}
    one_replica = tiers.get("R1", _tier(tokens.StreamLimits()))
    return dataclasses.replace(one_replica, tiers=tuple(tiers.items()))


def _tier(own: tokens.StreamLimits) -> settings.JetStreamLimits:
    return settings.JetStreamLimits(
        max_memory=own.mem_storage,
        max_storage=own.disk_storage,
        max_streams=own.streams,
        max_consumers=own.consumer,
        # Of these 0 means no limit, too, and is shown as such.
        max_ack_pending=own.max_ack_pending or -1,
        memory_max_stream_bytes=own.mem_max_stream_bytes or -1,
        storage_max_stream_bytes=own.disk_max_stream_bytes or -1,
        max_bytes_required=own.max_bytes_required,
    )


def _export(one: tokens.ExportClaim) -> settings.Export:
    latency = one.service_latency
    sampling = latency.sampling if latency is not None else 0
    by_token = one.account_token_position > 0
    return settings.Export(
        subject=one.subject,
        service=one.type == "service",
        accounts=() if one.token_req and not by_token else None,
        response_type=_RESPONSES.get(one.response_type, "singleton"),
        threshold_ns=_bounded(one.response_threshold, DURATION_MAX)
        or limits.NATS_RESPONSE_THRESHOLD,
        token_position=one.account_token_position,
        allow_trace=one.allow_trace,
        latency_subject=latency.results if latency is not None else "",
        latency_sampling=0
        if latency is None
        else sampling
        if isinstance(sampling, int) and sampling
        else _ASK_HEADERS,
    )


def _import(
    importer: Token, one: tokens.ImportClaim, find: Callable[[str], Token | None], now: float
) -> settings.Import | None:
    """The settings of an import; None if the export does not exist or does not allow it."""
    service = one.type == "service"
    exported_subject = one.to if service and one.to and not one.local_subject else one.subject
    exporter = find(one.account)
    export = None if exporter is None else exported(exporter, exported_subject, one.type)
    if exporter is None or export is None:
        return None
    needs_activation = export.token_req and not export.account_token_position
    if needs_activation and not is_activated(importer, one, exporter, export, now):
        return None
    made = settings.Import(
        account=one.account,
        subject=exported_subject,
        service=service,
        share=one.share,
        granted=needs_activation,
        allow_trace=one.allow_trace,
    )
    if one.local_subject:
        return dataclasses.replace(made, to=one.local_subject)
    if service:
        return dataclasses.replace(made, to=one.subject if one.to else "")
    return dataclasses.replace(made, prefix=one.to)


def exported(exporter: Token, subject: str, kind: str) -> tokens.ExportClaim | None:
    """The export for an import of this subject; None if there is none."""
    body: tokens.AccountBody = exporter.body
    exports = [one for one in body.exports if one.type == kind]
    for one in exports:
        if one.subject == subject:
            return one
    for one in exports:
        if contained(subject, one.subject, strict=True):
            return one
    return None


def is_activated(
    importer: Token,
    one: tokens.ImportClaim,
    exporter: Token,
    export: tokens.ExportClaim,
    now: float,
) -> bool:
    """Whether the import contains a token that permits it."""
    if not one.token:
        return False
    activation = tokens.decode(one.token, "activation")  # it was checked together with the account
    claims = activation.claims
    issuer = activation.body.issuer_account
    owner = exporter.claims.sub
    if issuer and (issuer != owner or claims.iss not in {owner, *signing_keys(exporter)}):
        return False
    if not issuer and claims.iss != owner:
        return False
    if claims.sub != importer.claims.sub or claims.nbf > now or 0 < claims.exp <= now:
        return False
    return not is_revoked(export.revocations, claims.sub, claims.iat)


def activation_ends(importer: Token) -> list[int]:
    """The expiry times of an account's activations."""
    ends = []
    for one in importer.body.imports:
        if one.token:
            ends.append(tokens.decode(one.token, "activation").claims.exp)
    return [end for end in ends if end]


def signing_keys(token: Token) -> dict[str, tokens.Scope | None]:
    """The account's signing keys; scoped keys with their scope."""
    return {
        (key if isinstance(key, str) else key.key): (None if isinstance(key, str) else key)
        for key in token.body.signing_keys
    }


def is_revoked(revocations: dict[str, int], key: str, issued_at: int) -> bool:
    """Whether tokens issued at this time, for this key or for all, are revoked."""
    return any(revocations.get(name, -1) >= issued_at for name in (key, tokens.ANY))
