"""The scanner and the writer of leaf links: what they find, and that cuts change nothing."""

from __future__ import annotations

import random
from functools import partial

import pytest
from support.native.nats import ERRORS, message_head, scan_link
from support.scans import Op
from support.scans import scan_cut as scan_in_pieces

from broker.protocols.nats.wire.wire import NAMES

scan_cut = partial(scan_in_pieces, scan_link)


def message(
    subject: bytes, reply: bytes, groups: list[bytes] | None, head: int, data: bytes, text: bytes
) -> Op:
    return ("MSG", subject, reply, groups, head, data, text)


@pytest.mark.parametrize(
    ("line", "op"),
    [
        (b"LMSG a 1\r\nx\r\n", message(b"a", b"", None, 0, b"x", b"1")),
        (b"lmsg\ta\t01\nx\r\n", message(b"a", b"", None, 0, b"x", b"01")),
        (b"LMSG a r 1\r\nx\r\n", message(b"a", b"r", None, 0, b"x", b"1")),
        (b"LMSG a | 1\r\nx\r\n", message(b"a", b"|", None, 0, b"x", b"1")),
        (b"LMSG a | q 1\r\nx\r\n", message(b"a", b"", [b"q"], 0, b"x", b"1")),
        (b"LMSG a + r 1\r\nx\r\n", message(b"a", b"r", [], 0, b"x", b"1")),
        (b"LMSG a + r q 1\r\nx\r\n", message(b"a", b"r", [b"q"], 0, b"x", b"1")),
        (b"LMSG a |  q\tp o 1\r\nx\r\n", message(b"a", b"", [b"q", b"p", b"o"], 0, b"x", b"1")),
        (b"LMSG a\r+\r\r0\r\n\r\n", message(b"a", b"+", None, 0, b"", b"0")),
        (b"LMSG a + r q\r 0\r\n\r\n", message(b"a", b"r", [b"q"], 0, b"", b"0")),
        (b"LMSG a 5\r\n\r\n\r\nx\r\n", message(b"a", b"", None, 0, b"\r\n\r\nx", b"5")),
        (b"HMSG a 1 2\r\nhx\r\n", message(b"a", b"", None, 1, b"hx", b"1 2")),
        (b"HMSG a r 01 2\r\nhx\r\n", message(b"a", b"r", None, 1, b"hx", b"01 2")),
        (b"HMSG a r 1  2\r\nhx\r\n", message(b"a", b"r", None, 1, b"hx", b"")),
        (b"HMSG a 0 2\r\nhx\r\n", message(b"a", b"", None, 0, b"hx", b"")),
        (b"HMSG a | q p 1 2\r\nhx\r\n", message(b"a", b"", [b"q", b"p"], 1, b"hx", b"1 2")),
        (b"HMSG a + r 1 2\r\nhx\r\n", message(b"a", b"r", [], 1, b"hx", b"1 2")),
        (b"HMSG a + r q 0 2\r\nhx\r\n", message(b"a", b"r", [b"q"], 0, b"hx", b"")),
        (b"LS+ a\r\n", ("LS+", b"a", None, 0)),
        (b"ls+ a.> \t q 12\n", ("LS+", b"a.>", b"q", 12)),
        (b"LS+ a q 0\r\n", ("LS+", b"a", b"q", 1)),
        (b"LS+ a q -1\r\n", ("LS+", b"a", b"q", 1)),
        (b"LS- a\r\n", ("LS-", b"a", None)),
        (b"LS- a q\r\n", ("LS-", b"a", b"q")),
        (b"LS- a q 1\r\n", ("+OK",)),
        (b"INFO {}\r\n", ("INFO", b"{}")),
        (b"CONNECT{}\r\n", ("CONNECT", b"{}")),
        (b"PING\r\n", ("PING",)),
        (b"PONGxyz 1\n", ("PONG",)),
        (b"+OK\r\n", ("+OK",)),
        (b"-ERR 'no'\r\n", ("-ERR", b"'no'")),
    ],
)
def test_one_operation(line: bytes, op: Op) -> None:
    for tail in (b"", b"L", b"PING\r\n"):
        ops, used, need, *_ = scan_link(line + tail)
        assert ops[0] == op
        assert used >= len(line)
        assert need == 0
    for cut in range(1, len(line)):
        assert scan_cut(line, [cut]) == [op]
    assert scan_cut(line, list(range(1, len(line)))) == [op]


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"X", "unknown"),
        (b"\r\n", "unknown"),
        (b" LS+ a\r\n", "unknown"),
        (b"LX", "unknown"),
        (b"LS*", "unknown"),
        (b"LS+\r\n", "unknown"),
        (b"LSUB a\r\n", "unknown"),
        (b"LMSGX", "unknown"),
        (b"PUB a 1\r\nx\r\n", "unknown"),
        (b"SUB a 1\r\n", "unknown"),
        (b"UNSUB 1\r\n", "unknown"),
        (b"MSG a 1 0\r\n\r\n", "unknown"),
        (b"HPUB a 0 0\r\n\r\n", "unknown"),
        (b"RS+ $G a\r\n", "unknown"),
        (b"A+ b\r\n", "unknown"),
        (b"\x0cS+ a\r\n", "unknown"),
        (b"LMSG a 1\r\nxx", "unknown"),
        (b"LMSG a 1\r\nx\rx", "unknown"),
        (b"LMSG a 2\r\nx\r\nPING\r\n", "unknown"),
        (b"LMSG \r\n", "silent"),
        (b"LMSG a\r\n", "silent"),
        (b"LMSG a -1\r\n", "silent"),
        (b"LMSG a 0000000001\r\n", "silent"),
        (b"LMSG a r q 1\r\n", "silent"),
        (b"LMSG a || q 1\r\n", "silent"),
        (b"LMSG a * q 1\r\n", "silent"),
        (b"HMSG a 1\r\n", "silent"),
        (b"HMSG a 3 2\r\n", "silent"),
        (b"HMSG a x 2\r\n", "silent"),
        (b"HMSG a r q 1 2\r\n", "silent"),
        (b"LS+ \r\n", "silent"),
        (b"LS+ a q\r\n", "silent"),
        (b"LS+ a q 1 2\r\n", "silent"),
        (b"LMSG a 1048577\r\n", "payload"),
        (b"HMSG a | q 1 999999999\r\n", "payload"),
        (b"LS+ " + b"a" * 65_536, "control line"),
        (b"CONNECT " + b" " * 9_000 + b"{" + b" " * 65_535 + b"\r\n", "control line"),
    ],
)
def test_one_error(data: bytes, error: str) -> None:
    expected = [("ERROR", ERRORS[error])]
    assert scan_link(data)[0] == expected
    if len(data) < 1_000:
        assert scan_cut(data, list(range(1, len(data)))) == expected


