"""`twinwire pub` and `twinwire sub` as programs."""

from __future__ import annotations

import signal
from typing import Any

import pytest
from support import Server
from support.clients.http import nsq_topic

WAIT_S = 30.0
Run = Any


def _pub(tool: Run, server: Server, topic: str, data: bytes, *more: str) -> None:
    process = tool("pub", topic, "--nsqd-tcp-address", str(server.nsq), *more)
    out, err = process.communicate(data, WAIT_S)
    assert (process.returncode, out, err) == (0, b"", b"")


def _sub(tool: Run, server: Server, *arguments: str) -> bytes:
    process = tool("sub", "--nsqd-tcp-address", str(server.nsq), *arguments)
    out: bytes
    out, err = process.communicate(timeout=WAIT_S)
    assert (process.returncode, err) == (0, b"")
    return out


def test_lines_of_stdin_and_back(tool: Run, server: Server, uniq: str) -> None:
    """Empty lines are left out, and an unterminated last line stays whole."""
    _pub(tool, server, uniq, b"one\n\ntwo\r\nthree")
    out = _sub(tool, server, uniq, "--channel", "ch", "-n", "3", "--print-topic")
    lines = sorted(out.split(b"\n"))
    topic = uniq.encode()
    assert lines == [b"", topic + b" | one", topic + b" | three", topic + b" | two\r"]


def test_more_than_asked_for_stays(tool: Run, server: Server, uniq: str) -> None:
    _pub(tool, server, uniq, b"".join(b"%d\n" % n for n in range(5000)))
    first = _sub(tool, server, uniq, "--channel", "ch", "-n", "7")
    rest = _sub(tool, server, uniq, "--channel", "ch", "-n", "4993")
    assert first.count(b"\n") == 7
    assert sorted((first + rest).split(), key=int) == [b"%d" % n for n in range(5000)]


def test_arguments_and_delimiter(tool: Run, server: Server, uniq: str) -> None:
    _pub(tool, server, uniq, b"a\0\0b\0c", "--delimiter", "\\0")
    arguments = ("first", "sécond", "--nsqd-tcp-address", str(server.nsq))
    process = tool("pub", uniq, *arguments)
    assert process.wait(WAIT_S) == 0
    out = _sub(tool, server, uniq, "--channel", "ch", "-n", "5")
    assert sorted(out.split()) == sorted([b"a", b"b", b"c", b"first", "sécond".encode()])


def test_nobody_listens(tool: Run, uniq: str) -> None:
    process = tool("pub", uniq, "x", "--nsqd-tcp-address", "127.0.0.1:1")
    _, err = process.communicate(timeout=WAIT_S)
    assert process.returncode == 1
    assert b"127.0.0.1:1" in err


def test_a_refused_message(tool: Run, server: Server, uniq: str) -> None:
    process = tool("pub", uniq, "--nsqd-tcp-address", str(server.nsq))
    _, err = process.communicate(b"ok\n" + b"x" * 1_100_000 + b"\n", WAIT_S)
    assert process.returncode == 1
    assert b"E_BAD_MESSAGE PUB message too big" in err
    assert nsq_topic(server.nsq_http, uniq)["message_count"] == 1


@pytest.mark.parametrize("arguments", [("pub", "bad*"), ("sub", "t"), ("sub", "t t")])
def test_wrong_use(tool: Run, arguments: tuple[str, ...]) -> None:
    process = tool(*arguments)
    process.communicate(timeout=WAIT_S)
    assert process.returncode == 2


def test_a_signal_ends_both(tool: Run, server: Server, uniq: str) -> None:
    sub = tool("sub", "--nsqd-tcp-address", str(server.nsq), uniq)
    pub = tool("pub", uniq, "--nsqd-tcp-address", str(server.nsq))
    assert pub.stdin is not None
    pub.stdin.write(b"one\nhalf")
    pub.stdin.flush()
    _pub(tool, server, uniq, b"two")
    assert sorted([sub.stdout.readline(), sub.stdout.readline()]) == [b"one\n", b"two\n"]
    for process in (sub, pub):
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == 0
