"""JetStream of one server: its accounts with their requests."""

from __future__ import annotations

import asyncio
import logging
from functools import cached_property
from typing import TYPE_CHECKING, Any

from broker.protocols.jetstream.api.sink import ApiSink
from broker.protocols.jetstream.context import JetStreamContext
from broker.protocols.nats.accounts.subjects import lies_within, unnumbered
from broker.protocols.nats.settings import JetStreamLimits

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping
    from pathlib import Path

    from broker.engine.engine import Engine
    from broker.protocols.access import Access
    from broker.protocols.jetstream.account import JetStreamAccount
    from broker.protocols.jetstream.api.dispatch import Dispatcher
    from broker.protocols.jetstream.api.sink import Request
    from broker.protocols.jetstream.config import JetStreamConfig
    from broker.protocols.jetstream.consumers.registry import Consumers
    from broker.protocols.jetstream.monitor import JetStreamPages
    from broker.protocols.jetstream.structs import AccountLimits
    from broker.protocols.nats.accounts.account import Account
    from broker.protocols.nats.monitoring.options import HealthzOptions, JszOptions
    from broker.protocols.nats.server import NatsServer
    from broker.protocols.nats.settings import Import

log = logging.getLogger("broker.jetstream")


class JetStream:
    """The service for JetStream clients of one server.

    An account without stored streams is opened by its first request. Before that, it has only a
    subscription.
    """

    def __init__(
        self,
        config: JetStreamConfig,
        nats: NatsServer,
        engine: Engine,
        folder: Path | None,
        access: Access,
    ) -> None:
        """`folder`: for the files of configurations; None = everything is in memory."""
        self.context = JetStreamContext(config, nats, engine, folder, access)
        self.nats = nats
        self._sinks: dict[str, ApiSink] = {}
        self._accounts: dict[str, JetStreamAccount] = {}
        self._dispatchers: dict[str, Dispatcher] = {}
        self._starting: dict[str, Account] = {}  # new accounts whose streams will be opened
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_imported = False  # the code that answers requests
        heads = [b"$JS.API."]
        if config.domain:
            heads.append(f"$JS.{config.domain}.API.".encode())
        self._heads = tuple(heads)

    async def start(self) -> None:
        """Open the stored streams and receive requests, in every account."""
        for each in list(self.nats.accounts.values()):
            self._listen(each)
        folder = self.context.folder
        if folder is not None and folder.is_dir():
            from broker.protocols.jetstream.recovery import recover, report_unknown

            for account in self.accounts.values():
                await recover(account)
            await report_unknown(folder, self.accounts)
        self.nats.context.on_account.append(self._account_changed)

    def drain(self) -> None:
        """Deliver nothing more, and end waiting pull requests."""
        for account in self._accounts.values():
            account.drain()

    async def stop(self) -> None:
        """Close all accounts; the files of their streams remain."""
        if self._account_changed in self.nats.context.on_account:
            self.nats.context.on_account.remove(self._account_changed)
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for name in list(self._sinks):
            await self._remove(name)

    # --- accounts

    @property
    def accounts(self) -> Mapping[str, JetStreamAccount]:
        """All accounts by name. Accounts that are not open are opened."""
        for name in self._sinks:
            self._dispatcher(name)
        return self._accounts

    def _listen(self, account: Account) -> ApiSink:
        name = account.name
        sink = self._sinks[name] = ApiSink(
            account,
            lambda request: self._handle(sink, request),
            lambda dropped: self._dispatcher(name).overflow(dropped),
            self.context.config.request_queue,
        )
        sink.silent = self._imports_jetstream(account)
        for head in self._heads:
            sink.listen(head)
        return sink

    def _handle(self, sink: ApiSink, request: Request) -> None:
        if self._is_imported:
            self._dispatcher(sink.account.name).handle(request)
        else:
            sink.busy = True  # later requests wait
            self._start_task(self._handle_first(sink, request))

    async def _handle_first(self, sink: ApiSink, request: Request) -> None:
        """Import what requests need, in a thread so that other clients do not wait, and then answer
        the first one."""
        name = sink.account.name
        try:
            await asyncio.to_thread(_import_verbs)
            self._is_imported = True
            if self._sinks.get(name) is sink:  # the account still exists
                sink.busy = False
                self._dispatcher(name).handle(request)
        except Exception:
            log.exception("the first request of account %s", name)
        if not sink.busy or not self._is_imported:
            sink.resume()

    def _dispatcher(self, name: str) -> Dispatcher:
        """The dispatcher of an account. The account is opened if it is not open."""
        found = self._dispatchers.get(name)
        if found is not None:
            return found
        from broker.protocols.jetstream.account import JetStreamAccount
        from broker.protocols.jetstream.api.dispatch import Dispatcher

        sink = self._sinks[name]
        limits, tiers = self.limits_of(sink.account), self._tiers_of(sink.account)
        account = JetStreamAccount(self.context, sink.account, limits, _consumers, tiers)
        self._accounts[name] = self.context.reserving[name] = account
        found = self._dispatchers[name] = Dispatcher(account, sink, self._purge)
        return found

    async def _remove(self, name: str) -> None:
        sink = self._sinks.pop(name, None)
        if sink is None:
            return
        sink.close()
        dispatcher = self._dispatchers.pop(name, None)
        if dispatcher is not None:
            await dispatcher.close()
            self._accounts.pop(name).close()
            del self.context.reserving[name]

    async def _purge(self, name: str) -> None:
        """Delete all streams of an account."""
        account = self.accounts.get(name)
        for stream in list(account.streams) if account is not None else ():
            assert account is not None
            await account.delete(stream)

    def _account_changed(self, account: Account) -> None:
        """Serve a new account, or one whose configuration changed."""
        sink = self._sinks.get(account.name)
        if sink is not None and sink.account is account:
            known = self._accounts.get(account.name)
            if known is not None:
                known.configure(self.limits_of(account), self._tiers_of(account))
            sink.silent = self._imports_jetstream(account)
            return
        if self._starting.get(account.name) is not account:
            self._starting[account.name] = account
            if sink is None:
                self._listen(account).busy = True  # requests wait until its streams are open
            self._start_task(self._serve_new(account))

    def accounts_changed(self) -> None:
        """Apply a reload: new accounts, other limits, removed accounts."""
        for account in list(self.nats.accounts.values()):
            self._account_changed(account)
        for name in self._sinks.keys() - self.nats.accounts.keys():
            self._start_task(self._remove(name))

    def _start_task(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve_new(self, account: Account) -> None:
        """Open the stored streams of an account that was added after the start, and serve it."""
        sink = self._sinks.get(account.name)
        if sink is not None and sink.account is not account:
            await self._remove(account.name)  # the sink is that of an earlier account of this name
            sink = None
        if self._starting.get(account.name) is account:
            del self._starting[account.name]
        if sink is None:
            sink = self._listen(account)
        sink.busy = True  # requests wait
        folder = self.context.folder
        try:
            if folder is not None and folder.is_dir():
                from broker.protocols.jetstream.recovery import recover

                self._dispatcher(account.name)
                await recover(self._accounts[account.name])
        except Exception:
            log.exception("the streams of account %s cannot be opened", account.name)
        finally:
            sink.resume()

    def limits_of(self, account: Account) -> AccountLimits | None:
        """The limits of an account; None: JetStream is not enabled for it."""
        if account is self.nats.system_account:
            return None
        if account.config is None or account.config.jetstream is None:
            return _limits(JetStreamLimits()) if self._is_only_account(account) else None
        return _limits(account.config.jetstream)

    def _tiers_of(self, account: Account) -> dict[str, AccountLimits]:
        """The limits of each tier of an account; empty: it has no tiers."""
        own = account.config.jetstream if account.config is not None else None
        return {name: _limits(tier) for name, tier in own.tiers} if own is not None else {}

    def _imports_jetstream(self, account: Account) -> bool:
        """Whether an account without JetStream imports the API of another account. Requests that it
        does not import then have no responders, as in nats-server."""
        imports = account.config.imports if account.config is not None else ()
        return any(map(_imports_api, imports)) and self.limits_of(account) is None

    def _is_only_account(self, account: Account) -> bool:
        """Whether this is the only account besides the system account: it then has JetStream by
        default."""
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

        return JetStreamPages(self.context, lambda: self.accounts)

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
        sink = self._sinks.get(account)
        return sink is not None and self.limits_of(sink.account) is not None


def _imports_api(one: Import) -> bool:
    """Whether this import leads requests for $JS.API.INFO to another account."""
    return one.service and lies_within("$JS.API.INFO", unnumbered(one.to or one.subject)[0])


def _limits(own: JetStreamLimits) -> AccountLimits:
    from broker.protocols.jetstream.structs import AccountLimits

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


def _import_verbs() -> None:
    from broker.protocols.jetstream import account, topics  # noqa: F401
    from broker.protocols.jetstream.api.dispatch import find_verb
    from broker.protocols.jetstream.consumers import registry  # noqa: F401

    find_verb("")


def _consumers(account: JetStreamAccount) -> Consumers:
    """Create the registry of consumers; its module is imported for the first stream."""
    from broker.protocols.jetstream.consumers.registry import Consumers

    return Consumers(account)
