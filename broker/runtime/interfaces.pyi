"""The base classes of turns, timers, routers and connections, with virtual methods."""

from typing_extensions import disjoint_base

@disjoint_base
class Task: ...

@disjoint_base
class Sink(Task): ...

@disjoint_base
class Session(Sink):
    owner: str
