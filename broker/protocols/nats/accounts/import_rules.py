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
    Export("$SYS.REQ.ACCOUNT.*.CONNZ", True, response_type="stream", token_position=4),
    Export("$SYS.REQ.ACCOUNT.*.STATZ", True, response_type="stream", token_position=4),
    Export("$SYS.DEBUG.SUBSCRIBERS", True),
    Export("$SYS.REQ.USER.*.INFO", True),
)


def system_exports(own: Sequence[Export]) -> tuple[Export, ...]:
    """The implicit exports of the system account, without those that it configures itself."""
    return tuple(
        export
        for export in SYSTEM_EXPORTS
        if not any(e.service and lies_within(export.subject, e.subject) for e in own)
    )


def local_subject(taken: Import) -> str:
    """The configured subject of an import in the importing account."""
    if not taken.service and taken.prefix:
        return taken.prefix.removesuffix(".") + "." + taken.subject
    return taken.to or taken.subject


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


def may_import(name: str, taken: Import, exports: Iterable[Export]) -> bool:
    """Whether the account `name` may have this import from an account with these exports."""
    if not is_subject(taken.subject):
        return False
    offered = [e for e in exports if e.service == taken.service]
    same = [e for e in offered if e.subject == taken.subject]
    if same:
        # Two exports of one subject allow the accounts of both.
        private = [e for e in same if e.accounts is not None or e.token_position]
        names = {account for e in private for account in e.accounts or ()}
        if not private:
            return True
        return not private[-1].token_position and (name in names or taken.granted)
    tokens = taken.subject.split(".")
    return any(
        tokens[e.token_position - 1] == name
        if e.token_position
        else e.accounts is None or name in e.accounts or taken.granted
        for e in offered
        if lies_within(taken.subject, e.subject)
    )


def _valid(here: str) -> str:
    """The local subject; MappingError if nothing can be published to it."""
    if not is_subject(here):
        raise MappingError(errors.NATS_BAD_SUBJECT)
    return here


def stream_transform(taken: Import) -> tuple[str, Transform | None, Transform | None]:
    """(local subject, transform to it, transform back). The transforms are None if the subject
    stays the same or the import has one literal subject. Raises MappingError."""
    here = _valid(local_subject(taken))
    if not has_wildcard(taken.subject) or here == taken.subject:
        return here, None, None
    there = numbered(here)
    forth = Transform(taken.subject, there, strict=True)
    back = Transform(*reverse(taken.subject, there), strict=True)
    return unnumbered(here)[0], forth, back


def service_transform(taken: Import) -> tuple[str, Transform | None]:
    """(local subject, transform to the exporter's subject or None). Raises MappingError."""
    here = _valid(local_subject(taken))
    if not has_wildcard(taken.subject) or here == taken.subject:
        return here, None
    there = unnumbered(taken.subject)[0]
    Transform(there, numbered(here), strict=True)
    return unnumbered(here)[0], Transform(*reverse(there, numbered(here)), strict=True)
