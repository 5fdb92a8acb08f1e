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
    here: bytes
    there: bytes
    share: bool
    system: bool
    def __init__(
        self,
        importer: Imports,
        export: ServiceExport,
        here: bytes,
        there: bytes,
        forth: Transform | None,
        share: bool = False,
        system: bool = False,
    ) -> None: ...
    def open(self) -> None: ...
    def close(self) -> None: ...
    def sample(self, headers: bytes) -> Any: ...

@final
class StreamImport:
    exporter: Imports
    here: bytes
    there: bytes
    def __init__(
        self,
        exporter: Imports,
        here: bytes,
        there: bytes,
        forth: Transform | None,
        back: Transform | None,
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
    def offer(self, configs: Iterable[Export]) -> None: ...
    def take_services(self, services: list[tuple[Any, ...]]) -> None: ...
    def take_streams(self, streams: list[tuple[Any, ...]]) -> None: ...
    def close(self) -> None: ...
    def drop_shadows(self, address: int) -> None: ...
    def finish_any(self, here: bool) -> None: ...
    @property
    def waiting(self) -> tuple[int, int]: ...
