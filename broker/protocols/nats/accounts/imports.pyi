"""The imports of one account, and the responses between it and other accounts."""

from collections.abc import Iterable
from typing import Any, final

from broker.protocols.nats.accounts.account import Account, Importer
from broker.protocols.nats.accounts.crossing import Crossing
from broker.protocols.nats.accounts.transform import Transform
from broker.protocols.nats.client.line_session import LineSession
from broker.protocols.nats.settings import Export
from broker.runtime.interfaces import Sink, Task

@final
class ServiceExport(Task):
    config: Export
    owner: Imports
    size: int
    def __init__(self, owner: Imports, config: Export) -> None: ...

@final
class ServiceImport(Sink):
    importer: Imports
    exporter: Imports
    export: ServiceExport
    local_subject: bytes
    exported_subject: bytes
    share: bool
    system: bool
    def __init__(
        self,
        importer: Imports,
        export: ServiceExport,
        local_subject: bytes,
        exported_subject: bytes,
        transform: Transform | None,
        share: bool = False,
        system: bool = False,
    ) -> None: ...
    def open(self) -> None: ...
    def close(self) -> None: ...
    def sample(self, headers: bytes) -> Any: ...

@final
class StreamImport:
    exporter: Imports
    local_subject: bytes
    exported_subject: bytes
    def __init__(
        self,
        exporter: Imports,
        local_subject: bytes,
        exported_subject: bytes,
        to_local: Transform | None,
        to_exported: Transform | None,
    ) -> None: ...

@final
class Shadow(Sink):
    sink: LineSession

@final
class Imports(Importer):
    account: Account
    crossing: Crossing
    streams: list[StreamImport]
    services: list[ServiceImport]
    exports: dict[Export, ServiceExport]
    def __init__(self, account: Account, crossing: Crossing) -> None: ...
    def set_exports(self, configs: Iterable[Export]) -> None: ...
    def set_services(self, services: list[tuple[Any, ...]]) -> None: ...
    def set_streams(self, streams: list[tuple[Any, ...]]) -> None: ...
    def close(self) -> None: ...
    def drop_shadows(self, address: int) -> None: ...
    def finish_responses(self, to_others: bool) -> None: ...
    @property
    def waiting(self) -> tuple[int, int]: ...
