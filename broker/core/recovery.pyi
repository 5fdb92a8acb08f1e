"""Opening a log from its folder."""

from collections.abc import Callable
from typing import Any

from broker.core.log import Log
from broker.core.shared import Shared

def open_log(
    shared: Shared,
    folder: str,
    policy_for: Callable[[str], str | float],
    retention_for: Callable[[str], tuple[int, int, int, int, int] | None],
    problems: list[str],
) -> Log | None: ...
def open_known(
    shared: Shared,
    entry: list[Any],
    policy_for: Callable[[str], str | float],
    retention_for: Callable[[str], tuple[int, int, int, int, int] | None],
    problems: list[str],
) -> Log: ...
def read_meta(
    folder: str, paths: list[tuple[int, str]], problems: list[str]
) -> dict[str, Any] | None: ...
def segment_paths(folder: str) -> list[tuple[int, str]]: ...
def meta_from(paths: list[tuple[int, str]], folder: str) -> dict[str, Any]: ...
def keep_torn(path: str, offset: int, size: int) -> None: ...
