"""Looking a router over, for pages that show it."""

from broker.core.router import Router
from broker.core.seams import Sink

_Seen = tuple[bytes, bytes, bytes, Sink, int, int, int]

def window(router: Router, skip: int, most: int, local: bool = False) -> list[_Seen]: ...
def takers(router: Router, subject: bytes, local: bool = False) -> list[_Seen]: ...
def fanout(router: Router) -> tuple[int, int, int]: ...