@pytest.mark.parametrize(
    "data",
    [
        b"L", b"P", b"pi", b"LM", b"LMSG", b"LMSG a", b"LMSG a 1\r", b"LMSG a 1\r\nx\r",
        b"HMSG a 1 1",
        b"LS", b"LS+", b"LS-", b"LS- a", b"CONNECT", b"INF", b"-ERR", b"+O",
        b"LS+ " + b"a" * 65_535,
    ],
)  # fmt: skip
def test_incomplete(data: bytes) -> None:
    ops, used, *_ = scan_link(data)
    assert (ops, used) == ([], 0)


def test_need_tells_the_size_of_a_message() -> None:
    line = b"LMSG a | q 1000\r\n"
    _, used, need, *_ = scan_link(b"PING\r\n" + line + b"x" * 10)
    assert (used, need) == (6, len(line) + 1000 + 2)


def test_blanks_and_ignored_bytes_do_not_pile_up() -> None:
    _, used, _, skipping, _ = scan_link(b"PING" + b"x" * 100_000)
    assert (used, NAMES[skipping]) == (100_004, "PING")
    _, used, _, _, pending = scan_link(b"LMSG" + b" " * 100_000)
    assert used == 100_004
    ops = scan_link(b" a 1\r\nx\r\n", pending=pending)[0]
    assert ops == [message(b"a", b"", None, 0, b"x", b"1")]


