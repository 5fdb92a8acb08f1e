"""Checks the exports and imports between accounts, after all accounts are read.

Imports are applied one after the other in the order of the file. An import is refused if it leads,
through those before it, back to its own account. Source: nats-server accounts.go.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.protocols.nats.accounts.placeholders import MappingError, compile_tokens
from broker.protocols.nats.accounts.subjects import (
    collide,
    has_wildcard,
    is_subject,
    lies_within,
    numbered,
    unnumbered,
)

if TYPE_CHECKING:
    from broker.protocols.nats.conf.accounts import PositionedAccount
    from broker.protocols.nats.conf.fields import Mistakes
    from broker.protocols.nats.settings import Export, Import

# Accepted imports by importing account: exporting account, its subject, local subject.
AcceptedImports = dict[str, list[tuple[str, str, str]]]


def check(accounts: list[PositionedAccount], mistakes: Mistakes, system: bool) -> None:
    """Add all mistakes; `system`: whether a system account exists."""
    _Check(accounts, mistakes).run(system)


class _Check:
    def __init__(self, accounts: list[PositionedAccount], mistakes: Mistakes) -> None:
        self.accounts = {positioned.account.name: positioned for positioned in accounts}
        self.mistakes = mistakes
        self.streams: AcceptedImports = {}
        self.services: AcceptedImports = {}

    def run(self, system: bool) -> None:
        for positioned in self.accounts.values():
            exports = positioned.account.exports
            pairs = zip(exports, positioned.exports, strict=True)
            for index, (export, position) in enumerate(pairs):
                reason = self.wrong_export(export, exports[: index + 1], system)
                if reason:
                    kind = "service" if export.service else "stream"
                    self.mistakes.add(position, f"{kind} {export.subject!r}: {reason}")
                elif not is_subject(export.subject):
                    reason = f"{export.subject!r} is not a subject: no account can import it"
                    self.mistakes.note(position, reason)
        for service in False, True:
            for positioned in self.accounts.values():
                imports = zip(positioned.account.imports, positioned.imports, strict=True)
                for one, position in imports:
                    reason = (
                        self.accept(positioned.account.name, one) if one.service == service else ""
                    )
                    if reason:
                        kind = "service" if service else "stream"
                        self.mistakes.add(position, f"{kind} {one.subject!r}: {reason}")

    # --- exports

    def wrong_export(self, export: Export, exports: tuple[Export, ...], system: bool) -> str:
        unknown = [name for name in export.accounts or () if name not in self.accounts]
        if unknown:
            return f'unknown account "{unknown[0]}"'
        position = export.token_position
        tokens = export.subject.split(".")
        if position and (len(tokens) < position or tokens[position - 1] != "*"):
            return f"account_token_position: token {position} is not *"
        reason = ""
        results = export.latency_subject
        if results and not system:
            reason = "no system account exists"
        elif results and (not is_subject(results) or has_wildcard(results)):
            reason = f"{results!r} is not a subject to publish to"
        elif results and any(e.service and lies_within(results, e.subject) for e in exports):
            reason = f"{results!r} is a service of this account"
        elif results and export.response_type != "singleton":
            reason = "of single responses only"
        return f"latency: {reason}" if reason else ""

    # --- imports

    def accept(self, name: str, one: Import) -> str:
        """Accept an import; returns the reason if it is refused."""
        if one.account not in self.accounts:
            return f'unknown account "{one.account}"'
        return self.accept_service(name, one) if one.service else self.accept_stream(name, one)

    def is_allowed(self, name: str, one: Import) -> bool:
        """Whether the exporting account allows this import."""
        exports = [
            e for e in self.accounts[one.account].account.exports if e.service == one.service
        ]
        same = [e for e in exports if e.subject == one.subject]
        if same:
            # Two exports of one subject allow the accounts of both.
            private = [e for e in same if e.accounts or e.token_position]
            names = {n for e in private for n in e.accounts or ()}
            return not private or (not private[-1].token_position and name in names)
        tokens = one.subject.split(".")
        return any(
            tokens[e.token_position - 1] == name
            if e.token_position
            else e.accounts is None or name in e.accounts
            for e in exports
            if lies_within(one.subject, e.subject)
        )

    def accept_stream(self, name: str, one: Import) -> str:
        if not is_subject(one.subject) or not self.is_allowed(name, one):
            return f'account "{one.account}" does not export it to "{name}"'
        if one.prefix and has_wildcard(one.prefix):
            return f"prefix: {one.prefix!r} has wildcards"
        local_subject = one.to or one.subject
        if one.prefix:
            local_subject = f"{one.prefix.removesuffix('.')}.{one.subject}"
        if not is_subject(local_subject):
            return f"to: {local_subject!r} is not a subject"
        if self.leads_back(name, one.account, local_subject, self.streams) or self.leads_back(
            name, one.account, one.subject, self.streams
        ):
            return "forms a cycle of imports"
        reason = ""
        if has_wildcard(one.subject) and local_subject != one.subject:
            reason = _transform_fault(one.subject, numbered(local_subject))
            local_subject = unnumbered(local_subject)[0]
        imports = self.streams.setdefault(name, [])
        if not reason and any(step[:2] == (one.account, one.subject) for step in imports):
            return "is imported already"
        if not reason:
            imports.append((one.account, one.subject, local_subject))
        return f"to: {reason}" if reason else ""

    def accept_service(self, name: str, one: Import) -> str:
        local_subject, exported_subject = one.to or one.subject, one.subject
        if not is_subject(local_subject) or not is_subject(exported_subject):
            return (
                f"to: {local_subject!r} is not a subject"
                if is_subject(exported_subject)
                else "is not a subject"
            )
        if not self.is_allowed(name, one):
            return f'account "{one.account}" does not export it to "{name}"'
        start = unnumbered(local_subject)[0] if has_wildcard(exported_subject) else local_subject
        if self.leads_back(name, one.account, start, self.services):
            return "forms a cycle of imports"
        if has_wildcard(exported_subject) and exported_subject != local_subject:
            reason = _transform_fault(unnumbered(exported_subject)[0], numbered(local_subject))
            if reason:
                return f"to: {reason}"
            local_subject = unnumbered(local_subject)[0]
        self.services.setdefault(name, []).append((one.account, exported_subject, local_subject))
        return ""

    # --- cycles

    def leads_back(
        self, importer: str, account: str, subject: str, accepted: AcceptedImports
    ) -> bool:
        """Whether `account` imports this subject, directly or through other accounts, from
        `importer`."""
        seen: set[tuple[str, str]] = set()
        waiting = [(account, subject)]
        while waiting:
            account, subject = waiting.pop()
            if (account, subject) in seen or (
                accepted is self.streams and not self.exports_stream(account, subject)
            ):
                continue
            seen.add((account, subject))
            for exporter, exported_subject, local_subject in accepted.get(account, ()):
                if collide(
                    subject, exported_subject if accepted is self.services else local_subject
                ):
                    if exporter == importer:
                        return True
                    narrower = lies_within(local_subject, subject)
                    waiting.append((exporter, local_subject if narrower else subject))
        return False

    def exports_stream(self, account: str, subject: str) -> bool:
        exports = self.accounts[account].account.exports
        return any(not e.service and lies_within(subject, e.subject) for e in exports)


def _transform_fault(source: str, destination: str) -> str:
    """Why a transform or its inverse is invalid; empty if both are valid."""
    try:
        compile_tokens(source, destination, strict=True)
    except MappingError as problem:
        return str(problem)
    return ""
