"""Settings of a log, for syncs and retention; a change takes effect at once."""

from collections.abc import Callable
from typing import Any

from broker.engine.log.log import Log

KEYS: tuple[str, ...]
SYNC_NAMES: tuple[str, ...]

_SyncFor = Callable[[str], str | float]
_RetentionFor = Callable[[str], tuple[int, int, int, int, int] | None]

def effective(log: Log, sync_for: _SyncFor, retention_for: _RetentionFor) -> dict[str, Any]: ...
def configure(log: Log, sync_for: _SyncFor, retention_for: _RetentionFor) -> None: ...
def change(
    log: Log, settings: dict[str, Any], sync_for: _SyncFor, retention_for: _RetentionFor
) -> None: ...
def valid(settings: object) -> bool: ...
def sync_is_valid(value: object) -> bool: ...
