"""Filters between a transport and a session: TLS and compression."""

from ssl import SSLContext, SSLObject

from typing_extensions import disjoint_base

SNAPPY_IDENTIFIER: bytes

class FilterError(Exception): ...

@disjoint_base
class Filter:
    ended: bool

@disjoint_base
class Deflate(Filter):
    def __init__(self, level: int) -> None: ...

@disjoint_base
class Chunks(Filter):
    packs: bool
    def __init__(self, *args: object, **kwargs: object) -> None: ...

class Snappy(Chunks):
    def __init__(self, *args: object, **kwargs: object) -> None: ...

@disjoint_base
class Tls(Filter):
    link: SSLObject
    def __init__(
        self, context: SSLContext, *, server_side: bool = True, server_hostname: str | None = None
    ) -> None: ...

def reason_of(problem: Exception) -> str: ...