@pytest.mark.parametrize("name", [b"CONNECT", b"INFO"])
def test_what_changes_the_rules_ends_a_scan(name: bytes) -> None:
    line = b"PING\r\n" + name + b" {}\r\n"
    ops, used, *_ = scan_link(line + b"PING\r\n")
    assert [op[0] for op in ops] == ["PING", name.decode()]
    assert used == len(line)


def test_an_error_of_the_peer_does_not_end_anything() -> None:
    assert [op[0] for op in scan_link(b"-ERR 'x'\r\nPING\r\n")[0]] == ["-ERR", "PING"]


@pytest.mark.parametrize("run_max", [1, 2, 512])
@pytest.mark.parametrize("size", [0, 1, 16, 300])
def test_runs_are_what_their_messages_are(run_max: int, size: int) -> None:
    messages = [(b"%d" % i * size)[:size] for i in range(10)]
    line = b"LMSG subject + reply q1 q2 %d\r\n" % size
    data = b"".join(line + body + b"\r\n" for body in messages)
    data += b"LMSG other %d\r\n" % size + b"y" * size + b"\r\n"
    ops = scan_cut(data, [], run_max=run_max)
    assert [op[5] for op in ops] == [*messages, b"y" * size]
    assert {(op[2], tuple(op[3])) for op in ops[:-1]} == {(b"reply", (b"q1", b"q2"))}
    assert (ops[-1][1], ops[-1][3]) == (b"other", None)


def test_a_run_ends_before_a_broken_message() -> None:
    data = b"LMSG a 1\r\nx\r\n" * 3 + b"LMSG a 1\r\nx\n\n"
    assert [op[0] for op in scan_link(data)[0]] == ["MSG"] * 3 + ["ERROR"]


def test_cuts_anywhere_change_nothing() -> None:
    rng = random.Random(7)
    pieces = [
        b"LMSG a 5\r\nhello\r\n",
        b"LMSG a.b r 0\r\n\r\n",
        b"LMSG a.b + r q1 q2 1\r\nx\r\n",
        b"HMSG a | q 3 8\r\nabcdefgh\r\n",
        b"LS+ a.* q 12\r\n",
        b"ls- a.*\n",
        b"PING\r\n",
        b"PONGGG\n",
        b"+OK\r\n",
        b"INFO {}\r\n",
        b"-ERR 'x'\r\n",
        b"LMSG  " + b" " * 80 + b"b 1\r\nz\r\n",
        b"LS+" + b"\t" * 200 + b"b\r\n",
    ]
    for _ in range(200):
        data = b"".join(
            piece * rng.randint(1, 4) for piece in rng.choices(pieces, k=rng.randint(1, 12))
        )
        whole = scan_cut(data, [])
        cuts = [rng.randrange(len(data)) for _ in range(rng.randint(1, 20))]
        assert scan_cut(data, cuts, run_max=rng.choice([1, 2, 512])) == whole


@pytest.mark.parametrize("reply", [b"", b"r"])
@pytest.mark.parametrize("groups", [[], [b"q"], [b"q1", b"q2"]])
@pytest.mark.parametrize("headers_len", [0, 3])
@pytest.mark.parametrize("text", [True, False])
def test_what_is_written_is_what_is_read(
    reply: bytes, groups: list[bytes], headers_len: int, *, text: bool
) -> None:
    size = b"3 07" if headers_len else b"07"
    line = message_head(b"a.b", reply, groups, headers_len, 7, size if text else None)
    assert line is not None
    ((_, subject, got_reply, got_groups, got_headers, data, got_size),) = scan_link(
        line + b"abcdefg\r\n"
    )[0]
    assert (subject, got_reply, got_groups or []) == (b"a.b", reply, groups)
    assert (got_headers, data) == (headers_len, b"abcdefg")
    assert got_size == (size if text else size.replace(b"0", b""))


def test_headers_are_left_out_for_a_peer_without() -> None:
    assert message_head(b"a", b"", [], 3, 7, b"3 7", headers=False) == b"LMSG a 4\r\n"


@pytest.mark.parametrize("bad", [b"a\rb", b"\nb", b""])
def test_subjects_that_would_break_the_line_stay_here(bad: bytes) -> None:
    assert message_head(bad, b"", [], 0, 1) is None
    if bad:
        assert message_head(b"a", bad, [], 0, 1) is None
