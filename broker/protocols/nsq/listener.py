"""The TCP listener for NSQ clients."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, cast

from broker.base.units import SECOND
from broker.net import limits as net_limits
from broker.net.listener import Listener
from broker.net.tls import Certificates, TlsFiles
from broker.protocols.access import Access
from broker.protocols.nsq import limits
from broker.protocols.nsq.dead_letters import Policies
from broker.protocols.nsq.frontend import NsqFrontend
from broker.protocols.nsq.session import NsqSession
from broker.protocols.nsq.topics import Topics

if TYPE_CHECKING:
    from collections.abc import Collection

    from broker.engine.engine import Engine
    from broker.net.listener import Runtime
    from broker.net.tls import ClientCertificate
    from broker.protocols.nsq.auth import Authority
    from broker.protocols.nsq.config import NsqConfig


def certificates_of(config: NsqConfig) -> Certificates | None:
    """The server certificates; TlsError if the files cannot be used."""
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


def authority_of(config: NsqConfig) -> Authority | None:
    """The client of the auth servers; None if none is configured."""
    if not config.auth_http_addresses:
        return None
    from broker.protocols.nsq.auth import Authority

    return Authority(config)


class NsqListener(Listener):
    """Accepts NSQ clients for one engine."""

    def __init__(
        self, config: NsqConfig, runtime: Runtime, engine: Engine, access: Access | None = None
    ) -> None:
        """`access` None: every switch of [bridge] is on."""
        if config.listen is None:
            raise ValueError("nsq.listen is off")
        # The largest message must fit twice: one being sent, one being added.
        out_limit = 2 * config.max_msg_size + limits.NSQ_OUTPUT_SLACK
        super().__init__(runtime, config.listen, out_limit)
        self.config = config
        self.start_ns = time.time_ns()
        self.engine = engine
        self.certificates = certificates_of(config)
        self.authority = authority_of(config)
        access = access or Access()
        self.topics = Topics(engine, access)
        self.dead_letters = Policies(engine, self.topics)
        self.frontend = NsqFrontend(
            engine, runtime.turn, config, self.certificates, self.authority, access
        )

    def new_session(self) -> NsqSession:
        return NsqSession(self.frontend)

    async def drain(self, grace_ns: int = net_limits.CLOSE_GRACE) -> None:
        """Stop accepting and reading; end each connection after its publishes are answered."""
        await self.close()
        for session in list(self.sessions):
            session.drain()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._emptied.wait(), grace_ns / SECOND)
        await super().drain(grace_ns)
        if self.authority is not None:
            await self.authority.close()

    @property
    def sessions(self) -> Collection[NsqSession]:
        """The open sessions, in no particular order."""
        return cast("Collection[NsqSession]", self.frontend.sessions)

    def count_published(self, bodies: list[bytes]) -> None:
        """Count messages that were published over HTTP."""
        self.frontend.count_in(len(bodies), sum(map(len, bodies)))

    @property
    def in_msgs(self) -> int:
        return self.frontend.in_msgs

    @property
    def in_bytes(self) -> int:
        return self.frontend.in_bytes

    @property
    def out_msgs(self) -> int:
        return self.frontend.out_msgs

    @property
    def out_bytes(self) -> int:
        return self.frontend.out_bytes

    @property
    def slow_consumers(self) -> int:
        return self.frontend.slow_consumers
