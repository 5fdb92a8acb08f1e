"""Imports without sockets: the clock, the bounds and the ends are in our hands.

The asker is $G, where peers log in; the exporter E is spoken to as the server itself does.
"""

from __future__ import annotations

from typing import Any

import pytest
from support.fakes.loop import FakeNats

from broker.base import units
from broker.protocols.nats import limits
from broker.protocols.nats.accounts import import_rules as rules
from broker.protocols.nats.accounts.account import Account
from broker.protocols.nats.accounts.exports import Exchange
from broker.protocols.nats.settings import (
    GLOBAL_ACCOUNT,
    SYSTEM_ACCOUNT,
    Destination,
    Export,
    Import,
    Mapping,
)
from broker.protocols.nats.settings import Account as Config
from broker.routing.local import publish

MS = units.MS


class Exchanged(FakeNats):
    """A frontend whose accounts exchange what a test configures."""

    def __init__(self, *exports: Export, imports: tuple[Import, ...] | None = None) -> None:
        super().__init__()
        self.exchange = Exchange(
            self.loop.turn, self.current_publisher, server_name="here", system_account="S"
        )
        self.exporter = Account("E", self.loop.turn, self.current_publisher)
        self.asked: list[Any] = []
        for account in (self.account, self.exporter):
            self.exchange.join(account)
        if imports is None:
            imports = tuple(Import("E", export.subject, export.service) for export in exports)
        self.configure(exports, imports)

    def configure(self, exports: tuple[Export, ...], imports: tuple[Import, ...]) -> None:
        configs = [Config("E", exports=exports), Config(GLOBAL_ACCOUNT, imports=imports)]
        self.exchange.configure(configs)

    def serve(self, subject: bytes) -> None:
        self.exporter.listen(subject, self.asked.append)

    def answer(self, number: int, data: bytes = b"y") -> None:
        self.exporter.publish(self.asked[number].reply, data)
        self.loop.run()

    def ask(self, subject: bytes, reply: bytes) -> None:
        self.account.publish(subject, b"x", reply)
        self.loop.run()

    @property
    def open(self) -> tuple[int, int]:
        """Responses that E owes, and that $G waits for."""
        owed, waited = (self.exchange.members[n].waiting for n in ("E", GLOBAL_ACCOUNT))
        assert owed[1] == waited[0] == 0
        return owed[0], waited[1]


SERVICE = Export("svc", True)


def test_open_responses_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "NATS_RESPONSES_OPEN", 3)
    nats = Exchanged(SERVICE)
    nats.serve(b"svc")
    peer = nats.dial()
    peer.send(b"SUB inbox.* 1\r\n")
    for number in range(5):
        nats.ask(b"svc", b"inbox.%d" % number)
    assert nats.open == (3, 3)
    for number in range(5):
        nats.answer(number)
    assert peer.take() == b"".join(b"MSG inbox.%d 1 1\r\ny\r\n" % n for n in (2, 3, 4))
    assert nats.open == (0, 0)


@pytest.mark.parametrize("kind", ["singleton", "stream", "chunked"])
def test_the_threshold(kind: str) -> None:
    nats = Exchanged(Export("svc", True, response_type=kind, threshold_ns=100 * MS))
    nats.serve(b"svc")
    peer = nats.dial()
    peer.send(b"SUB inbox 1\r\n")
    nats.ask(b"svc", b"inbox")
    nats.loop.advance(60 * MS)
    nats.ask(b"svc", b"inbox")
    nats.loop.advance(30 * MS)
    if kind != "singleton":
        nats.answer(0)  # the time begins anew
        assert peer.take()
    nats.loop.advance(20 * MS)
    assert nats.open == ((1, 1) if kind == "singleton" else (2, 2))
    nats.loop.advance(50 * MS)
    assert nats.open == ((0, 0) if kind == "singleton" else (1, 1))
    nats.loop.advance(100 * MS)
    assert nats.open == (0, 0)
    for number in (0, 1):
        nats.answer(number)
    assert peer.take() == b""


