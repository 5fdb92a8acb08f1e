"""The block `accounts` of a configuration, and mappings.

`exchange` checks imports and exports between accounts after all accounts are read.
"""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Any, Final

from broker.base.values import dataclass
from broker.protocols.nats import limits
from broker.protocols.nats.accounts.placeholders import (
    MappingError,
    check_destination,
    compile_tokens,
)
from broker.protocols.nats.accounts.subjects import has_wildcard, is_subject
from broker.protocols.nats.auth import nkeys
from broker.protocols.nats.conf import auth, jetstream
from broker.protocols.nats.conf.fields import INT32, Block, kind_of
from broker.protocols.nats.settings import (
    GLOBAL_ACCOUNT,
    Account,
    AccountLimits,
    Destination,
    Export,
    Import,
    Mapping,
)

if TYPE_CHECKING:
    from broker.protocols.nats.conf.auth import Logins
    from broker.protocols.nats.conf.fields import Mistakes
    from broker.protocols.nats.conf.text import Value

_RESPONSES: Final = {
    "single": "singleton",
    "singleton": "singleton",
    "stream": "stream",
    "chunk": "chunked",
    "chunked": "chunked",
}


@dataclass(slots=True)
class PositionedAccount:
    """An account with the positions of its name, exports and imports."""

    account: Account
    position: Value
    exports: list[Value] = field(default_factory=list)
    imports: list[Value] = field(default_factory=list)


def accounts(value: Value, mistakes: Mistakes, logins: Logins) -> list[PositionedAccount]:
    """An array of names, or a map of accounts."""
    if isinstance(value.it, list):
        return _from_names(value, mistakes)
    if not isinstance(value.it, dict):
        mistakes.add(value, f"accounts: expected a map or an array, got {kind_of(value.it)}")
        return []
    found = []
    for name, entry in value.it.items():
        if entry.used:
            continue  # a variable, not an account
        if name == GLOBAL_ACCOUNT:
            mistakes.add(entry, f'"{name}" is a reserved name')
        block = Block(entry, mistakes, f"account {name}")
        if isinstance(entry.it, dict):
            found.append(_account(name, block, logins))
    return found


def _from_names(value: Value, mistakes: Mistakes) -> list[PositionedAccount]:
    found: dict[str, PositionedAccount] = {}
    for one in value.it:
        if not isinstance(one.it, str):
            mistakes.add(one, f"accounts: expected a name, got {kind_of(one.it)}")
        elif one.it == GLOBAL_ACCOUNT:
            mistakes.add(one, f'"{one.it}" is a reserved name')
        elif one.it in found:
            mistakes.add(one, f'account "{one.it}" is already defined')
        else:
            found[one.it] = PositionedAccount(Account(one.it), one)
    return list(found.values())


def _account(name: str, block: Block, logins: Logins) -> PositionedAccount:
    nkey = block.key(nkeys.ACCOUNT, "nkey")
    positioned = PositionedAccount(Account(name), block.value)
    exports, imports = [], []
    for inner in block.blocks("exports", what="an export"):
        exported = _export(inner)
        if exported is not None:
            exports.append(exported)
            positioned.exports.append(inner.value)
    for inner in block.blocks("imports", what="an import"):
        imported = _import(inner)
        if imported is not None:
            imports.append(imported)
            positioned.imports.append(inner.value)
    _unique_services(imports, positioned.imports, block.mistakes)
    positioned.account = Account(
        name=name,
        nkey=nkey,
        users=auth.users(block, logins),
        exports=tuple(exports),
        imports=tuple(imports),
        mappings=mappings(block),
        limits=_limits(block),
        jetstream=jetstream.account(block),
        **_trace(block),
        default_permissions=auth.optional_permissions(block, "default_permissions"),
        rate=auth.rate_limits(block),
    )
    block.done()
    return positioned


