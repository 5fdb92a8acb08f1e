"""Settings of a log, syncing and keeping, and how a change of them takes effect at once."""

from collections.abc import Callable
from typing import Any

from broker.engine.log.log import Log

KEYS: tuple[str, ...]
SYNC_NAMES: tuple[str, ...]

_PolicyFor = Callable[[str], str | float]
_RetentionFor = Callable[[str], tuple[int, int, int, int, int] | None]

def effective(log: Log, policy_for: _PolicyFor, retention_for: _RetentionFor) -> dict[str, Any]: ...
def configure(log: Log, policy_for: _PolicyFor, retention_for: _RetentionFor) -> None: ...
def change(
    log: Log, settings: dict[str, Any], policy_for: _PolicyFor, retention_for: _RetentionFor
) -> None: ...
def valid(settings: object) -> bool: ...
def sync_is_valid(value: object) -> bool: ...
