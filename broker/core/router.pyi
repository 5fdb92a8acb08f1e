class Router:
    changes: int
    size: int
    inserts: int
    removes: int
    matches: int
    cache_hits: int
    def __init__(self, cache_subjects: int = 8192, cached_refs_max: int = ...) -> None: ...
    def snapshot(self) -> dict[str, int]: ...
