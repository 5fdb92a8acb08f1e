"""The scanner and the session of leaf links: any bytes, in any cuts, harm nobody."""

from __future__ import annotations

from functools import partial

from fuzz.engine import Target, cuts_of
from fuzz.peers import FencedPeer
from fuzz.watch import fence_end
from support.fakes.leaf import FakeLeafs, LeafPeer
from support.native.nats import scan_link
from support.scans import scan_cut

HELLO = b'CONNECT {"name":"n","headers":true}\r\n'
SEEDS = [
    HELLO + b"LS+ a\r\nLS+ a.* q 3\r\nLS- a\r\nPING\r\n",
    HELLO + b"LMSG a 5\r\nhello\r\n" * 3,
    HELLO + b"LMSG a | q r 2\r\nhi\r\nLMSG a + inbox q 2\r\nhi\r\nLMSG a inbox 0\r\n\r\n",
    HELLO + b"HMSG a + r q 12 14\r\nNATS/1.0\r\n\r\nhi\r\nHMSG a 0 1\r\nx\r\n",
    HELLO + b"LS+ $LDS.x\r\nLS+ $KV.a\r\nLS+ a..b\r\nLS- b q\r\nLS- a b c\r\n",
    b'CONNECT {"cluster":"c","is_hub":true,"deny_pub":["a.>"],"remote_account":"A"}\r\nLS+ >\r\n',
    HELLO + b"PONG\r\n+OK\r\n-ERR 'Loop detected'\r\nINFO {}\r\nPING\r\n",
    b'CONNECT {"lang":"go"}\r\n',
    b"PING\r\n",
]
TOKENS = [
    b"\r\n", b"\n", b"\r", b" ", b"\t", b".", b"*", b">", b"|", b"+", b"0", b"9", b"999999999",
    b"-1", b"LMSG ", b"HMSG ", b"LS+ ", b"LS- ", b"INFO ", b"{", b"}", b"null", b"true", b"q ",
    HELLO, b"LMSG a 1\r\nx\r\n", b"LS+ > q 1\r\n", b"PING\r\n", b" " * 70, b'"is_hub":true,',
]  # fmt: skip
RULES = {"control_line_max": 256, "payload_max": 4_000}

scan_all = partial(scan_cut, scan_link, fence=fence_end)


class FencedLeaf(FencedPeer, LeafPeer):
    """A leaf whose reads end where the fence begins."""


def converse(data: bytes, cuts: list[int]) -> tuple[bytes | list[bytes], bytes, bool]:
    """What another leaf and a client get to see, and whether the sender is out."""
    hub = FakeLeafs(max_subscriptions=20)
    client = hub.nats.dial(b'{"headers":true}')
    client.send(b"SUB > 1\r\nSUB a q 2\r\n")
    other = hub.join(name="other")
    other.send(b"LS+ >\r\n")
    other.take()
    peer = FencedLeaf(hub.listener)
    peer.send(data, cuts)
    # what a gone peer wanted is taken back in no order
    said = sorted(other.take().splitlines()) if peer.closed else other.take()
    result = said, client.take(), peer.closed
    assert not client.closed
    assert not other.closed
    assert client.talk(b"PING\r\n") == b"PONG\r\n"
    peer.leave()
    other.take()
    assert hub.router.size == 3
    other.leave()
    client.leave()
    assert hub.router.size == 0
    return result


def check(data: bytes) -> None:
    """Raise AssertionError when one input is treated wrongly."""
    cuts = cuts_of(data)
    whole = scan_all(data, [], **RULES)
    assert scan_all(data, cuts, **RULES) == whole
    assert scan_all(data, cuts, run_max=2, **RULES) == whole
    assert converse(data, []) == converse(data, cuts)


def target() -> Target:
    """What `make fuzz` runs."""
    return Target("leaf", check, SEEDS, TOKENS)
