"""Peers whose reads end where the fence begins: no session looks at more than has arrived."""

from __future__ import annotations

from itertools import pairwise

from fuzz.watch import fence_behind
from support.fakes.loop import FakePeer
from support.fakes.nsq import NsqPeer


class FencedPeer(FakePeer):
    """As its base, and the receive buffer behind what was read is out of bounds."""

    def read(self, data: bytes, cuts: list[int] | None = None) -> None:
        for start, end in pairwise(sorted({0, len(data), *(cuts or [])})):
            at = start
            while at < end and not self.closed:
                with memoryview(self.conn.get_buffer(-1)) as view:
                    piece = data[at : min(end, at + len(view))]
                    view[: len(piece)] = piece
                    with fence_behind(view, len(piece)):
                        self.conn.buffer_updated(len(piece))
                at += len(piece)


class FencedNsqPeer(FencedPeer, NsqPeer):
    """The same for NSQ."""
