"""The door for NSQ clients."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Protocol, cast

from broker.base.units import SECOND
from broker.net import limits as net_limits
from broker.net.listener import Door
from broker.net.tls import Certificates, TlsFiles
from broker.protocols.access import Access
from broker.protocols.nsq import limits
from broker.protocols.nsq.auth import Authority, AuthSettings
from broker.protocols.nsq.dead_letters import Policies
from broker.protocols.nsq.frontend import NsqFace
from broker.protocols.nsq.identify import IdentifySettings
from broker.protocols.nsq.session import NsqSession
from broker.protocols.nsq.statsd import StatsdSettings
from broker.protocols.nsq.topics import Topics

if TYPE_CHECKING:
    from collections.abc import Collection

    from broker.engine.engine import Engine
    from broker.net.listener import Runtime
    from broker.net.tls import ClientCertificate


class NsqSettings(IdentifySettings, AuthSettings, StatsdSettings, Protocol):
    """The part of config.NsqConfig that is used here."""

    @property
    def listen(self) -> tuple[str, int] | None: ...
    @property
    def broadcast_address(self) -> str: ...
    @property
    def max_req_timeout_ns(self) -> int: ...
    @property
    def max_defer_ns(self) -> int: ...
    @property
    def max_msg_size(self) -> int: ...
    @property
    def max_body_size(self) -> int: ...
    @property
    def max_channel_consumers(self) -> int: ...
    @property
    def e2e_processing_latency_percentiles(self) -> tuple[float, ...]: ...
    @property
    def debug_peers(self) -> str: ...
    @property
    def requeue_on_close(self) -> bool: ...
    @property
    def nsqlookupd_tcp_addresses(self) -> tuple[str, ...]: ...
    @property
    def broadcast_tcp_port(self) -> int: ...
    @property
    def broadcast_http_port(self) -> int: ...
    @property
    def tls_cert(self) -> str: ...
    @property
    def tls_key(self) -> str: ...
    @property
    def tls_root_ca_file(self) -> str: ...
    @property
    def tls_client_auth_policy(self) -> str: ...
    @property
    def tls_required(self) -> str: ...
    @property
    def tls_min_version(self) -> str: ...


def certificates_of(config: NsqSettings) -> Certificates | None:
    """What the door shows; TlsError when the files cannot be used."""
    if not config.tls_cert:
        return None
    return Certificates(
        TlsFiles(
            config.tls_cert,
            config.tls_key,
            config.tls_root_ca_file,
            cast("ClientCertificate", config.tls_client_auth_policy),
            config.tls_min_version,
        )
    )


class NsqDoor(Door):
    """Accepts NSQ clients for one engine."""

    def __init__(
        self, config: NsqSettings, runtime: Runtime, engine: Engine, access: Access | None = None
    ) -> None:
        """`access` None: all bridges are open."""
        if config.listen is None:
            raise ValueError("the NSQ door is switched off")
        # The largest message must fit twice: one on its way out, one being put.
        out_limit = 2 * config.max_msg_size + limits.NSQ_OUTPUT_SLACK
        super().__init__(runtime, config.listen, out_limit)
        self.config = config
        self.engine = engine
        self.certificates = certificates_of(config)
        self.authority = Authority(config) if config.auth_http_addresses else None
        access = access or Access()
        self.topics = Topics(engine, access)
        self.dead_letters = Policies(engine, self.topics)
        self.face = NsqFace(engine, runtime.turn, config, self.certificates, self.authority, access)

    def new_session(self) -> NsqSession:
        return NsqSession(self.face)

    async def drain(self, grace_ns: int = net_limits.CLOSE_GRACE) -> None:
        """Stop accepting and reading; end each connection once its publishes are answered."""
        await self.close()
        for session in list(self.face.sessions):
            session.drain()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._emptied.wait(), grace_ns / SECOND)
        await super().drain(grace_ns)
        if self.authority is not None:
            await self.authority.close()

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
