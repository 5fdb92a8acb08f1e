"""Jobs of a worker, without an owner."""

from broker.runtime.workers import Worker

def sync_and_uncache(worker: Worker, synced: int, fd: int, size: int) -> None: ...