def test_an_answer_that_nobody_takes_is_the_last() -> None:
    nats = Exchanged(Export("svc", True, response_type="stream"))
    nats.serve(b"svc")
    nats.ask(b"svc", b"inbox")
    assert nats.open == (1, 1)
    nats.answer(0)
    assert nats.open == (0, 0)


def test_a_request_that_nobody_takes_leaves_nothing() -> None:
    nats = Exchanged(SERVICE)
    nats.ask(b"svc", b"inbox")
    assert nats.open == (0, 0)


@pytest.mark.parametrize("slots", [1, 7, 1_000])
def test_lost_interest_is_found_a_few_at_a_time(
    monkeypatch: pytest.MonkeyPatch, slots: int
) -> None:
    monkeypatch.setattr(limits, "NATS_REPLY_CHECKS", slots)
    nats = Exchanged(SERVICE)
    nats.serve(b"svc")
    peer, other = nats.dial(), nats.dial()
    peer.send(b"SUB one.* 1\r\nSUB two.* 2\r\nSUB one.1.> 3\r\n")
    other.send(b"SUB one.5 1\r\n")
    for number in range(20):
        nats.ask(b"svc", b"one.%d" % number)
        nats.ask(b"svc", b"two.%d" % number)
    assert nats.open == (40, 40)
    peer.send(b"UNSUB 1\r\n")
    assert nats.open == (21, 21)
    other.leave()
    assert nats.open == (20, 20)
    peer.leave()
    assert nats.open == (0, 0)


def test_a_reply_that_runs_out() -> None:
    """SUB, UNSUB 1 and PUB, as clients ask: the answer ends all of it."""
    nats = Exchanged(SERVICE)
    nats.serve(b"svc")
    peer = nats.dial()
    peer.send(b"SUB inbox 1\r\nUNSUB 1 1\r\nPUB svc inbox 1\r\nx\r\n")
    nats.answer(0)
    assert peer.take() == b"MSG inbox 1 1\r\ny\r\n"
    assert nats.open == (0, 0)


def test_nothing_is_left_of_an_account() -> None:
    nats = Exchanged(SERVICE, Export("ev.>", False))
    nats.serve(b"svc")
    size = nats.exporter.router.size
    peer = nats.dial()
    peer.send(b"SUB > 1\r\n")
    assert nats.exporter.router.size == size + 1
    nats.ask(b"svc", b"inbox")
    assert nats.open == (1, 1)
    assert nats.exporter.router.size == size + 2  # and the answers' one
    nats.exchange.leave("E")
    assert nats.exchange.members[GLOBAL_ACCOUNT].waiting == (0, 0)
    assert nats.exporter.router.size == size
    assert nats.router.size == 1
    nats.ask(b"svc", b"inbox")
    assert len(nats.asked) == 1


def test_nothing_is_left_of_a_server(caplog: pytest.LogCaptureFixture) -> None:
    nats = Exchanged(SERVICE, Export("ev.>", False))
    nats.dial().send(b"SUB > 1\r\n")
    nats.serve(b"svc")
    nats.ask(b"svc", b"inbox")
    nats.exchange.close()
    assert nats.exporter.router.size == 1
    assert nats.router.size == 1
    assert caplog.text == ""


def test_an_account_that_comes_later() -> None:
    nats = Exchanged(SERVICE)
    late = Account("L", nats.loop.turn, nats.current_publisher)
    imports = (Import("L", "more", service=True), Import("L", "ev", service=False))
    nats.exchange.update(Config(GLOBAL_ACCOUNT, imports=imports))
    peer = nats.dial()
    peer.send(b"SUB ev 1\r\n")
    nats.exchange.join(late)
    assert nats.router.size == 1
    nats.exchange.update(Config("L", exports=(Export("more", True), Export("ev", False))))
    assert nats.router.size == 2
    late.publish(b"ev", b"1")
    nats.loop.run()
    assert peer.take() == b"MSG ev 1 1\r\n1\r\n"


