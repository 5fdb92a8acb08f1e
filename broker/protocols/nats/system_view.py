"""What the system account needs of the rest of the server, and the queue of what it has to do."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from broker.base.logs import fields
from broker.protocols.nats import limits
from broker.protocols.nats.auth.authenticator import Identity
from broker.protocols.nats.system.envelope import Envelope, encode
from broker.protocols.nats.wire.options import ClientOptions
from broker.routing.router import Router

log = logging.getLogger("broker.protocols.nats.system_view")

Json = dict[str, Any]


class Pages(Protocol):
    """The pages of the monitoring door, by the names that requests have for them.

    VARZ SUBSZ CONNZ ROUTEZ GATEWAYZ LEAFZ ACCOUNTZ JSZ HEALTHZ, ACCSTATZ of all accounts or some,
    and INFO, which is ACCOUNTZ' detail of one account. They raise PageError.
    """

    def page(self, name: str, options: Json) -> Json: ...


class SessionView(Protocol):
    """A client, or a server that joined as a leaf."""

    @property
    def client_id(self) -> int: ...
    @property
    def account(self) -> AccountView | None: ...
    @property
    def identity(self) -> Identity | None: ...
    @property
    def options(self) -> ClientOptions | None: ...  # None: no CONNECT yet
    @property
    def kind(self) -> str: ...  # STANDARD, WEBSOCKET, LEAFNODE ...
    @property
    def host(self) -> str: ...
    @property
    def start_ns(self) -> int: ...  # wall clock
    @property
    def closed_because(self) -> str | None: ...
    @property
    def rtt_ns(self) -> int: ...
    @property
    def in_msgs(self) -> int: ...
    @property
    def in_bytes(self) -> int: ...
    @property
    def out_msgs(self) -> int: ...
    @property
    def out_bytes(self) -> int: ...


class Listener(Protocol):
    """A subscription of the server's own."""

    def close(self) -> None: ...


class Message(Protocol):
    """A message as a listener gets it."""

    @property
    def subject(self) -> bytes: ...
    @property
    def reply(self) -> bytes: ...
    @property
    def headers(self) -> bytes: ...
    @property
    def data(self) -> bytes: ...  # without the headers
    @property
    def session(self) -> SessionView | None: ...  # the publisher


class AccountView(Protocol):
    """A subject space."""

    @property
    def name(self) -> str: ...
    @property
    def router(self) -> Router: ...
    @property
    def sessions(self) -> Collection[Any]: ...
    @property
    def leafs(self) -> Collection[Any]: ...
    @property
    def config(self) -> Any: ...  # settings.Account, or None

    def interest(self, subject: bytes) -> int: ...  # how many subscriptions would get it

    def listen(
        self, subject: bytes, callback: Callable[[Any], object], queue: bytes = b""
    ) -> Listener: ...
    def publish(
        self, subject: bytes, data: bytes = b"", reply: bytes = b"", headers: bytes = b""
    ) -> int: ...


class ServerView(Protocol):
    """The accounts there are; names in operator mode are public keys."""

    @property
    def accounts(self) -> Mapping[str, AccountView]: ...


@dataclass(slots=True)
class Station:
    """Where the service works."""

    server: ServerView
    account: AccountView  # the system account
    envelope: Envelope
    pages: Pages

    def publish(self, subject: bytes, event: Json, account: AccountView | None = None) -> None:
        """At once; in the system account unless another is named."""
        (account or self.account).publish(subject, encode(event))


class Timer(Protocol):
    """Something that will happen."""

    def cancel(self) -> None: ...


class Clock(Protocol):
    """The part of an event loop that is used here."""

    def call_soon(self, callback: Callable[[], None], /) -> object: ...
    def time(self) -> float: ...
    def call_later(self, delay: float, callback: Callable[[], None], /) -> Timer: ...


class Backlog:
    """Jobs in their order, so many per turn of the loop that clients do not wait for them."""

    def __init__(
        self,
        clock: Clock,
        *,
        waiting_max: int = limits.NATS_SYSTEM_WAITING,
        turn_ns: int = limits.NATS_SYSTEM_TURN,
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.jobs: deque[Callable[[], None]] = deque()
        self.dropped = 0
        self._call_soon = clock.call_soon
        self._waiting_max = waiting_max
        self._turn_ns = turn_ns
        self._now_ns = now_ns
        self._scheduled = False

    def add(self, job: Callable[[], None]) -> bool:
        """Do it later; False when too much waits already."""
        if len(self.jobs) >= self._waiting_max:
            if not self.dropped:
                log.warning("system events are dropped", extra=fields(waiting=len(self.jobs)))
            self.dropped += 1
            return False
        self.jobs.append(job)
        if not self._scheduled:
            self._scheduled = True
            self._call_soon(self._run)
        return True

    def _run(self) -> None:
        self._scheduled = False
        stop_ns = self._now_ns() + self._turn_ns
        while self.jobs:
            job = self.jobs.popleft()
            try:
                job()
            except Exception:
                log.exception("the system account failed")
            if self._now_ns() >= stop_ns:
                break
        if self.jobs:
            self._scheduled = True
            self._call_soon(self._run)
        elif self.dropped:
            log.warning("system events were dropped", extra=fields(count=self.dropped))
            self.dropped = 0

    def clear(self) -> None:
        self.jobs.clear()
