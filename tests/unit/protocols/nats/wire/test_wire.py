"""The scanner: what it finds, and that cuts between reads change nothing."""

from __future__ import annotations

import random
from functools import partial
from typing import Any

import pytest
from support.native.nats import ERRORS, scan_client
from support.scans import scan_cut as scan_in_pieces

from broker.protocols.nats.wire.wire import NAMES

PENDING_PUB = 1


scan_cut = partial(scan_in_pieces, scan_client)


@pytest.mark.parametrize(
    ("line", "op"),
    [
        (b"PUB a 1\r\nx\r\n", ("PUB", b"a", b"", b"1", 0, b"x")),
        (b"PUB a 1\nx\r\n", ("PUB", b"a", b"", b"1", 0, b"x")),
        (b"pUb \t a\tr  001 \t\r\nx\r\n", ("PUB", b"a", b"r", b"001", 0, b"x")),
        (b"PUB a\rb 0\r\n\r\n", ("PUB", b"a\rb", b"", b"0", 0, b"")),
        (b"PUB a 5\r\n\r\n\r\nx\r\n", ("PUB", b"a", b"", b"5", 0, b"\r\n\r\nx")),
        (b"HPUB a 1 2\r\nhx\r\n", ("PUB", b"a", b"", b"1 2", 1, b"hx")),
        (b"HPUB a r 02 \t 2\r\nhx\r\n", ("PUB", b"a", b"r", b"02 \t 2", 2, b"hx")),
        (b"HPUB a 0 02\r\nhx\r\n", ("PUB", b"a", b"", b"02", 0, b"hx")),
        (b"SUB a 1\r\n", ("SUB", b"a", None, b"1")),
        (b"sub a\rq\r 1\n", ("SUB", b"a", b"q", b"1")),
        (b"UNSUB 1\r\n", ("UNSUB", b"1", 0)),
        (b"UNSUB 1 000000012\r\n", ("UNSUB", b"1", 12)),
        (b"UNSUB 1 1234567890\r\n", ("UNSUB", b"1", 0)),
        (b"UNSUB 1 x\r\n", ("UNSUB", b"1", 0)),
        (b"CONNECT{}\r\n", ("CONNECT", b"{}")),
        (b"connect \t{ }\n", ("CONNECT", b"{ }")),
        (b"CONNECT\n{}\n", ("CONNECT", b"\n{}")),
        (b"INFO {}\r\n", ("INFO", b"{}")),
        (b"PING\r\n", ("PING",)),
        (b"PiNGxyz 1\n", ("PING",)),
        (b"PONG\n", ("PONG",)),
        (b"+OK whatever\r\n", ("+OK",)),
        (b"-ERR 'no'\r\n", ("-ERR", b"'no'")),
    ],
)
def test_one_operation(line: bytes, op: tuple[Any, ...]) -> None:
    for tail in (b"", b"P", b"PING\r\n"):
        ops, used, need, *_ = scan_client(line + tail, headers=True)
        assert ops[0] == op
        assert used >= len(line)
        assert need == 0
    for cut in range(1, len(line)):
        assert scan_cut(line, [cut], headers=True) == [op]
    assert scan_cut(line, list(range(1, len(line))), headers=True) == [op]


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"X", "unknown"),
        (b"\r\n", "unknown"),
        (b" PING\r\n", "unknown"),
        (b"PX", "unknown"),
        (b"PUBX", "unknown"),
        (b"SUB\r\n", "unknown"),
        (b"UNSUB\r\n", "unknown"),
        (b"MSG a 1 0\r\n\r\n", "unknown"),
        (b"RS+ a\r\n", "unknown"),
        (b"HMSG a 1 0 0\r\n", "unknown"),
        (b"-ERR\r\n", "unknown"),
        (b"\x10UB a 1\r\n", "unknown"),
        (b"PUB a 1\r\nxx", "unknown"),
        (b"PUB a 1\r\nx\n", "unknown"),
        (b"PUB a 1\r\nx\rx", "unknown"),
        (b"PUB a 2\r\nx\r\nPING\r\n", "unknown"),
        (b"PUB \r\n", "silent"),
        (b"PUB a\r\n", "silent"),
        (b"PUB a b c 1\r\n", "silent"),
        (b"PUB a b c d e f g\r\n", "silent"),
        (b"PUB a +2\r\n", "silent"),
        (b"PUB a -2\r\n", "silent"),
        (b"PUB a 0000000001\r\n", "silent"),
        (b"PUB a 1x\r\n", "silent"),
        (b"HPUB a 1\r\n", "silent"),
        (b"HPUB a 3 2\r\n", "silent"),
        (b"HPUB a x 2\r\n", "silent"),
        (b"HPUB a b c 1 2\r\n", "silent"),
        (b"SUB a\r\n", "silent"),
        (b"SUB a b c d\r\n", "silent"),
        (b"UNSUB a b c\r\n", "silent"),
        (b"PUB a 1048577\r\n", "payload"),
        (b"HPUB a 1 999999999\r\n", "payload"),
        (b"SUB " + b"a" * 4095 + b" 1\r\n", "control line"),
        (b"SUB " + b"a" * 4097, "control line"),
        (b"CONNECT " + b" " * 9_000 + b"{" + b" " * 4096 + b"\r\n", "control line"),
    ],
)
def test_one_error(data: bytes, error: str) -> None:
    expected = [("ERROR", ERRORS[error])]
    assert scan_client(data, headers=True)[0] == expected
    assert scan_cut(data, list(range(1, len(data))), headers=True) == expected


