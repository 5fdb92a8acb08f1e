"""The door for NATS clients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from broker.net.listener import Door
from broker.protocols.nats.face import NatsFace
from broker.protocols.nats.options import info_head, make_server_id
from broker.protocols.nats.session import NatsSession

if TYPE_CHECKING:
    from collections.abc import Collection

    from broker.core.router import Router
    from broker.net.listener import Runtime


ANY_HOST = "0.0.0.0"  # noqa: S104 - what INFO says, as the original does


class NatsSettings(Protocol):
    """The part of config.NatsConfig that is used here."""

    @property
    def listen(self) -> tuple[str, int] | None: ...
    @property
    def max_control_line(self) -> int: ...
    @property
    def max_payload(self) -> int: ...
    @property
    def max_pending(self) -> int: ...
    @property
    def max_connections(self) -> int: ...
    @property
    def max_subscriptions(self) -> int: ...
    @property
    def max_sub_tokens(self) -> int: ...
    @property
    def ping_interval_ns(self) -> int: ...
    @property
    def ping_max(self) -> int: ...
    @property
    def write_deadline_ns(self) -> int: ...


class NatsDoor(Door):
    """Accepts NATS clients for one router."""

    def __init__(
        self, config: NatsSettings, runtime: Runtime, router: Router, server_name: str = ""
    ) -> None:
        if config.listen is None:
            raise ValueError("the NATS door is switched off")
        super().__init__(runtime, config.listen, config.max_pending)
        self.config = config
        self.router = router
        self.server_id = make_server_id()
        self.server_name = server_name or self.server_id
        self.face = NatsFace(router, runtime.turn, config, b"")

    def new_session(self) -> NatsSession:
        return NatsSession(self.face)

    async def open(self) -> None:
        await super().open()
        host, port = self.address
        self.face.info_head = info_head(
            server_id=self.server_id,
            server_name=self.server_name,
            host=host or ANY_HOST,
            port=port,
            max_payload=self.config.max_payload,
        )

    @property
    def sessions(self) -> Collection[NatsSession]:
        """Open ones, in no order."""
        return self.face.sessions

    @property
    def in_msgs(self) -> int:
        return self.face.traffic()[0]

    @property
    def in_bytes(self) -> int:
        return self.face.traffic()[1]

    @property
    def out_msgs(self) -> int:
        return self.face.traffic()[2]

    @property
    def out_bytes(self) -> int:
        return self.face.traffic()[3]

    @property
    def slow_consumers(self) -> int:
        return self.face.slow_consumers

    @property
    def stale(self) -> int:
        return self.face.stale
