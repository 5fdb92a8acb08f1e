"""What accounts may take from each other, decided on the configuration alone.

Both those who check a configuration and those who carry it out ask here. Source: nats-server
accounts.go (checkAuth, checkServiceImportsForCycles, checkStreamImportsForCycles), events.go
(addSystemAccountExports, registerSystemImports).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from broker import errors, limits
from broker.errors import go_quote
from broker.protocols.nats.patterns import (
    collide,
    has_wildcard,
    is_subject,
    lies_within,
    numbered,
    raw,
    reverse,
    unnumbered,
)
from broker.protocols.nats.placeholders import MappingError
from broker.protocols.nats.settings import Account, Export, Import
from broker.protocols.nats.transform import Transform

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

# What the system account offers to all, and what every account takes of it: from a subject that
# names the account only there. The account's own imports come first.
SYSTEM_EXPORTS: Final = (
    Export("$SYS.REQ.ACCOUNT.*.CONNZ", True, response_type="stream", token_position=4),
    Export("$SYS.REQ.ACCOUNT.*.STATZ", True, response_type="stream", token_position=4),
    Export("$SYS.DEBUG.SUBSCRIBERS", True),
    Export("$SYS.REQ.USER.*.INFO", True),
)
_SYSTEM_IMPORTS: Final = (
    ("$SYS.REQ.ACCOUNT.PING.CONNZ", "$SYS.REQ.ACCOUNT.{}.CONNZ", False),
    ("$SYS.REQ.SERVER.PING.CONNZ", "$SYS.REQ.ACCOUNT.{}.CONNZ", False),
    ("$SYS.REQ.ACCOUNT.PING.STATZ", "$SYS.REQ.ACCOUNT.{}.STATZ", False),
    ("$SYS.REQ.USER.INFO", "$SYS.REQ.USER.{}.INFO", True),
)


class Problem(NamedTuple):
    """Why an export or import cannot be."""

    account: str
    kind: str  # export or import
    number: int  # of it in the account's exports or imports, from 0
    text: str


def quote(text: str) -> str:
    """As the original quotes it."""
    return go_quote(raw(text))


def system_exports(own: Sequence[Export]) -> tuple[Export, ...]:
    """What the system account exports beside its own."""
    return tuple(
        export
        for export in SYSTEM_EXPORTS
        if not any(e.service and lies_within(export.subject, e.subject) for e in own)
    )


def system_imports(name: str, system: str, own: Sequence[Import]) -> tuple[Import, ...]:
    """What an account takes from the system account beside what it asks for itself."""
    taken = {local_subject(i) for i in own if i.service}
    return tuple(
        Import(system, there.format(name), service=True, to=here, share=share)
        for here, there, share in _SYSTEM_IMPORTS
        if here not in taken and (name != system or share)
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
    export = export_for(taken.subject, exports, service=taken.service)
    if export is None:
        return False
    if export.token_position:
        tokens = [] if export.subject == taken.subject else taken.subject.split(".")
        return export.token_position <= len(tokens) and tokens[export.token_position - 1] == name
    return export.accounts is None or name in export.accounts or taken.granted


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
    try:
        Transform(there, numbered(here), strict=True)
        forth = Transform(*reverse(there, numbered(here)), strict=True)
    except MappingError as error:
        text = errors.NATS_IMPORT_TRANSFORM.format(
            kind="service", quoted=quote(here), to=quote(there), why=error
        )
        raise MappingError(text) from error
    return unnumbered(here)[0], forth


@dataclass(slots=True)
class _Taken:
    account: str
    here: str
    there: str


@dataclass(slots=True)
class _Web:
    """The imports that are accepted so far, by account."""

    accounts: dict[str, Account]
    streams: dict[str, list[_Taken]] = field(default_factory=dict)
    services: dict[str, list[_Taken]] = field(default_factory=dict)

    def follow_services(self, name: str, subject: str, visited: set[str]) -> None:
        _bound(visited)
        for taken in self.services.get(name, ()):
            if collide(subject, taken.there):
                if taken.account in visited:
                    raise MappingError(errors.NATS_IMPORT_CYCLE)
                visited.add(name)
                if lies_within(taken.here, subject):
                    subject = taken.here
                self.follow_services(taken.account, subject, visited)

    def follow_streams(self, name: str, subject: str, visited: set[str]) -> None:
        _bound(visited)
        exports = (e for e in self.accounts[name].exports if not e.service)
        if not any(lies_within(subject, e.subject) for e in exports):
            return
        for taken in self.streams.get(name, ()):
            if collide(subject, taken.here):
                if taken.account in visited:
                    raise MappingError(errors.NATS_IMPORT_CYCLE)
                visited.add(name)
                if lies_within(taken.here, subject):
                    subject = taken.here
                self.follow_streams(taken.account, subject, visited)

    def add_stream(self, account: Account, taken: Import) -> None:
        """Raises MappingError in the words of the original, without who and where."""
        if not may_import(account.name, taken, self.accounts[taken.account].exports):
            raise MappingError(errors.NATS_IMPORT_STREAM_REFUSED)
        if taken.prefix and not _is_literal(taken.prefix.removesuffix(".")):
            raise MappingError(errors.NATS_IMPORT_PREFIX)
        here = local_subject(taken)
        self.follow_streams(taken.account, here, {account.name})
        self.follow_streams(taken.account, taken.subject, {account.name})
        try:
            local, _, _ = stream_transform(taken)
        except MappingError as error:
            text = errors.NATS_IMPORT_TRANSFORM.format(
                kind="stream", quoted=quote(taken.subject), to=quote(here), why=error
            )
            raise MappingError(text) from error
        streams = self.streams.setdefault(account.name, [])
        if any(s.account == taken.account and s.there == taken.subject for s in streams):
            raise MappingError(errors.NATS_IMPORT_TWICE)
        streams.append(_Taken(taken.account, local, taken.subject))

    def add_service(self, account: Account, taken: Import) -> None:
        """Likewise."""
        here = local_subject(taken)
        if not is_subject(here) or not is_subject(taken.subject):
            raise MappingError(errors.NATS_IMPORT_SUBJECT)
        if not may_import(account.name, taken, self.accounts[taken.account].exports):
            raise MappingError(errors.NATS_IMPORT_SERVICE_REFUSED)
        start = unnumbered(here)[0] if has_wildcard(taken.subject) else here
        self.follow_services(taken.account, start, {account.name})
        services = self.services.setdefault(account.name, [])
        for other in services:
            if other.here == here:
                text = errors.NATS_IMPORT_SERVICE_TWICE.format(
                    quoted=quote(here), account=quote(other.account), subject=quote(other.there)
                )
                raise MappingError(text)
        local, _ = service_transform(taken)
        services.append(_Taken(taken.account, local, taken.subject))


def _bound(visited: set[str]) -> None:
    if len(visited) >= limits.NATS_IMPORT_SEARCH:
        raise MappingError(errors.NATS_IMPORT_DEPTH)


def _is_literal(subject: str) -> bool:
    return is_subject(subject) and not has_wildcard(subject)


def problems(accounts: Iterable[Account]) -> Iterator[Problem]:
    """Every export and import that cannot be, exports first; of imports the later one is at fault
    when two do not go together."""
    web = _Web({account.name: account for account in accounts})
    for account in web.accounts.values():
        for number, export in enumerate(account.exports):
            if text := _wrong_export(export, account.exports, web.accounts):
                yield Problem(account.name, "export", number, text)
    for service in (False, True):
        for account in web.accounts.values():
            for number, taken in enumerate(account.imports):
                if taken.service == service and (text := _wrong_import(web, account, taken)):
                    yield Problem(account.name, "import", number, text)


def _wrong_export(export: Export, own: Sequence[Export], accounts: dict[str, Account]) -> str:
    kind = "service" if export.service else "stream"
    for name in export.accounts or ():
        if name not in accounts:
            return errors.NATS_EXPORT_NO_ACCOUNT.format(quoted=quote(name), kind=kind)
    position, tokens = export.token_position, export.subject.split(".")
    if position and (position > len(tokens) or tokens[position - 1] != "*"):
        return errors.NATS_EXPORT_ERROR.format(
            kind=kind, quoted=quote(export.subject), why=errors.NATS_IMPORT_SUBJECT
        )
    why = ""
    if export.latency_subject:
        to = export.latency_subject
        if not _is_literal(to) or export_for(to, own, service=True) is not None:
            why = errors.NATS_LATENCY_SUBJECT
        elif export.response_type != "singleton":
            why = errors.NATS_LATENCY_TYPE
        if why:
            return errors.NATS_EXPORT_LATENCY.format(
                quoted=quote(export.subject), subject=quote(to), why=why
            )
    return ""


def _wrong_import(web: _Web, account: Account, taken: Import) -> str:
    kind = "service" if taken.service else "stream"
    if taken.account not in web.accounts:
        return errors.NATS_IMPORT_NO_ACCOUNT.format(quoted=quote(taken.account), kind=kind)
    try:
        (web.add_service if taken.service else web.add_stream)(account, taken)
    except MappingError as error:
        return errors.NATS_IMPORT_ERROR.format(kind=kind, quoted=quote(taken.subject), why=error)
    return ""


def check_cycles(accounts: Iterable[Account]) -> None:
    """Raise MappingError for the first import that closes a cycle."""
    for problem in problems(accounts):
        if problem.text.endswith((errors.NATS_IMPORT_CYCLE, errors.NATS_IMPORT_DEPTH)):
            raise MappingError(problem.text)
