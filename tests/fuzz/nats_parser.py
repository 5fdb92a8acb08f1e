"""The NATS scanner and session: any bytes, in any cuts, harm nobody and mean the same."""

from __future__ import annotations

from functools import partial

from fuzz.engine import Target, cuts_of
from fuzz.peers import FencedPeer
from fuzz.watch import fence_end
from fuzz.wire_seeds import transcripts
from support.fakes.loop import FakeNats
from support.native.nats import scan_client
from support.scans import scan_cut

SEEDS = [
    b"PUB a 5\r\nhello\r\n" * 3,
    b"PUB a.b inbox 2\r\nhi\r\n",
    b"SUB inbox 4\r\nPUB nobody inbox 0\r\n\r\n",
    b"PUB a.* 1\r\nx\r\nPUB _GR_.a 1\r\nx\r\nPUB a _R_.b 1\r\nx\r\n",
    b'CONNECT {"headers":true}\r\nHPUB a 12 14\r\nNATS/1.0\r\n\r\nhi\r\n',
    b'CONNECT {"headers":true}\r\nSUB inbox 1\r\nHPUB a inbox 0 3\r\nabc\r\n',
    b"SUB a.> 2\r\nSUB * 3\r\nSUB a..b 5\r\nSUB a _sys_ 6\r\nUNSUB 3 2\r\nPUB a 1\r\nx\r\n",
    b"SUB a.b 3\r\nUNSUB 3 1\r\nPUB a.b 1\r\nx\r\nSUB a.b 3\r\nUNSUB 3\r\n",
    b'CONNECT {"headers":true,"no_responders":true}\r\nSUB i 1\r\nPUB nobody i 0\r\n\r\n',
    b'CONNECT {"verbose":false,"echo":false,"headers":false}\r\nSUB a 1\r\nPUB a 0\r\n\r\nPING\r\n',
    b"PING\r\nPONG\r\n+OK\r\n-ERR 'x'\r\nINFO {}\r\n",
]
TOKENS = [
    b"\r\n", b"\n", b"\r", b" ", b"\t", b".", b"*", b">", b"0", b"9", b"999999999", b"1048577",
    b"-1", b"PUB ", b"HPUB ", b"SUB ", b"UNSUB ", b"CONNECT ", b"{", b"}", b"null", b"true",
    b'CONNECT {"headers":true}\r\n', b"PUB a 1\r\nx\r\n", b"SUB > 9\r\n", b"PING\r\n", b" " * 70,
    b"SUB a q 8\r\n", b'"echo":false,',
]  # fmt: skip
SETTINGS = {"max_control_line": 256, "max_payload": 4_000, "max_subscriptions": 20}
RULES = {"control_line_max": 256, "payload_max": 4_000, "headers": True}

scan_all = partial(scan_cut, scan_client, fence=fence_end)


def converse(data: bytes, cuts: list[int]) -> tuple[bytes, bytes, bool]:
    """What the sender and a listener to everything get to see, and whether the sender is out."""
    nats = FakeNats(**SETTINGS)
    listener = nats.dial(b'{"headers":true}')
    listener.send(b"SUB > 1\r\n")
    peer = FencedPeer(nats.listener)
    peer.send(data, cuts)
    result = peer.take(), listener.take(), peer.closed
    assert not listener.closed
    assert listener.talk(b"PING\r\n") == b"PONG\r\n"
    peer.leave()
    assert nats.router.size == 1
    listener.leave()
    assert nats.router.size == 0
    return result


def check(data: bytes) -> None:
    """Raise AssertionError when one input is treated wrongly."""
    cuts = cuts_of(data)
    whole = scan_all(data, [], **RULES)
    assert scan_all(data, cuts, **RULES) == whole
    assert scan_all(data, cuts, run_max=2, **RULES) == whole
    once, again = converse(data, []), converse(data, cuts)
    if any(op[0] == "SUB" and op[2] for op in whole):
        return  # queue groups draw lots
    assert once == again


def target() -> Target:
    """What `make fuzz` runs."""
    seeds = [*SEEDS, *transcripts("nats", b'CONNECT {"verbose":false}\r\n')]
    return Target("nats", check, seeds, TOKENS)
