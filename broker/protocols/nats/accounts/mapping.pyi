"""The destinations of messages published to mapped subjects."""

from typing import final

from broker.protocols.nats.accounts.transform import Transform
from broker.protocols.nats.settings import Mapping

def weighted_transforms(mapping: Mapping, cluster: str = "") -> list[tuple[Transform, int]]: ...

@final
class Mapper:
    sources: tuple[bytes, ...]
    def __init__(self, mappings: tuple[Mapping, ...], cluster: str = "") -> None: ...
    def __call__(self, subject: bytes) -> tuple[bytes | None, bool]: ...