def test_what_does_not_change_is_left_alone() -> None:
    stream = Export("ev.>", False)
    nats = Exchanged(SERVICE, stream)
    member = nats.exchange.members[GLOBAL_ACCOUNT]
    peer = nats.dial()
    peer.send(b"SUB ev.x 1\r\n")
    services, streams = list(member.services), list(member.streams)
    inserts = nats.exporter.router.inserts, nats.router.inserts
    imports = (Import("E", "svc", service=True), Import("E", "ev.>", service=False))
    nats.configure((SERVICE, stream, Export("other", True)), imports)
    assert (member.services, member.streams) == (services, streams)
    assert (nats.exporter.router.inserts, nats.router.inserts) == inserts
    nats.configure((SERVICE,), imports)
    assert nats.exporter.router.size == 0
    nats.configure((), ())
    assert nats.router.size == 1


def test_an_answer_outlives_the_export() -> None:
    nats = Exchanged(SERVICE)
    nats.serve(b"svc")
    peer = nats.dial()
    peer.send(b"SUB inbox 1\r\n")
    nats.ask(b"svc", b"inbox")
    nats.configure((), ())
    nats.configure((), ())
    nats.answer(0)
    assert peer.take() == b"MSG inbox 1 1\r\ny\r\n"


@pytest.mark.parametrize("order", [1, -1], ids=["first in", "last in"])
def test_many_requests_wait_on_one_reply(order: int) -> None:
    nats = Exchanged(SERVICE)
    nats.serve(b"svc")
    peer = nats.dial()
    peer.send(b"SUB inbox 1\r\nSUB inbox 2\r\nSUB other.* 3\r\n")
    for number in range(100):
        nats.ask(b"svc", b"inbox" if number % 10 else b"other.%d" % number)
    for number in list(range(100))[::order][:50]:
        nats.answer(number)
    assert peer.take().count(b"MSG inbox 1 1\r\n") == 45
    assert nats.open == (50, 50)
    peer.send(b"UNSUB 1\r\n")  # the other one still listens
    nats.loop.run()
    assert nats.open == (50, 50)
    peer.send(b"UNSUB 2\r\n")
    nats.loop.run()
    assert nats.open == (5, 5)


def test_acks_keep_their_reply() -> None:
    nats = Exchanged(SERVICE)
    nats.serve(b"svc")
    nats.ask(b"svc", b"$JS.ACK.x.y")
    assert nats.asked[0].reply == b"$JS.ACK.x.y"
    assert nats.open == (0, 0)


TRUE = b'Nats-Request-Info: {"acc":"$G","rtt":1}\r\n'
FORGED = b'Nats-Request-Info: {"acc":"ADMIN","user":"root"}\r\n'


def heard(asked: Any) -> bytes:
    """The headers of a request; they hold one Nats-Request-Info: the true one, in front."""
    block: bytes = asked.headers
    assert block.startswith(b"NATS/1.0\r\n" + TRUE)
    assert b"ADMIN" not in block
    return block.removeprefix(b"NATS/1.0\r\n" + TRUE)


@pytest.mark.parametrize(
    ("block", "left"),
    [
        (FORGED, b""),
        (FORGED * 3, b""),
        (b"A: b\r\n" + FORGED + b"C: d\r\n", b"A: b\r\nC: d\r\n"),
        (b"X: Nats-Request-Info\r\n" + FORGED, b"X: Nats-Request-Info\r\n"),
        (b"X: a Nats-Request-Info: b\r\n" + FORGED, b"X: a Nats-Request-Info: b\r\n"),
        (FORGED.lower().replace(b"admin", b"ADMIN"), b""),
        (FORGED.upper(), b""),
        (FORGED.replace(b":", b" \t:", 1), b""),
        (FORGED.replace(b":", b"\xc2\xa0:", 1), b""),
        (b"A: b\r\n " + FORGED, b"A: b\r\n"),
        (b"A: b\n" + FORGED + b"C: d\r\n", b"A: b\nC: d\r\n"),
        (b"A: b\r" + FORGED, b"A: b\r"),
        (b"A: b\r\n" + FORGED[:-2] + b"\nC: d\r\n", b"A: b\r\nC: d\r\n"),
        (b'Nats-Request-Info: {\r\n "acc":\r\n\t"ADMIN"}\r\nC: d\r\n', b"C: d\r\n"),
        (b"\r\n" + FORGED, b"\r\n"),
        (b"X-Nats-Request-Info: y\r\n", b"X-Nats-Request-Info: y\r\n"),
    ],
    ids=str,
)
def test_who_asks_cannot_be_forged(block: bytes, left: bytes) -> None:
    nats = Exchanged(SERVICE)
    nats.serve(b"svc")
    block = b"NATS/1.0\r\n" + block + b"\r\n"
    peer = nats.dial()
    peer.send(b'CONNECT {"headers":true,"verbose":false}\r\n')
    peer.send(b"HPUB svc %d %d\r\n%bx\r\n" % (len(block), len(block) + 1, block))
    assert heard(nats.asked[0]) == left + b"\r\n"
    assert nats.asked[0].data == b"x"


