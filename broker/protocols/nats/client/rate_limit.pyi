"""Token buckets: the publish rate limits of users and accounts."""

from typing import final

@final
class Bucket:
    msgs_per_s: float
    bytes_per_s: float
    def __init__(
        self, msgs_per_s: float = 0, bytes_per_s: float = 0, burst_s: float = 1
    ) -> None: ...
