"""A set of the ids of recent messages."""

from typing_extensions import disjoint_base

@disjoint_base
class RecentIds:
    window_ns: int
    ids_max: int
    size: int