@pytest.mark.parametrize(
    "block",
    [
        b"",
        b"\r\n",
        b"NATS/1.0",
        b"NATS/1.0\r\n",
        b"NATS/1.0\r" + FORGED,
        b"NATS/1.0\n" + FORGED,
        FORGED,
    ],
    ids=str,
)
def test_a_block_that_is_none_says_who_asks(block: bytes) -> None:
    nats = Exchanged(SERVICE)
    nats.serve(b"svc")
    peer = nats.dial()
    peer.send(b'CONNECT {"headers":true,"verbose":false}\r\n')
    peer.send(b"HPUB svc %d %d\r\n%bx\r\n" % (len(block), len(block) + 1, block))
    assert heard(nats.asked[0]) == b"\r\n"


def test_what_the_server_passes_on_is_its_own() -> None:
    """Through three accounts: each gets what the one before got from us."""
    nats = FakeNats()
    exchange = Exchange(nats.loop.turn, nats.current_publisher, server_name="here")
    accounts = [
        nats.account,
        *(Account(n, nats.loop.turn, nats.current_publisher) for n in ("B", "C")),
    ]
    for account in accounts:
        exchange.join(account)
    exchange.configure(
        [
            Config(GLOBAL_ACCOUNT, imports=(Import("B", "svc", service=True),)),
            Config("B", exports=(SERVICE,), imports=(Import("C", "svc", service=True),)),
            Config("C", exports=(SERVICE,)),
        ]
    )
    asked: list[Any] = []
    accounts[2].listen(b"svc", asked.append)
    peer = nats.dial()
    peer.send(b'CONNECT {"headers":true,"verbose":false}\r\n')
    block = b"NATS/1.0\r\nX: Nats-Request-Info\r\n" + FORGED * 2 + b"\r\n"
    peer.send(b"HPUB svc %d %d\r\n%bx\r\n" % (len(block), len(block) + 1, block))
    assert asked[0].headers == (
        b'NATS/1.0\r\nNats-Request-Info: {"acc":"$G","svc":"B","rtt":1}\r\n'
        b"X: Nats-Request-Info\r\n\r\n"
    )


def test_a_request_of_the_server_says_nothing_about_a_client() -> None:
    nats = Exchanged(SERVICE)
    nats.serve(b"svc")
    nats.account.publish(b"svc", b"x", b"inbox", b"NATS/1.0\r\n" + FORGED + b"A: b\r\n\r\n")
    nats.loop.run()
    assert nats.asked[0].headers == b"NATS/1.0\r\nA: b\r\n\r\n"


def test_what_the_server_itself_asks_names_nobody() -> None:
    nats = Exchanged(SERVICE)
    nats.serve(b"svc")
    nats.ask(b"svc", b"inbox")
    assert nats.asked[0].headers == b""
    peer = nats.dial()
    peer.send(b"PUB svc 1\r\nx\r\n")
    assert nats.asked[1].headers == (b'NATS/1.0\r\nNats-Request-Info: {"acc":"$G","rtt":1}\r\n\r\n')


def test_the_system_account_gets_the_server() -> None:
    nats = Exchanged(SERVICE, imports=())
    system = Account("S", nats.loop.turn, nats.current_publisher)
    nats.exchange.join(system)
    heard: list[Any] = []
    system.listen(b">", heard.append)
    nats.exchange.update(
        Config(GLOBAL_ACCOUNT, imports=(Import("S", "$SYS.REQ.USER.me.INFO", True, to="who"),))
    )
    nats.dial().send(b"PUB who 1\r\nx\r\n")
    assert heard[0].subject == b"$SYS.REQ.USER.me.INFO"
    assert heard[0].headers == (
        b'NATS/1.0\r\nNats-Request-Info: {"acc":"$G","rtt":1,"server":"here"}\r\n\r\n'
    )


