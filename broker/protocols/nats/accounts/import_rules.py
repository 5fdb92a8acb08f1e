"""What accounts may take from each other, and how its subjects are turned into theirs.

Source: nats-server accounts.go (checkAuth, addServiceImport, AddMappedStreamImport), events.go
(addSystemAccountExports).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

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

# What the system account offers to all beside what it exports itself.
SYSTEM_EXPORTS: Final = (
    Export("$SYS.REQ.ACCOUNT.*.CONNZ", True, response_type="stream", token_position=4),
    Export("$SYS.REQ.ACCOUNT.*.STATZ", True, response_type="stream", token_position=4),
    Export("$SYS.DEBUG.SUBSCRIBERS", True),
    Export("$SYS.REQ.USER.*.INFO", True),
)


def system_exports(own: Sequence[Export]) -> tuple[Export, ...]:
    """What the system account exports beside its own."""
    return tuple(
        export
        for export in SYSTEM_EXPORTS
        if not any(e.service and lies_within(export.subject, e.subject) for e in own)
    )


def local_subject(taken: Import) -> str:
    """The subject of an import in the account that imports, as configured."""
    if not taken.service and taken.prefix:
        return taken.prefix.removesuffix(".") + "." + taken.subject
    return taken.to or taken.subject


def export_for(subject: str, exports: Iterable[Export], *, service: bool) -> Export | None:
    """The export that a subject belongs to: the one of that name, or the first pattern over it."""
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
    """Whether the account `name` is allowed what it asks of an account with these exports."""
    if not is_subject(taken.subject):
        return False
    offered = [e for e in exports if e.service == taken.service]
    same = [e for e in offered if e.subject == taken.subject]
    if same:
        # Given twice, it is for the accounts of both.
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


def stream_transform(taken: Import) -> tuple[str, Transform | None, Transform | None]:
    """(subject here, how to get to it, how back); the transforms None: nothing has to be done, or
    all goes to the one subject. Raises MappingError."""
    here = local_subject(taken)
    if not has_wildcard(taken.subject) or here == taken.subject:
        return here, None, None
    there = numbered(here)
    forth = Transform(taken.subject, there, strict=True)
    back = Transform(*reverse(taken.subject, there), strict=True)
    return unnumbered(here)[0], forth, back


def service_transform(taken: Import) -> tuple[str, Transform | None]:
    """(subject here, how to get to the one there), likewise."""
    here = local_subject(taken)
    if not has_wildcard(taken.subject) or here == taken.subject:
        return here, None
    there = unnumbered(taken.subject)[0]
    Transform(there, numbered(here), strict=True)
    return unnumbered(here)[0], Transform(*reverse(there, numbered(here)), strict=True)
