"""Accounts, sessions, pages and a clock for the system account, without sockets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import orjson

from broker.base.units import SECOND
from broker.protocols.nats.auth.authenticator import Identity
from broker.protocols.nats.monitoring.options import PageError
from broker.protocols.nats.system.envelope import Envelope, Json, ServerIdentity, Station
from broker.protocols.nats.system.requests import Actions
from broker.protocols.nats.system.system import System
from broker.protocols.nats.wire.options import ClientOptions
from broker.routing.local import publish, subscribers
from broker.routing.router import Router
from broker.runtime.interfaces import Session
from support.native.routing import Subscriber

SERVER_ID = "NSERVER"
WALL_NS = 1_700_000_000 * SECOND
WHO = ServerIdentity("twin", "0.0.0.0", SERVER_ID, "2.10.22", tags=("az:1", " Big "))


class Message(NamedTuple):
    subject: bytes
    reply: bytes = b""
    headers: bytes = b""
    data: bytes = b""
    session: FakeSession | None = None
    account: FakeAccount | None = None


class FakeListener:
    def __init__(
        self, account: FakeAccount, callback: Callable[[Any], object], subscription: Subscriber
    ) -> None:
        self.account, self.callback, self.subscription = account, callback, subscription

    def close(self) -> None:
        self.subscription.close()
        self.account.listeners.remove(self)


class FakeAccount:
    """A router, and what was published into it by the server."""

    def __init__(self, name: str, config: object = None) -> None:
        self.name = name
        self.router = Router()
        self.sessions: set[FakeSession] = set()
        self.leafs: set[FakeSession] = set()
        self.config = config
        self.listeners: list[FakeListener] = []
        self.published: list[tuple[str, bytes, bytes]] = []  # subject, headers, body
        self.subscriptions: dict[str, Subscriber] = {}

    def listen(
        self, subject: bytes, callback: Callable[[Any], object], queue: bytes = b""
    ) -> FakeListener:
        subscription = Subscriber(self.router)
        subscription.subscribe(b"1", subject, queue)
        self.listeners.append(FakeListener(self, callback, subscription))
        return self.listeners[-1]

    def interest(self, subject: bytes) -> int:
        return len(subscribers(self.router, subject))

    def publish(
        self, subject: bytes, data: bytes = b"", reply: bytes = b"", headers: bytes = b""
    ) -> int:
        self.published.append((subject.decode(), headers, data))
        return int(publish(self.router, subject, headers + data, reply=reply))

    def watch(self, *subjects: str) -> None:
        """Add a subscriber."""
        for subject in subjects:
            self.subscriptions[subject] = Subscriber(self.router)
            self.subscriptions[subject].subscribe(b"1", subject.encode())

    def request(self, subject: str, body: bytes = b"", **parts: Any) -> None:
        """A client's publish, with the end of its turn; its inbox is `reply`."""
        reply = parts.get("reply", b"")
        publish(self.router, subject.encode(), body, reply=reply)
        for listener in list(self.listeners):
            heard = [m[1] for m in listener.subscription.received]
            listener.subscription.received.clear()
            if subject.encode() in heard:
                listener.callback(Message(subject.encode(), data=body, account=self, **parts))

    def events(self, subject: str) -> list[Any]:
        """What was published there, read."""
        return [orjson.loads(body) for found, _, body in self.published if found == subject]


class FakeSession(Session):
    """A client that has logged in; it may do everything."""

    def __init__(self, account: FakeAccount | None, client_id: int = 7, **options: str) -> None:
        self.account = account
        self.client_id = client_id
        self.kind = "STANDARD"
        self.host = "127.0.0.1"
        self.start_ns = WALL_NS
        self.rtt_ns = 371_000
        self.closed_because: str | None = None
        self.in_msgs, self.in_bytes, self.out_msgs, self.out_bytes = 3, 30, 4, 40
        self.options: ClientOptions | None = ClientOptions()
        for name, value in options.items():
            setattr(self.options, name, value)
        self.identity: Identity | None = Identity(account.name) if account else None
        if account is not None:
            account.sessions.add(self)