def test_a_long_chain_ends(caplog: pytest.LogCaptureFixture) -> None:
    nats = FakeNats()
    exchange = Exchange(nats.loop.turn, nats.current_publisher)
    count = limits.NATS_IMPORT_CHAIN + 2
    accounts = [Account(f"A{i}", nats.loop.turn, nats.current_publisher) for i in range(count)]
    heard: list[Any] = []
    configs = []
    for number, account in enumerate(accounts):
        exchange.join(account)
        account.listen(b"x", heard.append)
        taken = (Import(f"A{number + 1}", "x", service=True),) if number + 1 < count else ()
        configs.append(Config(account.name, exports=(Export("x", True),), imports=taken))
    exchange.configure(configs)
    accounts[0].publish(b"x", b"1", b"reply")
    nats.loop.run()
    assert len(heard) == limits.NATS_IMPORT_CHAIN + 1
    assert "a request was handed on by more than" in caplog.text


def test_a_stream_import_of_a_run() -> None:
    """Equal messages in one read: all of them arrive, in order, under the subject here."""
    nats = Exchanged(Export("ev", False), imports=(Import("E", "ev", False, to="here"),))
    peer = nats.dial()
    peer.send(b"SUB here 1\r\n")
    for number in range(300):
        nats.exporter.publish(b"ev", b"%d" % number)
    nats.loop.run()
    got = peer.take()
    assert got == b"".join(
        b"MSG here 1 %d\r\n%d\r\n" % (len(str(number)), number) for number in range(300)
    )


def test_imports_that_cannot_be_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    nats = Exchanged(
        SERVICE,
        Export("a.*.*", False),
        imports=(
            Import("E", "not.exported", service=True),
            Import("NOBODY", "svc", service=True),
            Import("E", "a.*.*", service=False, to="b.$1"),
            Import("E", "svc", service=True),
        ),
    )
    member = nats.exchange.members[GLOBAL_ACCOUNT]
    assert [service.exported_subject for service in member.services] == [b"svc"]
    assert member.streams == []
    assert caplog.text.count("import of") == 3


def test_a_service_of_two_accounts() -> None:
    """Both get the request, and both answers arrive; without either nobody serves it."""
    nats = Exchanged(SERVICE)
    second = Account("F", nats.loop.turn, nats.current_publisher)
    nats.exchange.join(second)
    nats.exchange.configure(
        [
            Config("E", exports=(SERVICE,)),
            Config("F", exports=(SERVICE,)),
            Config(
                GLOBAL_ACCOUNT,
                imports=(Import("E", "svc", service=True), Import("F", "svc", service=True)),
            ),
        ]
    )
    heard: list[bytes] = []
    nats.account.listen(b"in", lambda message: heard.append(message.data))
    assert nats.account.publish(b"svc", b"x", b"in") == 0
    nats.serve(b"svc")
    nats.ask(b"svc", b"in")
    second.listen(b"svc", nats.asked.append)
    nats.ask(b"svc", b"in")
    assert [message.account.name for message in nats.asked] == ["E", "E", "F"]
    for message, data in zip(nats.asked, (b"1", b"2", b"3"), strict=True):
        message.account.publish(message.reply, data)
    nats.loop.run()
    assert heard == [b"1", b"2", b"3"]


def test_mappings_that_cannot_be_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    nats = Exchanged()
    good = Mapping("a", (Destination("b"),))
    wrong = Mapping("c", (Destination("$1"),))
    nats.exchange.update(Config("E", mappings=(wrong, good)))
    assert nats.exporter.mapper is not None
    assert nats.exporter.mapper(b"a") == (b"b", False)
    assert nats.exporter.mapper(b"c") == (b"c", False)
    (line,) = caplog.records
    assert line.getMessage() == (
        'Error adding subject mapping "c" for account [E]: '
        "invalid mapping destination: wildcard index out of range in $1"
    )
    assert line.exc_info is None


