"""The configured exports, imports and mappings of all accounts, applied to the Imports of each.

An invalid import or mapping is logged and not applied. The imports of a configuration file are
checked earlier (conf/exchange), but those of tokens are not.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from broker.base.gotext import go_quote
from broker.protocols.nats import errors
from broker.protocols.nats.accounts import import_rules as rules
from broker.protocols.nats.accounts.crossing import Crossing
from broker.protocols.nats.accounts.imports import Imports
from broker.protocols.nats.accounts.mapping import Mapper
from broker.protocols.nats.accounts.placeholders import MappingError
from broker.protocols.nats.accounts.subjects import raw
from broker.protocols.nats.settings import Account as Config

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from broker.protocols.nats.accounts.account import Account, CurrentPublisher
    from broker.protocols.nats.settings import Export, Import, Mapping
    from broker.runtime.turn import Turn

log = logging.getLogger("broker.nats")


class Exchange:
    """The exports and imports between all accounts of a server."""

    def __init__(
        self,
        turn: Turn,
        current_publisher: CurrentPublisher,
        *,
        server_name: str = "",
        cluster: str = "",
        system_account: str = "",
    ) -> None:
        """`system_account`: its name; empty if none exists."""
        self.crossing = Crossing(turn, current_publisher, server_name, cluster)
        self.cluster = cluster
        self.system_account = system_account
        self.members: dict[str, Imports] = {}
        self.configs: dict[str, Config] = {}
        self._mappings: dict[str, dict[str, Mapping]] = {}  # in force, by account and source

    def rename(self, cluster: str) -> None:
        """Change the cluster's name; mappings use it after the next `configure`."""
        self.cluster = self.crossing.server["cluster"] = cluster

    def join(self, account: Account) -> Imports:
        """Add an account; `configure` or `update` sets its imports and exports."""
        member = self.members.get(account.name)
        if member is None:
            member = self.members[account.name] = Imports(account, self.crossing)
            account.imports = member
            self._apply_exports(account.name)
        return member

    def leave(self, name: str) -> None:
        """Remove an account and all imports of others from it."""
        member = self.members.pop(name, None)
        self.configs.pop(name, None)
        self._mappings.pop(name, None)
        if member is None:
            return
        for other in self._importers(name):
            self._apply_imports(other)
        member.account.imports = None
        member.close()

    def close(self) -> None:
        """Remove all accounts at the end of the server."""
        members, self.members = self.members, {}
        for member in members.values():
            member.account.imports = None
            member.close()

    def configure(self, configs: Iterable[Config]) -> None:
        """Apply these settings to all accounts; accounts that are not named have no settings.

        Unchanged imports and exports are kept, so that pending requests are answered.
        """
        self.configs = {config.name: config for config in configs}
        for name in self.members:
            self._apply_exports(name)
        for name in self.members:
            self._apply_imports(name)

    def update(self, config: Config) -> None:
        """Apply the settings of one account."""
        self.configs[config.name] = config
        self._apply_exports(config.name)
        self._apply_imports(config.name)
        for name in self._importers(config.name):
            self._apply_imports(name)

    def _config(self, name: str) -> Config:
        return self.configs.get(name) or Config(name)

    def _importers(self, name: str) -> list[str]:
        """The accounts that import from this one."""
        return [
            other
            for other in self.members
            if other != name and any(i.account == name for i in self._config(other).imports)
        ]

    def _exports(self, name: str) -> tuple[Export, ...]:
        exports = self._config(name).exports
        if name == self.system_account:
            return exports + rules.system_exports(exports)
        return exports

    def _apply_exports(self, name: str) -> None:
        member = self.members[name]
        mappings = self._config(name).mappings
        try:
            member.account.mapper = Mapper(mappings, self.cluster) if mappings else None
            self._mappings[name] = {one.source: one for one in mappings}
        except MappingError:
            mappings = self._usable(name, mappings)
            member.account.mapper = Mapper(mappings, self.cluster) if mappings else None
        member.set_exports([export for export in self._exports(name) if export.service])

    def _usable(self, name: str, mappings: Iterable[Mapping]) -> tuple[Mapping, ...]:
        """The valid mappings. Because one is invalid, mappings that were in force stay in force
        unless a valid one replaces them, as in the original (accounts.go UpdateAccountClaims)."""
        found: dict[str, Mapping] = {}
        for one in mappings:
            try:
                Mapper((one,), self.cluster)
            except MappingError as error:
                source = go_quote(raw(one.source))
                log.error(errors.NATS_MAPPING_LEFT_OUT, source, name, error)
            else:
                found[one.source] = one
        found = self._mappings.get(name, {}) | found
        self._mappings[name] = found
        return tuple(found.values())

    def _apply_imports(self, name: str) -> None:
        imports = self._config(name).imports
        self.members[name].set_services(list(self._services(name, imports)))
        self.members[name].set_streams(list(self._streams(name, imports)))

    def _allowed(self, name: str, imported: Import) -> bool:
        """Whether the exporter exists and allows the import."""
        exists = imported.account in self.members
        if exists and rules.may_import(name, imported, self._exports(imported.account)):
            return True
        log.warning(
            "account %s: import of %r from %s is left out: %s",
            name,
            imported.subject,
            imported.account,
            "it is not exported to it" if exists else "no such account",
        )
        return False

    def _streams(self, name: str, imports: tuple[Import, ...]) -> Iterator[tuple[Any, ...]]:
        seen = set()
        for imported in imports:
            key = (imported.account, imported.subject)
            if imported.service or key in seen or not self._allowed(name, imported):
                continue
            seen.add(key)
            try:
                local, to_local, to_exported = rules.stream_transform(imported)
            except MappingError as error:
                log.warning("account %s: import of %r: %s", name, imported.subject, error)
                continue
            exporter = self.members[imported.account]
            subjects = raw(local), raw(imported.subject)
            yield exporter, *subjects, to_local, to_exported, imported.allow_trace

    def _services(self, name: str, imports: tuple[Import, ...]) -> Iterator[tuple[Any, ...]]:
        seen = set()
        for imported in imports:
            if not imported.service or not self._allowed(name, imported):
                continue
            exports = self._exports(imported.account)
            found = rules.export_for(imported.subject, exports, service=True)
            try:
                local, transform = rules.service_transform(imported)
            except MappingError as error:
                log.warning("account %s: import of %r: %s", name, imported.subject, error)
                continue
            export = None
            if found is not None:
                export = self.members[imported.account].exports.get(found)
            key = (imported.account, local)  # several accounts may export one subject
            if export is None or key in seen:
                continue
            seen.add(key)
            system = imported.account == self.system_account
            subjects = raw(local), raw(imported.subject)
            yield export, *subjects, transform, imported.share, system
