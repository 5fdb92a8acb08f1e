"""The NSQ scanner and session: any bytes, in any cuts, harm nobody and mean the same."""

from __future__ import annotations

import itertools
import random
import struct
from typing import Any

from fuzz.engine import Target, cuts_of
from fuzz.peers import FencedNsqPeer
from fuzz.watch import fence_end
from fuzz.wire_seeds import transcripts
from support.fakes.nsq import OK, FakeNsq, frames_of, mpub, pub, sized
from support.native.nsq import Scanner

MAGIC = b"  V2"
SEEDS = [
    MAGIC + part
    for part in (
        pub(b"a", b"hello") * 3,
        pub(b"b#ephemeral", b"x"),
        b"PUB a b c\r\n" + sized(b"PUB a\n"),
        b"DPUB a 5\n" + sized(b"later") + b"DPUB a 0\n" + sized(b"now"),
        mpub(b"a", b"1", b"22", b"333"),
        b"MPUB a\n" + struct.pack(">ii", 1, 2) + sized(b"lied") + sized(b"about"),
        b"MPUB m\n" + struct.pack(">ii", 90, 1) + sized(b"less"),
        mpub(b"a", *[b"m"] * 10)
        + b"SUB a c\nRDY 5\nFIN 0000000000000001\nFIN 0000000000000003\nREQ 0000000000000002 0\n",
        pub(b"a", b"x") + b"SUB a c\nRDY 1\nTOUCH 0000000000000001\nREQ 0000000000000001 100\n",
        b"SUB b#ephemeral c#ephemeral\nRDY 20\nRDY\nNOP\nCLS\n",
        b"FIN 0000000000000002\r\nFIN nothexnothexnot!\n",
        b"IDENTIFY\n" + sized(b'{"feature_negotiation":true,"msg_timeout":1000}') + b"NOP\n",
        b"IDENTIFY\n" + sized(b'{"heartbeat_interval":-1,"sample_rate":50}'),
        b"IDENTIFY\n" + sized(b"{}") + b"AUTH\n" + sized(b"x"),
    )
]
TOKENS = [
    b"\n", b"\r", b" ", b"\0\0\0\0", b"\0\0\0\1", b"\0\0\0\xff", b"\x7f\xff\xff\xff",
    b"\x80\0\0\0", b"#ephemeral", b"PUB ", b"MPUB ", b"DPUB ", b"FIN ", b"RDY ", b"TOUCH ",
    b"SUB ", b"-1", b"99999999999999999999", b"a" * 70, b"null", b"{", b'"', b"SUB a c\nRDY 5\n",
    b"0000000000000001", b"IDENTIFY\n", b"CLS\n", b"NOP\n", pub(b"a", b"x"), mpub(b"a", b"1", b"2"),
    b"FIN 0000000000000001\n", b"REQ 0000000000000001 0\n", b'"msg_timeout":', b'"client_id":"',
]  # fmt: skip
LENGTH_MAX = 20_000  # a line may be too long only above 16 KiB
SETTINGS: dict[str, Any] = {"max_msg_size": 1_000, "max_body_size": 3_000, "max_rdy_count": 50}
RULES = (1_000, 3_000, 3_600_000_000_000, 50)

Op = tuple[Any, ...]


def scan_all(data: bytes, cuts: list[int]) -> list[Op]:
    """Every command up to the first wrong one, scanned as a connection does it."""
    state, rest, found = Scanner(*RULES), b"", []
    for start, end in itertools.pairwise([0, *cuts, len(data)]):
        rest += data[start:end]
        ops: list[Op] = [()]
        while rest and ops:
            with fence_end(rest):
                used, ops = state.scan(rest)
            assert used == (ops[-1][-1] if ops else 0) <= len(rest)
            found += [op[:-1] for op in ops]
            rest = rest[used:]
            if ops and ops[-1][1]:
                return found
        need = state.unfinished[3]
        assert not need or need > len(rest)
    return found


def converse(nsq: FakeNsq, data: bytes, cuts: list[int]) -> tuple[bytes, bool]:
    """What the client gets to see in two turns, and whether it is out."""
    peer = FencedNsqPeer(nsq.listener)
    half = len(data) // 2
    peer.send(data[:half], [cut for cut in cuts if cut < half])
    peer.send(data[half:], [cut - half for cut in cuts if cut >= half])
    result = peer.take(), peer.closed
    frames_of(result[0])
    peer.end_input()
    assert peer.closed
    assert nsq.dial().ask(b"NOP\n" + pub(b"other", b"x")) == [OK]
    for session in list(nsq.frontend.sessions):
        session.drain()
    nsq.loop.run()
    assert not nsq.frontend.sessions
    for name in list(nsq.engine.logs):
        assert all(cursor.consumers == 0 for cursor in nsq.engine.logs[name].cursors.values())
        nsq.engine.delete_log(name)
    return result


def check(nsq: FakeNsq, data: bytes) -> None:
    """Raise AssertionError when one input is treated wrongly."""
    cuts = cuts_of(data)
    assert scan_all(data, cuts) == scan_all(data, [])
    once, again = converse(nsq, data, []), converse(nsq, data, cuts)
    if b"sample_rate" not in data:  # a sample draws lots
        assert once == again


def greet(rng: random.Random, data: bytearray) -> None:
    """Without the magic nothing else is looked at."""
    if not data.startswith(MAGIC) and rng.random() < 0.95:
        data[:4] = MAGIC


def target() -> Target:
    """What `make fuzz` runs."""
    nsq = FakeNsq(**SETTINGS)
    seeds = [*SEEDS, *transcripts("nsq", MAGIC)]
    return Target(
        "nsq",
        lambda data: check(nsq, data),
        seeds,
        TOKENS,
        length_max=LENGTH_MAX,
        repair=greet,
        close=nsq.close,
    )