def test_mappings_stay_while_another_one_cannot_be() -> None:
    nats = Exchanged()
    nats.exchange.update(
        Config("E", mappings=(Mapping("a", (Destination("b"),)), Mapping("c", (Destination("d"),))))
    )
    wrong = Mapping("c", (Destination("$1"),))
    nats.exchange.update(Config("E", mappings=(wrong, Mapping("e", (Destination("f"),)))))
    assert nats.exporter.mapper is not None
    assert [nats.exporter.mapper(subject)[0] for subject in (b"a", b"c", b"e")] == [
        b"b",
        b"d",
        b"f",
    ]
    nats.exchange.update(Config("E", mappings=(Mapping("e", (Destination("f"),)),)))
    assert [nats.exporter.mapper(subject)[0] for subject in (b"a", b"c", b"e")] == [
        b"a",
        b"c",
        b"f",
    ]


# --- who may import what --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("exports", "subject", "allowed"),
    [
        ((Export("a.>", True),), "a.b", True),
        ((Export("a.>", True),), "a.>", True),
        ((Export("a.>", True),), "a.*.c", True),
        ((Export("a.*", True),), "a.>", False),
        ((Export("a.b", True),), "a.*", False),
        ((Export("a.b", False),), "a.b", False),
        ((Export("a", True, accounts=("ME",)),), "a", True),
        ((Export("a", True, accounts=("YOU",)),), "a", False),
        ((Export("a", True, accounts=("YOU",)), Export("a", True, accounts=("ME",))), "a", True),
        ((Export("a", True, accounts=()),), "a", False),
        ((Export("a.*", True, token_position=2),), "a.ME", True),
        ((Export("a.*", True, token_position=2),), "a.YOU", False),
        ((Export("a.*", True, token_position=2),), "a.*", False),
        ((Export("a.b", True),), "a..b", False),
        ((), "a", False),
    ],
)
def test_what_may_be_imported(exports: tuple[Export, ...], subject: str, allowed: bool) -> None:
    assert rules.may_import("ME", Import("E", subject, service=True), exports) == allowed


def test_a_token_opens_what_is_private() -> None:
    taken = Import("E", "a", service=True, granted=True)
    assert rules.may_import("ME", taken, (Export("a", True, accounts=()),))


def test_three_wildcards_in_another_order() -> None:
    here, forth, back = rules.stream_transform(
        Import("E", "x.*.*.*", service=False, to="in.$2.$3.$1")
    )
    assert here == "in.*.*.*"
    assert forth is not None
    assert back is not None
    assert forth(b"x.a.b.c") == b"in.b.c.a"
    assert back(b"in.b.c.a") == b"x.a.b.c"
    here, there = rules.service_transform(Import("E", "x.*.*.*", service=True, to="in.$2.$3.$1"))
    assert here == "in.*.*.*"
    assert there is not None
    assert there(b"in.b.c.a") == b"x.a.b.c"


def test_the_system_accounts_own_exports_come_first() -> None:
    own = (Export("$SYS.REQ.USER.>", True, accounts=("ME",)),)
    assert SYSTEM_ACCOUNT == "$SYS"
    assert {e.subject for e in rules.system_exports(own)} == {
        "$SYS.REQ.ACCOUNT.*.CONNZ",
        "$SYS.REQ.ACCOUNT.*.STATZ",
        "$SYS.DEBUG.SUBSCRIBERS",
    }


def test_a_request_between_reads_is_not_the_last_clients() -> None:
    """What routes by itself when a turn ends, as logs do, names nobody."""
    nats = Exchanged(SERVICE)
    nats.serve(b"svc")
    peer = nats.dial()
    peer.send(b"PUB svc 1\r\nx\r\n")
    assert b"Nats-Request-Info" in nats.asked[0].headers
    publish(nats.router, b"svc", b"x")
    nats.loop.run()
    assert nats.asked[1].headers == b""
    peer.leave()
    publish(nats.router, b"svc", b"x")
    nats.loop.run()
    assert nats.asked[2].headers == b""
