"""Where a new consumer begins to read its stream."""

from collections.abc import Callable, Sequence

from broker.engine.stream.store import StreamStore
from broker.protocols.jetstream.structs import ConsumerConfig

def start_search(store: StreamStore, config: ConsumerConfig) -> Callable[[], int] | None: ...
def start_of(
    store: StreamStore, config: ConsumerConfig, found: int | None = None
) -> int | Sequence[int]: ...
def clamp_seq(store: StreamStore, seq: int) -> int: ...
