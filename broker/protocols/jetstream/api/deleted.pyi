"""The seqs of a stream that have no message."""

from broker.engine.stream.store import StreamStore

def deleted_seqs(store: StreamStore, limit: int) -> list[int]: ...