def _trace(block: Block) -> dict[str, Any]:
    """The subject for traces of messages with a `traceparent`, and the percentage to sample."""
    entry = block.take("msg_trace", "trace_dest")
    if entry is None:
        return {}
    sampling = 100
    if isinstance(entry.it, dict):
        inner = Block(entry, block.mistakes, "msg_trace")
        dest = inner.text("dest")
        position = inner.take("sampling")
        if position is not None:
            found = _sampling(position.it)
            if found is None or found < 0:
                block.mistakes.add(position, "sampling: expected a percentage of 1 to 100")
            else:
                sampling = found
        inner.done()
    else:
        dest = entry.it if isinstance(entry.it, str) else ""
    if not dest or not is_subject(dest) or has_wildcard(dest):
        block.mistakes.add(entry, f"msg_trace: {dest!r} is not a subject for publishing")
    return {"trace_dest": dest, "trace_sampling": sampling}


def _limits(block: Block) -> AccountLimits:
    inner = block.block("limits")
    if inner is None:
        return AccountLimits()

    def limit(*names: str) -> int:
        return max(inner.number(*names, default=-1, high=INT32), -1)

    result = AccountLimits(
        max_connections=limit("max_connections", "max_conn"),
        max_subscriptions=limit("max_subscriptions", "max_subs"),
        max_payload=limit("max_payload", "max_pay"),
        max_leafnodes=limit("max_leafnodes", "max_leafs"),
    )
    inner.done()
    return result


# --- exports


_THRESHOLDS: Final = ("response_threshold", "response_max_time", "response_time")


def _export(block: Block) -> Export | None:
    kinds = [kind for kind in ("stream", "service") if block.has(kind)]
    before = len(block.mistakes.errors)
    subjects = {kind: block.text(kind) for kind in kinds}
    service = kinds == ["service"]
    if len(kinds) == 2:
        block.wrong("an export is a stream or a service, not both")
    elif kinds == ["stream"]:
        names = ("response_type", "response", "threshold", *_THRESHOLDS, "latency", "allow_trace")
        for key in names:
            if block.has(key):
                block.wrong(f"{key}: only services have it", key)
    response = block.text("response_type", "response", default="singleton")
    if response.lower() not in _RESPONSES:
        block.wrong(f"response_type: unknown type {response!r}")
    threshold = block.duration(
        "threshold", *_THRESHOLDS, default=limits.NATS_RESPONSE_THRESHOLD, seconds="no"
    )
    latency_position = block.take("latency")
    subject, sampling = _latency(block, latency_position)
    result = Export(
        subject="".join(subjects.values()),
        service=service,
        accounts=block.texts("accounts", only_array=True) or None,
        response_type=_RESPONSES.get(response.lower(), "singleton"),
        threshold_ns=threshold,
        token_position=block.number("account_token_position", low=0, high=INT32),
        latency_subject=subject,
        latency_sampling=sampling,
        allow_trace=block.flag("allow_trace"),
    )
    block.done()
    if len(block.mistakes.errors) > before:
        return None
    if not kinds:
        block.mistakes.note(block.value, "an export must be a stream or a service")
        return None
    return result


def _latency(block: Block, value: Value | None) -> tuple[str, int]:
    """The subject for measurements and the sampling in percent; -1 if headers decide."""
    if value is None:
        return "", 0
    if isinstance(value.it, str):
        return value.it, limits.NATS_LATENCY_SAMPLING
    inner = Block(value, block.mistakes, "latency")
    if not isinstance(value.it, dict):
        return "", 0
    sampling_position = inner.take("sampling")
    sampling = limits.NATS_LATENCY_SAMPLING
    if sampling_position is not None:
        found = _sampling(sampling_position.it)
        if found is None:
            reason = 'sampling: expected a percentage of 1 to 100, or "headers"'
            block.mistakes.add(sampling_position, reason)
        else:
            sampling = found
    if not inner.has("subject"):
        inner.wrong("latency: subject is missing")
    subject = inner.text("subject")
    for key, entry in inner.rest():
        block.mistakes.note(entry, f'"{key}" has no meaning in latency')
    return subject, sampling


def _sampling(it: Any) -> int | None:
    if isinstance(it, str):
        if it.strip().lower() == "headers":
            return -1
        digits = it.removesuffix("%")
        it = int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 4 else 0
    return it if isinstance(it, int) and not isinstance(it, bool) and 1 <= it <= 100 else None


# --- imports


