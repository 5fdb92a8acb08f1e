"""Requests about account tokens on the system account: update, look up, list, delete, exchange.

Any client of the system account may send them; signatures decide what is accepted. Each answer has
the original's text, preceded by `server`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

import orjson

from broker.base.units import SECOND
from broker.protocols.nats import limits, settings
from broker.protocols.nats.accounts.asking import Bus, LocalSubscription, ReceivedMessage, inbox
from broker.protocols.nats.auth import nkeys
from broker.protocols.nats.auth.jwt import claims, tokens, validate
from broker.protocols.nats.auth.jwt.accounts import AccountTokens
from broker.protocols.nats.auth.jwt.resolvers import Directory
from broker.protocols.nats.auth.jwt.tokens import Invalid, Token

log = logging.getLogger("broker.nats")

PACK: Final = "$SYS.REQ.CLAIMS.PACK"
LIST: Final = "$SYS.REQ.CLAIMS.LIST"
DELETE: Final = "$SYS.REQ.CLAIMS.DELETE"
UPDATE: Final = "$SYS.REQ.CLAIMS.UPDATE"
UPDATES: Final = ("$SYS.REQ.ACCOUNT.*.CLAIMS.UPDATE", "$SYS.ACCOUNT.*.CLAIMS.UPDATE")
LOOKUPS: Final = "$SYS.REQ.ACCOUNT.*.CLAIMS.LOOKUP"
RESPONDERS: Final = "responder"  # the queue group that answers PACK
_OK: Final = 200
_FAILED: Final = 500


class ClaimsRequests:
    """Answers requests about account tokens."""

    def __init__(
        self,
        accounts: AccountTokens,
        config: settings.Resolver,
        server: Callable[[], dict[str, Any]],
        system_account: str = "",
    ) -> None:
        """`server` returns the fields about this server in all answers."""
        self._accounts = accounts
        self._server = server
        self._system_account = system_account
        self._full = config.kind == "full"
        self._cache = config.kind == "cache"
        self._may_delete = config.allow_delete or self._cache
        self._keep_deleted = not (config.hard_delete or self._cache)
        resolver = accounts.resolver
        self._folder = resolver.folder if isinstance(resolver, Directory) else None
        if self._folder is not None:
            self._folder.changed.append(self._changed)
            self._folder.removed.append(accounts.remove)

    def subjects(self) -> list[tuple[str, str]]:
        """The subject and queue group of each required subscription."""
        subjects = [(subject, "") for subject in UPDATES]
        if self._folder is not None:
            subjects += [(UPDATE, ""), (LIST, ""), (DELETE, "")]
        if self._full:
            subjects += [(LOOKUPS, ""), (PACK, RESPONDERS)]
        return subjects

    async def answer(self, subject: str, data: bytes) -> list[bytes]:
        """The messages for the reply subject, in order."""
        text = data.decode("utf-8", "replace")
        if subject == LIST:
            return await self._list()
        if subject == DELETE:
            return [await self._delete(text)]
        if subject == PACK:
            return await self._pack(data)
        if subject.endswith(".LOOKUP"):
            return await self._lookup(subject.split(".")[-3])
        if subject == UPDATE:
            return [await self._update("", text)]
        return [await self._update(subject.split(".")[-3], text)]

    # --- requests

    async def _update(self, name: str, text: str) -> bytes:
        action = "jwt update cache" if self._cache else "jwt update"
        done = "jwt updated cache" if self._cache else "jwt updated"
        try:
            token = tokens.decode(text, "account")
        except Invalid as error:
            return self._failed(f"{action} resulted in error", error, name or "n/a")
        account = token.claims.sub
        try:
            self._allowed(token, name or account)
            if not self._full and self._accounts.accounts.get(account) is None:
                return self._succeeded(f"{action} skipped", account)
            fault = next(validate.content_faults(token), None) or claims.mapping_fault(token)
            if fault is not None:
                return self._failed(
                    f"{action if self._cache else 'jwt'} validation failed", Invalid(fault), account
                )
            if self._folder is None:
                self._accounts.update(text)
            else:
                await self._folder.save(account, text)
        except (Invalid, ValueError, OSError) as error:
            return self._failed(f"{action} resulted in error", error, name or account)
        return self._succeeded(done, account)

    def _allowed(self, token: Token, name: str) -> None:
        if token.claims.sub != name:
            raise Invalid("subject does not match jwt content")
        operators = self._accounts.operators
        strict = operators and operators[0].body.strict_signing_key_usage
        if strict and token.claims.iss == operators[0].claims.sub:
            raise Invalid("operator requires issuer to be a signing key")
        if not self._accounts.trusts(token.claims.iss):
            raise Invalid("not signed by a trusted operator")

    def _changed(self, name: str, text: str) -> None:
        try:
            self._accounts.update(text)
        except Invalid as error:
            log.error("update of account %s: %s", name, error)

    async def _lookup(self, name: str) -> list[bytes]:
        assert self._folder is not None
        try:
            text = await self._folder.load(name)
        except ValueError:
            return []
        return [(text or "").encode()]

    async def _list(self) -> list[bytes]:
        assert self._folder is not None
        return [self._answer("data", self._folder.names())]

    async def _pack(self, requester_digest: bytes) -> list[bytes]:
        """All tokens, then an empty message; only the latter if the requester has the same
        tokens."""
        assert self._folder is not None
        if requester_digest == self._folder.digest:
            return [b""]
        packed = [f"{name}|{text}".encode() async for name, text in self._folder.each()]
        return [*packed, b""]

    async def _delete(self, text: str) -> bytes:
        assert self._folder is not None
        subject = ""
        try:
            claims, body = tokens.decode_generic(text)
            subject = claims.sub
            names = self._deletable(claims, body)
        except Invalid as error:
            return self._failed(f"delete accounts request by {subject} failed", error)
        failures: list[str] = []
        for name in names:
            try:
                await self._folder.delete(name, keep=self._keep_deleted)
            except (OSError, ValueError) as error:
                failures.append(str(error))
        done = f"deleted {len(names) - len(failures)} accounts"
        if failures:
            reasons = Invalid("\n".join(failures))
            return self._failed(f"{done}, failed for {len(failures)}", reasons)
        return self._succeeded(done)

    def _deletable(self, claims: tokens.Claims, body: dict[str, Any]) -> list[str]:
        if not self._may_delete:
            raise Invalid("delete must be enabled in server config")
        if claims.sub != claims.iss:
            raise Invalid("not self signed")
        if not self._accounts.may_manage(claims.iss):
            raise Invalid("not trusted")
        names = body.get("accounts")
        if not isinstance(names, list):
            raise Invalid("malformed request")
        for name in names:
            if not isinstance(name, str) or not nkeys.is_public(nkeys.ACCOUNT, name):
                raise Invalid("malformed request")
            if name == self._system_account:
                raise Invalid("not allowed to delete system account")
        return names

    # --- other servers

    async def exchange(self, bus: Bus, interval_ns: int) -> None:
        """Periodically request the tokens of other servers over the system account."""
        assert self._folder is not None
        loop = asyncio.get_running_loop()
        waiting: asyncio.Queue[bytes] = asyncio.Queue(limits.NATS_LOCAL_MESSAGES_MAX)

        def enqueue(message: ReceivedMessage) -> None:
            if message.data and not waiting.full():
                waiting.put_nowait(message.data)

        reply = inbox()
        subscription: LocalSubscription = bus.listen(reply, enqueue)
        due = loop.time()
        try:
            while True:
                due += interval_ns / SECOND
                try:
                    async with asyncio.timeout_at(due):
                        while True:
                            await self._merge(await waiting.get())
                except TimeoutError:
                    bus.publish(PACK.encode(), self._folder.digest, reply)
        finally:
            subscription.close()

    async def _merge(self, packed: bytes) -> None:
        assert self._folder is not None
        for line in packed.decode("utf-8", "replace").split("\n"):
            name, _, text = line.partition("|")
            try:
                self._allowed(tokens.decode(text, "account"), name)
                await self._folder.save_if_newer(name, text)
            except (Invalid, ValueError, OSError) as error:
                log.warning("account %s of another server: %s", name, error)

    # --- answers

    def _answer(self, field: str, value: object) -> bytes:
        return orjson.dumps({"server": self._server(), field: value})

    def _succeeded(self, message: str, account: str = "") -> bytes:
        named = {"account": account} if account else {}
        return self._answer("data", {**named, "code": _OK, "message": message})

    def _failed(self, message: str, error: Exception, account: str = "") -> bytes:
        named = {"account": account} if account else {}
        text = f"{message} - {error}"
        log.warning("%s %s", text, account)
        return self._answer("error", {**named, "code": _FAILED, "description": text})
