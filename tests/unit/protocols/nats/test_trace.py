"""What the log shows of connections, and what must not be in it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from support.fakes.log import WHO, session

from broker.base import logs
from broker.protocols.nats.trace import Tracer, redacted, who
from broker.protocols.nats.wire.wire import NAMES

KINDS = {name: kind for kind, name in NAMES.items()}
NOTHING = (b"", b"", b"")


@pytest.fixture(autouse=True)
def traced(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logs.TRACE, "broker.nats")


def received(tracer: Tracer, op: str, *words: bytes, data: bytes = b"", count: int = 0) -> None:
    subject, reply, text = words or NOTHING
    tracer.received(session(), KINDS[op], (subject, reply, text), data, count)


def test_operations(caplog: pytest.LogCaptureFixture) -> None:
    tracer = Tracer(0, "$SYS")
    received(tracer, "PUB", b"foo", b"", b"5", data=b"he\x01lo", count=1)
    received(tracer, "PUB", b"foo", b"rep", b"12 12", data=b"NATS/1.0\r\n\r\n", count=1)
    received(tracer, "SUB", b"foo", b"", b"1")
    received(tracer, "SUB", b"foo", b"q", b"1")
    received(tracer, "UNSUB", b"", b"", b"1")
    received(tracer, "UNSUB", b"", b"", b"1", count=5)
    received(tracer, "PING")
    tracer.sent(session(), b"MSG foo 1 rep 0\r\n", 2)
    tracer.sent(session(), b"+OK\r\n")
    tracer.sent(session(), b"-ERR 'Invalid Subject'\r\n")
    tracer.sent(session(), b"INFO {}\r\n")
    assert [message.removeprefix(f"{WHO} - ") for message in caplog.messages] == [
        "<<- [PUB foo 5]",
        r'<<- MSG_PAYLOAD: ["he\x01lo"]',
        "<<- [HPUB foo rep 12 12]",
        r'<<- MSG_PAYLOAD: ["NATS/1.0\r\n\r\n"]',
        "<<- [SUB foo 1]",
        "<<- [SUB foo q 1]",
        "<<- [UNSUB 1]",
        "<<- [UNSUB 1 5]",
        "<<- [PING]",
        "->> [MSG foo 1 rep 0]",
        "->> [MSG foo 1 rep 0]",
        "->> [OK]",
        "->> [-ERR Invalid Subject]",
    ]
    assert {record.levelno for record in caplog.records} == {logs.TRACE}


def test_long_payloads_are_cut(caplog: pytest.LogCaptureFixture) -> None:
    tracer = Tracer(5, "")
    received(tracer, "PUB", b"a", b"", b"5", data=b"12345", count=1)
    received(tracer, "PUB", b"a", b"", b"6", data=b"123456", count=1)
    assert caplog.messages[1].endswith('["12345"]')
    assert caplog.messages[3].endswith('["12345..."]')


@pytest.mark.parametrize(("silent", "lines"), [("$SYS", 0), ("", 2)])
def test_the_system_account(silent: str, lines: int, caplog: pytest.LogCaptureFixture) -> None:
    system = session(account=SimpleNamespace(name="$SYS"))
    tracer = Tracer(0, silent)
    tracer.received(system, KINDS["PING"], NOTHING, b"", 0)
    tracer.sent(system, b"PONG\r\n")
    assert len(caplog.messages) == lines


def test_secrets_stay_out(caplog: pytest.LogCaptureFixture) -> None:
    raw = (
        b'{"user":"joe","pass":"s\\"1","Auth_Token":"s2","jwt":"s3","sig":"s4","p\\u0061SS":"s5",'
        b'"nkey":"UA","verbose":false}'
    )
    received(Tracer(0, ""), "CONNECT", data=raw)
    shown = '"pass":"-","Auth_Token":"-","jwt":"-","sig":"-","paSS":"-"'.replace("-", "[REDACTED]")
    assert caplog.messages == [
        f'{WHO} - <<- [CONNECT {{"user":"joe",{shown},"nkey":"UA","verbose":false}}]'
    ]


@pytest.mark.parametrize("options", [b'{"pass":"s', b'["s"]', b"\xff", b"", b"[" * 100_000])
def test_what_is_no_object_is_not_shown(options: bytes) -> None:
    assert redacted(options) == "[REDACTED]"


def test_empty_secrets_are_no_secrets() -> None:
    assert redacted(b'{"pass":"","jwt":null}') == '{"pass":"","jwt":null}'


def test_names_of_connections() -> None:
    assert who(session()) == WHO
    assert who(session(kind="WEBSOCKET", host="::1")) == "[::1]:4 - wid:5"