@pytest.mark.parametrize(
    "data",
    [
        b"P",
        b"pi",
        b"PUB",
        b"PUB a",
        b"PUB a 1\r",
        b"PUB a 1\r\n",
        b"PUB a 1\r\nx",
        b"PUB a 1\r\nx\r",
        b"HPUB a 1 1",
        b"SUB a 1",
        b"CONNECT",
        b"-ERR",
        b"SUB " + b"a" * 4096,
    ],
)
def test_incomplete(data: bytes) -> None:
    ops, used, *_ = scan_client(data, headers=True)
    assert (ops, used) == ([], 0)


def test_need_tells_the_size_of_a_message() -> None:
    line = b"PUB a 1000\r\n"
    _, used, need, *_ = scan_client(b"PING\r\n" + line + b"x" * 10)
    assert (used, need) == (6, len(line) + 1000 + 2)


def test_hpub_without_headers_ends_at_its_line() -> None:
    assert scan_client(b"HPUB a 1 9999999\r\n")[0] == [("ERROR", ERRORS["silent"])]


def test_blanks_and_ignored_bytes_do_not_pile_up() -> None:
    _, used, _, skipping, _ = scan_client(b"PING" + b"x" * 100_000)
    assert used == 100_004
    assert NAMES[skipping] == "PING"
    _, used, _, _, pending = scan_client(b"PUB" + b" " * 100_000)
    assert (used, pending) == (100_003, PENDING_PUB)
    assert scan_client(b" a 1\r\nx\r\n", pending=pending)[0] == [("PUB", b"a", b"", b"1", 0, b"x")]


@pytest.mark.parametrize("name", [b"PUB", b"HPUB"])
@pytest.mark.parametrize("names", ["orders.new", "a", "orders.new _INBOX.1", "a b c", ""])
@pytest.mark.parametrize(
    "sizes",
    [
        *("0", "9", "10", "007", "12345678", "000000012", "0000000012", "-1", "+1", "1:", "1;"),
        *("x", "1 3", "3 1", "0 12", "12 12", "x 3", "12 1;", "1 2 3", "00000001 00000002"),
    ],
)
def test_usual_lines_mean_what_others_mean(name: bytes, names: str, sizes: str) -> None:
    """Lines with single spaces and CR LF are read by a path of their own."""
    words = f"{names} {sizes}".encode().split()
    usual = b" ".join(words) + b"\r\n"
    other = b" \t".join(words) + b"\r\n"
    payload = b"x" * 12 + b"\r\n"
    for payload_max in (1 << 30, 12, 2):
        scan = partial(scan_client, headers=True, payload_max=payload_max)
        length = len(usual) - 2
        found = scan(name + b" " + usual + payload, control_line_max=length)[0]
        assert plain(found) == plain(scan(name + b" " + other + payload)[0])
        found = scan(name + b" " + usual + payload, control_line_max=length - 1)[0]
        assert found == [("ERROR", ERRORS["control line"])]


def plain(ops: list[tuple[Any, ...]]) -> list[list[Any]]:
    """Operations without the blanks between the numbers of their texts."""
    return [[part.split() if isinstance(part, bytes) else part for part in op] for op in ops]


def test_connect_ends_a_scan() -> None:
    ops, used, *_ = scan_client(b"PING\r\nCONNECT {}\r\nPING\r\n")
    assert [op[0] for op in ops] == ["PING", "CONNECT"]
    assert used == len(b"PING\r\nCONNECT {}\r\n")


@pytest.mark.parametrize("run_max", [1, 2, 3, 512])
@pytest.mark.parametrize("size", [0, 1, 16, 300])
def test_runs_are_what_their_messages_are(run_max: int, size: int) -> None:
    messages = [b"%d" % i * size for i in range(10)]
    messages = [message[:size] for message in messages]
    line = b"PUB subject.of.a.run %d\r\n" % size
    data = b"".join(line + message + b"\r\n" for message in messages)
    data += b"PUB other %d\r\n" % size + b"y" * size + b"\r\n"
    ops = scan_cut(data, [], run_max=run_max)
    assert [op[5] for op in ops] == [*messages, b"y" * size]
    assert ops[-1][1] == b"other"


def test_a_run_ends_before_a_broken_message() -> None:
    data = b"PUB a 1\r\nx\r\n" * 3 + b"PUB a 1\r\nx\n\n"
    assert [op[0] for op in scan_client(data)[0]] == ["PUB"] * 3 + ["ERROR"]


def test_cuts_anywhere_change_nothing() -> None:
    rng = random.Random(7)
    pieces = [
        b"PUB a 5\r\nhello\r\n",
        b"PUB a.b r 0\r\n\r\n",
        b"HPUB a 3 8\r\nabcdefgh\r\n",
        b"SUB a.* q 12\r\n",
        b"unsub 12 3\n",
        b"PING\r\n",
        b"PONGGG\n",
        b"+OK\r\n",
        b"INFO {}\r\n",
        b"CONNECT {}\r\n",
        b"PUB  " + b" " * 80 + b"b 1\r\nz\r\n",
        b"SUB" + b"\t" * 200 + b"b 1\r\n",
    ]
    for _ in range(200):
        data = b"".join(
            piece * rng.randint(1, 4) for piece in rng.choices(pieces, k=rng.randint(1, 12))
        )
        whole = scan_cut(data, [], headers=True)
        cuts = [rng.randrange(len(data)) for _ in range(rng.randint(1, 20))]
        assert scan_cut(data, cuts, headers=True, run_max=rng.choice([1, 2, 512])) == whole
