"""JetStream of one server: its accounts with their requests."""

from __future__ import annotations

import logging
from functools import cached_property
from typing import TYPE_CHECKING, Any

from broker.protocols.jetstream.account import JetStreamAccount
from broker.protocols.jetstream.api.dispatch import Dispatcher
from broker.protocols.jetstream.context import JetStreamContext
from broker.protocols.jetstream.structs import AccountLimits

if TYPE_CHECKING:
    from pathlib import Path

    from broker.engine.engine import Engine
    from broker.protocols.jetstream.config import JetStreamConfig
    from broker.protocols.jetstream.consumers.registry import Consumers
    from broker.protocols.jetstream.monitor import JetStreamPages
    from broker.protocols.nats.accounts.account import Account
    from broker.protocols.nats.monitoring.options import HealthzOptions, JszOptions
    from broker.protocols.nats.server import NatsServer

log = logging.getLogger("broker.jetstream")


class JetStream:
    """The service for JetStream clients of one server."""

    def __init__(
        self, config: JetStreamConfig, nats: NatsServer, engine: Engine, folder: Path | None
    ) -> None:
        """`folder`: of the files of configurations; None = everything is in memory."""
        self.context = JetStreamContext(config, nats, engine, folder)
        self.nats = nats
        self.accounts: dict[str, JetStreamAccount] = {}
        self._dispatchers: dict[str, Dispatcher] = {}
        heads = [b"$JS.API."]
        if config.domain:
            heads.append(f"$JS.{config.domain}.API.".encode())
        self._heads = tuple(heads)

    async def start(self) -> None:
        """Open the stored streams and receive requests, in every account."""
        for account in list(self.nats.accounts.values()):
            self._add(account)
        folder = self.context.folder
        if folder is not None and folder.is_dir():
            from broker.protocols.jetstream.recovery import recover

            await recover(folder, self.accounts)
        for name in self.accounts:
            self._listen(name)
        self.nats.context.on_account.append(self._adopt)

    def drain(self) -> None:
        """Deliver nothing more, and end requests that wait for messages."""
        for account in self.accounts.values():
            account.drain()

    async def stop(self) -> None:
        """Receive nothing more; streams stay on the disk."""
        if self._adopt in self.nats.context.on_account:
            self.nats.context.on_account.remove(self._adopt)
        for name in list(self.accounts):
            await self._remove(name)

    def _add(self, account: Account) -> None:
        limits = self.limits_of(account)
        added = JetStreamAccount(self.context, account, limits, _consumers)
        self.accounts[account.name] = self.context.reserving[account.name] = added

    def _listen(self, name: str) -> None:
        dispatcher = self._dispatchers[name] = Dispatcher(self.accounts[name], self._purge)
        for head in self._heads:
            dispatcher.sink.listen(head)

    async def _remove(self, name: str) -> None:
        dispatcher = self._dispatchers.pop(name, None)
        if dispatcher is not None:
            await dispatcher.close()
        self.accounts.pop(name).close()
        del self.context.reserving[name]

    async def _purge(self, name: str) -> None:
        """Delete all streams of an account."""
        account = self.accounts.get(name)
        for stream in list(account.streams) if account is not None else ():
            assert account is not None
            await account.delete(stream)

    def _adopt(self, account: Account) -> None:
        """Serve a new account, or one whose configuration changed."""
        known = self.accounts.get(account.name)
        if known is None or known.account is not account:
            self._add(account)
            self._listen(account.name)
        else:
            known.configure(self.limits_of(account))

    def limits_of(self, account: Account) -> AccountLimits | None:
        """The limits of an account; None: JetStream is not enabled for it."""
        if account is self.nats.system_account:
            return None
        if account.config is None or account.config.jetstream is None:
            return AccountLimits() if self._is_for_all(account) else None
        own = account.config.jetstream
        return AccountLimits(
            max_memory=own.max_memory,
            max_storage=own.max_storage,
            max_streams=own.max_streams,
            max_consumers=own.max_consumers,
            max_ack_pending=own.max_ack_pending,
            memory_max_stream_bytes=own.memory_max_stream_bytes,
            storage_max_stream_bytes=own.storage_max_stream_bytes,
            max_bytes_required=own.max_bytes_required,
        )

    def _is_for_all(self, account: Account) -> bool:
        """Without configured accounts, the global account has JetStream."""
        system = self.nats.system_account
        names = {name for name in self.nats.accounts if system is None or name != system.name}
        return names == {account.name}

    # --- monitoring

    def info(self) -> dict[str, Any]:
        """The fields of INFO."""
        return self.context.info()

    @cached_property
    def _pages(self) -> JetStreamPages:
        from broker.protocols.jetstream.monitor import JetStreamPages

        return JetStreamPages(self.context, self.accounts)

    def varz(self) -> dict[str, Any]:
        """The block of /varz."""
        return self._pages.varz()

    def jsz(self, options: JszOptions) -> dict[str, Any]:
        """The page /jsz."""
        return self._pages.jsz(options)

    def problem(self, options: HealthzOptions) -> tuple[int, dict[str, str]] | None:
        """Why a check of /healthz fails."""
        return self._pages.problem(options)

    def serves(self, account: str) -> bool:
        """Whether JetStream is enabled for this account."""
        found = self.accounts.get(account)
        return found is not None and found.enabled


def _consumers(account: JetStreamAccount) -> Consumers:
    """The consumers of an account; imported for the first stream or consumer."""
    from broker.protocols.jetstream.consumers.registry import Consumers

    return Consumers(account)
