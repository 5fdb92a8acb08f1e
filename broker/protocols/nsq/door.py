"""The door for NSQ clients."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Protocol

from broker import limits
from broker.net.listener import Door
from broker.protocols.nsq.face import NsqFace
from broker.protocols.nsq.identify import IdentifySettings
from broker.protocols.nsq.session import NsqSession

if TYPE_CHECKING:
    from collections.abc import Collection

    from broker.core.engine import Engine
    from broker.net.listener import Runtime


class NsqSettings(IdentifySettings, Protocol):
    """The part of config.NsqConfig that is used here."""

    @property
    def listen(self) -> tuple[str, int] | None: ...
    @property
    def broadcast_address(self) -> str: ...
    @property
    def max_req_timeout_ns(self) -> int: ...
    @property
    def max_msg_size(self) -> int: ...
    @property
    def max_body_size(self) -> int: ...
    @property
    def max_channel_consumers(self) -> int: ...
    @property
    def e2e_processing_latency_percentiles(self) -> tuple[float, ...]: ...
    @property
    def requeue_on_close(self) -> bool: ...


class NsqDoor(Door):
    """Accepts NSQ clients for one engine."""

    def __init__(self, config: NsqSettings, runtime: Runtime, engine: Engine) -> None:
        if config.listen is None:
            raise ValueError("the NSQ door is switched off")
        # The largest message must fit twice: one on its way out, one being put.
        out_limit = 2 * config.max_msg_size + limits.NSQ_OUTPUT_SLACK
        super().__init__(runtime, config.listen, out_limit)
        self.config = config
        self.engine = engine
        self.face = NsqFace(engine, runtime.turn, config)

    def new_session(self) -> NsqSession:
        return NsqSession(self.face)

    async def drain(self, grace_ns: int = limits.CLOSE_GRACE) -> None:
        """Stop accepting and reading; end each connection once its publishes are answered."""
        await self.close()
        for session in list(self.face.sessions):
            session.drain()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._emptied.wait(), grace_ns / limits.SECOND)
        await super().drain(grace_ns)

    @property
    def sessions(self) -> Collection[NsqSession]:
        """Open ones, in no order."""
        return self.face.sessions

    def count_published(self, bodies: list[bytes]) -> None:
        """Messages that came in by HTTP."""
        self.face.count_in(len(bodies), sum(map(len, bodies)))

    @property
    def in_msgs(self) -> int:
        return self.face.in_msgs

    @property
    def in_bytes(self) -> int:
        return self.face.in_bytes

    @property
    def out_msgs(self) -> int:
        return self.face.out_msgs

    @property
    def out_bytes(self) -> int:
        return self.face.out_bytes

    @property
    def slow_consumers(self) -> int:
        return self.face.slow_consumers