class FakeClock:
    """A loop whose time is moved by hand."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.soon: list[Callable[[], None]] = []
        self.timers: list[tuple[float, FakeTimer]] = []

    def time(self) -> float:
        return self.now

    def call_soon(self, callback: Callable[[], None], /) -> None:
        self.soon.append(callback)

    def call_later(self, delay: float, callback: Callable[[], None], /) -> FakeTimer:
        timer = FakeTimer(callback)
        self.timers.append((self.now + delay, timer))
        return timer

    def run(self) -> None:
        while self.soon:
            ready, self.soon[:] = self.soon[:], []
            for call in ready:
                call()

    def advance(self, seconds: float) -> None:
        end = self.now + seconds
        while due := [t for t in self.timers if t[0] <= end]:
            first = min(due, key=lambda t: t[0])
            self.timers.remove(first)
            self.now = max(self.now, first[0])
            first[1].fire()
            self.run()
        self.now = end


class FakeTimer:
    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None

    def fire(self) -> None:
        if self.callback is not None:
            self.callback()


VARZ: Json = {
    "start": "2026-01-01T00:00:00Z",
    "mem": 1,
    "cores": 2,
    "cpu": 0.5,
    "connections": 3,
    "total_connections": 4,
    "subscriptions": 5,
    "out_msgs": 6,
    "out_bytes": 7,
    "in_msgs": 8,
    "in_bytes": 9,
    "out_client_msgs": 4,
    "out_client_bytes": 5,
    "in_client_msgs": 6,
    "in_client_bytes": 7,
    "slow_consumers": 0,
    "gomaxprocs": 1,
    "jetstream": {},
}


class FakePages:
    """Records its requests; `wrong` is the error of the next page."""

    def __init__(self, accounts: dict[str, FakeAccount]) -> None:
        self.accounts = accounts
        self.asked: list[tuple[str, Json]] = []
        self.wrong = ""

    def page(self, name: str, options: Json) -> Json:
        self.asked.append((name, options))
        if self.wrong:
            raise PageError(self.wrong)
        if name == "VARZ":
            return VARZ
        if name == "ACCSTATZ":
            names = options["accounts"] or tuple(self.accounts)
            found = [self.accounts[n] for n in names if n in self.accounts]
            shown = [a for a in found if a.sessions or options["include_unused"]]
            return {"account_statz": [_stat(account) for account in shown]}
        return {"page": name}


def _stat(account: FakeAccount) -> Json:
    count = len(account.sessions)
    return {"acc": account.name, "conns": count, "leafnodes": 0, "total_conns": count}


class FakeServer:
    """Accounts SYS, A, B and the global one, with the service started."""

    def __init__(self, actions: Actions | None = None) -> None:
        self.accounts = {name: FakeAccount(name) for name in ("SYS", "A", "B", "$G")}
        self.system_account = self.accounts["SYS"]
        self.jetstream = None
        self.clock = FakeClock()
        self.pages = FakePages(self.accounts)
        station = Station(self, self.system_account, Envelope(WHO), self.pages)
        self.system = System(station, actions, self.clock)
        self.system.start()

    def ask(self, subject: str, body: bytes = b"", account: str = "SYS", **parts: Any) -> Any:
        """The answers to a request, read; headers with those that have some."""
        home = self.accounts[account]
        home.watch("inbox")
        home.published.clear()
        home.request(subject, body, reply=b"inbox", **parts)
        self.clock.run()
        home.subscriptions.pop("inbox").close()
        return [
            (headers, body) if headers else orjson.loads(body)
            for found, headers, body in home.published
            if found == "inbox"
        ]

    def ask_one(self, subject: str, body: bytes = b"", account: str = "SYS", **parts: Any) -> Any:
        (answer,) = self.ask(subject, body, account, **parts)
        return answer
