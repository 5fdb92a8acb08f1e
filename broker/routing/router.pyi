"""Who wants a subject: a trie of tokens with `*` and `>`, and a bounded cache of answers."""

from typing import Any, Self, final

from broker.runtime.interfaces import Sink

@final
class Router:
    changes: int
    size: int
    inserts: int
    removes: int
    matches: int
    cache_hits: int
    def __new__(cls, cache_subjects: int = 8192, cached_refs_max: int = ...) -> Self: ...
    def snapshot(self) -> dict[str, int]: ...
    def listing(self) -> list[tuple[bytes, bytes, bytes, Sink, int, int, int]]: ...
    def watch(self, watcher: Any) -> None: ...
    def unwatch(self, watcher: Any) -> None: ...
