"""Which imports are allowed, and how their subjects are transformed.

Source: nats-server accounts.go (checkAuth, addServiceImport, AddMappedStreamImport), events.go
(addSystemAccountExports).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from broker.protocols.nats import errors
from broker.protocols.nats.accounts.placeholders import MappingError
from broker.protocols.nats.accounts.subjects import (
    has_wildcard,
    is_subject,
    lies_within,
    numbered,
    reverse,
    unnumbered,
)
from broker.protocols.nats.accounts.transform import Transform
from broker.protocols.nats.settings import Export

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from broker.protocols.nats.settings import Import

# Exports of the system account to all accounts, in addition to the configured ones.
SYSTEM_EXPORTS: Final = (
    Export("$SYS.REQ.ACCOUNT.*.CONNZ", service=True, response_type="stream", token_position=4),
    Export("$SYS.REQ.ACCOUNT.*.STATZ", service=True, response_type="stream", token_position=4),
    Export("$SYS.DEBUG.SUBSCRIBERS", service=True),
    Export("$SYS.REQ.USER.*.INFO", service=True),
)


def system_exports(own: Sequence[Export]) -> tuple[Export, ...]:
    """The implicit exports of the system account, without those that it configures itself."""
    return tuple(
        export
        for export in SYSTEM_EXPORTS
        if not any(e.service and lies_within(export.subject, e.subject) for e in own)
    )


def local_subject(imported: Import) -> str:
    """The configured subject of an import in the importing account."""
    if not imported.service and imported.prefix:
        return imported.prefix.removesuffix(".") + "." + imported.subject
    return imported.to or imported.subject


def export_for(subject: str, exports: Iterable[Export], *, service: bool) -> Export | None:
    """The export for a subject: the equal one, or else the first pattern that matches."""
    found = None
    for export in exports:
        if export.service != service:
            continue
        if export.subject == subject:
            return export
        if found is None and lies_within(subject, export.subject):
            found = export
    return found


def may_import(name: str, imported: Import, exports: Iterable[Export]) -> bool:
    """Whether the account `name` may import this from an account with these exports."""
    if not is_subject(imported.subject):
        return False
    offered = [e for e in exports if e.service == imported.service]
    same = [e for e in offered if e.subject == imported.subject]
    if same:
        # Two exports of one subject allow the accounts of both.
        private = [e for e in same if e.accounts is not None or e.token_position]
        names = {account for e in private for account in e.accounts or ()}
        if not private:
            return True
        return not private[-1].token_position and (name in names or imported.granted)
    tokens = imported.subject.split(".")
    return any(
        tokens[e.token_position - 1] == name
        if e.token_position
        else e.accounts is None or name in e.accounts or imported.granted
        for e in offered
        if lies_within(imported.subject, e.subject)
    )


def _valid(subject: str) -> str:
    """The subject; MappingError if it is invalid."""
    if not is_subject(subject):
        raise MappingError(errors.NATS_BAD_SUBJECT)
    return subject


def stream_transform(imported: Import) -> tuple[str, Transform | None, Transform | None]:
    """(local subject, transform to it, transform to the exported subject). The transforms are None
    if both subjects are equal or the exported one has no wildcards. Raises MappingError."""
    local = _valid(local_subject(imported))
    if not has_wildcard(imported.subject) or local == imported.subject:
        return local, None, None
    destination = numbered(local)
    to_local = Transform(imported.subject, destination, strict=True)
    to_exported = Transform(*reverse(imported.subject, destination), strict=True)
    return unnumbered(local)[0], to_local, to_exported


def service_transform(imported: Import) -> tuple[str, Transform | None]:
    """(local subject, transform to the exporter's subject or None). Raises MappingError."""
    local = _valid(local_subject(imported))
    if not has_wildcard(imported.subject) or local == imported.subject:
        return local, None
    exported, destination = unnumbered(imported.subject)[0], numbered(local)
    Transform(exported, destination, strict=True)  # raises MappingError if it is not reversible
    return unnumbered(local)[0], Transform(*reverse(exported, destination), strict=True)
