"""Operator mode in a server: creates accounts at the first login, and applies changed tokens."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any

from broker.protocols.nats import limits
from broker.protocols.nats.accounts.rights import may_receive
from broker.protocols.nats.auth.authenticator import Refused
from broker.protocols.nats.auth.jwt.requests import ClaimsRequests
from broker.protocols.nats.auth.jwt.tokens import Invalid
from broker.protocols.nats.client.recheck import Recheck

if TYPE_CHECKING:
    from broker.protocols.nats import settings
    from broker.protocols.nats.accounts.account import Account, LocalSubscription, Message
    from broker.protocols.nats.auth.callout_auth import OperatorCallout
    from broker.protocols.nats.context import NatsContext
    from broker.protocols.nats.leafnodes.session import LeafSession

log = logging.getLogger("broker.nats")


class OperatorLink:
    """Applies the tokens of accounts to the accounts of a server."""

    def __init__(
        self,
        context: NatsContext,
        auth: OperatorCallout,
        recheck_leafs: Callable[[Iterable[LeafSession]], Awaitable[None]],
    ) -> None:
        """`recheck_leafs` closes leaf nodes whose login is no longer valid."""
        self.context = context
        self.auth = auth
        self.recheck_leafs = recheck_leafs
        self.tokens = auth.operator.accounts
        self.system_account = auth.operator.system_account
        self.tokens.changed.append(self._changed)
        self._tasks: set[asyncio.Task[None]] = set()
        self._subscriptions: list[LocalSubscription] = []
        self._requests: ClaimsRequests | None = None
        self._answering = 0
        context.operator_system_account = self.system_account
        context.token_config = self.config
        context.handshake.find_account = self.find

    def config(self, name: str) -> settings.Account | None:
        """The settings in the account's token."""
        return self.auth.operator.config(name)

    def find(self, name: str) -> Account | None:
        """An account with a known token, created if necessary."""
        account = self.context.accounts.get(name)
        config = self.config(name)
        if account is not None or config is None:
            return account
        account = self.context.make_account(name)
        for one in config.imports:
            self.find(one.account)
        self.context.configure_account(account, config)
        return account

    # --- life cycle

    async def start(self) -> None:
        """Read tokens, and find the system account; ValueError if it is missing. If tokens are in a
        folder, a request in this account may store its token later."""
        await self.tokens.resolver.start()
        name = self.system_account
        if not name:
            return
        try:
            await self.tokens.find(name)
        except Refused as error:
            if not await self._can_be_stored_later(name):
                raise ValueError(f"error resolving system account: {error}") from error
            log.warning("system account %s has no JWT: its own key signs its users", name)
            self.tokens.add_without_token(name)
        self._subscribe()

    async def _can_be_stored_later(self, name: str) -> bool:
        """Whether the resolver works, has no token of the account, and can store one."""
        config = self.context.settings.resolver
        if config is None or config.kind not in {"full", "cache"}:
            return False
        with contextlib.suppress(OSError, ValueError, TimeoutError):
            return not await self.tokens.resolver.fetch(name)
        return False

    def _subscribe(self) -> None:
        """Subscribe to requests about accounts."""
        bus, config = self.find(self.system_account), self.context.settings.resolver
        assert bus is not None
        assert config is not None
        self._requests = ClaimsRequests(self.tokens, config, self.describe, self.system_account)
        for subject, queue in self._requests.subjects():
            self._subscriptions.append(
                bus.listen(subject.encode(), self._on_request, queue.encode())
            )
        if config.kind == "full":
            self._spawn(self._requests.exchange(bus, config.interval_ns))

    async def reload(self) -> None:
        """Apply changes of the resolver by the configuration or by another process."""
        config = self.context.settings.resolver
        if config is None:
            return
        await self.tokens.resolver.reload(config)
        if config.kind == "memory":
            for name in list(self.tokens.accounts):
                self._update(name, await self.tokens.resolver.fetch(name))

    def _update(self, name: str, text: str | None) -> None:
        """Apply the token of an account. Without a valid one the account is removed, except the
        system account, which the server itself uses."""
        try:
            if text:
                self.tokens.update(text)
                return
        except Invalid as error:
            log.error("account %s: %s", name, error)
        if name != self.system_account:
            self.tokens.remove(name)

    async def stop(self) -> None:
        for subscription in self._subscriptions:
            subscription.close()
        for task in self._tasks:
            task.cancel()
        self.tokens.close()
        await self.tokens.resolver.close()

    def describe(self) -> dict[str, Any]:
        """The fields about this server in answers."""
        context = self.context
        if context.system is not None:
            return context.system.envelope.server()
        return {
            "name": context.server_name,
            "host": context.settings.address[0],
            "id": context.server_id,
            "ver": limits.NATS_VERSION,
            "jetstream": False,
        }

    # --- requests

    def _on_request(self, message: Message) -> None:
        if self._answering >= limits.NATS_LOCAL_MESSAGES_MAX:
            return
        self._answering += 1
        self._spawn(self._answer(message))

    async def _answer(self, message: Message) -> None:
        assert self._requests is not None
        try:
            subject = message.subject.decode("utf-8", "replace")
            answers = await self._requests.answer(subject, message.data)
        except OSError as error:
            log.error("request about accounts: %s", error)
            return
        finally:
            self._answering -= 1
        if message.reply and may_receive(message.account, message.session, message.reply):
            for answer in answers:
                message.account.publish(message.reply, answer)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # --- changes

    def _changed(self, name: str) -> None:
        account = self.context.accounts.get(name)
        if account is None:
            return
        config = self.config(name)
        if config is not None:  # if it has expired, its clients are closed already
            for one in config.imports:
                self.find(one.account)
            self.context.configure_account(account, config)
        self._spawn(self._recheck(account))

    async def _recheck(self, account: Account) -> None:
        await Recheck(self.context.handshake).run(list(account.sessions))
        await self.recheck_leafs(list(account.leafs))
