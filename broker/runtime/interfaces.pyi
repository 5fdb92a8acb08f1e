"""The virtual methods of the core: what a turn, a clock, a router and a connection may call."""

from typing_extensions import disjoint_base

@disjoint_base
class Task: ...

@disjoint_base
class Sink(Task): ...

@disjoint_base
class Session(Sink):
    owner: str