def _import(block: Block) -> Import | None:
    kinds = [kind for kind in ("stream", "service") if block.has(kind)]
    before = len(block.mistakes.errors)
    source = ("", "")
    for kind in kinds:
        inner = block.block(kind)
        assert inner is not None
        if isinstance(inner.value.it, dict):
            source = inner.text("account"), inner.text("subject")
            inner.done()
            if not all(source) and len(block.mistakes.errors) == before:
                inner.wrong(f"{kind}: an account and a subject are needed")
    if len(kinds) == 2:
        block.wrong("an import is a stream or a service, not both")
    if kinds == ["service"] and block.has("allow_trace"):
        block.wrong("allow_trace: of imports, only streams have it", "allow_trace")
    if kinds == ["stream"] and block.has("to") and block.has("prefix"):
        block.wrong("prefix: cannot be combined with `to`", "prefix")
    result = Import(
        *source,
        service=kinds == ["service"],
        to=block.text("to"),
        prefix=block.text("prefix"),
        share=block.flag("share"),
        allow_trace=block.flag("allow_trace"),
    )
    block.done()
    if len(block.mistakes.errors) > before:
        return None
    if not kinds:
        block.mistakes.note(block.value, "an import must be a stream or a service")
        return None
    return result


def _unique_services(imports: list[Import], positions: list[Value], mistakes: Mistakes) -> None:
    seen: dict[tuple[str, str], Value] = {}
    for one, position in zip(imports, positions, strict=True):
        local_subject = one.to or one.subject
        if one.service and seen.setdefault((one.account, local_subject), position) is not position:
            first = seen[one.account, local_subject]
            mistakes.add(
                position,
                f"service {local_subject!r} is imported already, at {first.file}:{first.line}",
            )


# --- mappings


def mappings(block: Block) -> tuple[Mapping, ...]:
    """The mappings of an account: destinations for each subject."""
    inner = block.block("mappings", "maps")
    if inner is None or not isinstance(inner.value.it, dict):
        return ()
    found = []
    for source, entry in inner.value.it.items():
        if not is_subject(source):
            block.mistakes.add(entry, f"{source!r} is not a subject")
            continue
        destinations = _destinations(entry, block.mistakes)
        reason = _wrong_destinations(source, destinations)
        if reason:
            block.mistakes.add(entry, f"mapping of {source!r}: {reason}")
        found.append(Mapping(source, tuple(destinations)))
    return tuple(found)


def _destinations(entry: Value, mistakes: Mistakes) -> list[Destination]:
    if isinstance(entry.it, str):
        return [Destination(entry.it)]
    found = []
    for one in entry.it if isinstance(entry.it, list) else [entry]:
        block = Block(one, mistakes, "a destination")
        if not isinstance(one.it, dict):
            continue
        before = len(mistakes.errors)
        subject = block.text("destination", "dest")
        weight = _weight(block)
        cluster = block.text("cluster")
        block.done(variables=False)
        if len(mistakes.errors) == before:
            found.append(Destination(subject, weight, cluster))
    return found


def _weight(block: Block) -> int:
    if not block.has("weight"):
        block.wrong("a destination needs a weight")
        return 0
    position = block.take("weight")
    assert position is not None
    it = position.it
    if isinstance(it, str):
        digits = it.removesuffix("%")
        it = int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 4 else -1
    if isinstance(it, bool) or not isinstance(it, int) or not 0 <= it <= 100:
        block.mistakes.add(position, "weight: expected a percentage of 0 to 100")
        return 0
    return it


def _wrong_destinations(source: str, destinations: list[Destination]) -> str:
    weights: dict[str, int] = {}
    subjects = set()
    for one in destinations:
        if one.subject in subjects:
            return f"{one.subject!r} is given twice"
        subjects.add(one.subject)
        weights[one.cluster] = weights.get(one.cluster, 0) + one.weight
        if weights[one.cluster] > 100:
            return "weights exceed 100 in total"
        try:
            if not one.subject:
                return "a destination is missing"
            check_destination(one.subject)
            compile_tokens(source, one.subject, strict=False)
        except MappingError as problem:
            return str(problem)
    return ""
