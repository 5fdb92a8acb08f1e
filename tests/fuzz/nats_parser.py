"""Random bytes for the NATS scanner and session: no crash, and cuts between reads change nothing.

    python tests/fuzz/nats_parser.py [--seconds N] [--seed N] [FILE ...]

Inputs grow out of the pieces below and of corpus/nats by mutation. A failing input is written to
corpus/nats, named after its digest, and runs again from then on; FILEs are run instead of fuzzing.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
CORPUS = Path(__file__).parent / "corpus" / "nats"
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from fakes import FakeNats, FakePeer  # noqa: E402

from broker.protocols.nats.wire import scan_bytes  # noqa: E402

PIECES = [
    b"PUB a 5\r\nhello\r\n",
    b"PUB a 5\r\nhello\r\nPUB a 5\r\nworld\r\n",
    b"PUB a.b inbox 2\r\nhi\r\n",
    b"PUB nobody inbox 0\r\n\r\n",
    b"PUB inbox 0\r\n\r\n",
    b"PUB a.* 1\r\nx\r\n",
    b"PUB _GR_.a 1\r\nx\r\n",
    b"PUB a _R_.b 1\r\nx\r\n",
    b"HPUB a 12 14\r\nNATS/1.0\r\n\r\nhi\r\n",
    b"HPUB a inbox 0 3\r\nabc\r\n",
    b"SUB a 1\r\n",
    b"SUB a.> 2\r\n",
    b"SUB * 3\r\n",
    b"SUB inbox 4\r\n",
    b"SUB a..b 5\r\n",
    b"SUB a _sys_ 6\r\n",
    b"SUB a.b 3\r\n",
    b"UNSUB 1\r\n",
    b"UNSUB 3 2\r\n",
    b"UNSUB 4 1\r\n",
    b"PING\r\n",
    b"PONG\r\n",
    b"+OK\r\n",
    b"-ERR 'x'\r\n",
    b"INFO {}\r\n",
    b'CONNECT {"verbose":false}\r\n',
    b'CONNECT {"headers":true,"no_responders":true,"echo":true,"pedantic":false}\r\n',
    b'CONNECT {"echo":false,"headers":false,"no_responders":false}\r\n',
    b'CONNECT {"protocol":2}\r\n',
    b"CONNECT null\r\n",
]
TOKENS = [
    b"\r\n", b"\n", b"\r", b" ", b"\t", b".", b"*", b">", b"0", b"9", b"999999999", b"1048577",
    b"-1", b"PUB ", b"HPUB ", b"SUB ", b"UNSUB ", b"CONNECT ", b"\x00", b"\xff", b"{", b"}",
    b" " * 70,
]  # fmt: skip
LENGTH_MAX = 20_000
SETTINGS = {"max_control_line": 256, "max_payload": 10_000, "max_subscriptions": 20}


def mutate(rng: random.Random, seeds: list[bytes]) -> bytes:
    """A new input: pieces in a row, with some damage."""
    data = bytearray()
    for _ in range(rng.choice((1, 2, 5, 20))):
        data += rng.choice(seeds) * rng.choice((1, 1, 1, 2, 40))
    for _ in range(rng.choice((0, 0, 1, 2, 6))):
        at = rng.randrange(len(data) + 1)
        match rng.randrange(5):
            case 0:
                data[at : at + 1] = rng.randbytes(1)
            case 1:
                data[at:at] = rng.choice(TOKENS)
            case 2:
                del data[at : at + rng.randint(1, 8)]
            case 3:
                end = rng.randint(at, min(len(data), at + 60))
                data[at:at] = data[at:end] * rng.randint(1, 5)
            case 4:
                data[at:at] = b"a" * rng.choice((10, 200, 300, 5_000))
    return bytes(data[:LENGTH_MAX])


def cuts_of(rng: random.Random, data: bytes) -> list[int]:
    """Where reads end: a few places, or after every byte."""
    if len(data) < 400 and rng.random() < 0.3:
        return list(range(1, len(data)))
    return sorted(rng.randrange(len(data) + 1) for _ in range(rng.choice((1, 3, 10, 50))))


def scan_all(data: bytes, cuts: list[int], **rules: Any) -> list[tuple[Any, ...]]:
    """Every operation, scanned as a connection does it."""
    ops: list[tuple[Any, ...]] = []
    rest, skipping, pending = b"", 0, 0
    edges = [0, *cuts, len(data)]
    for start, end in pairwise(edges):
        rest += data[start:end]
        used = 1
        while rest and used:
            found, used, need, skipping, pending = scan_bytes(
                rest, skipping=skipping, pending=pending, **rules
            )
            ops += found
            if found and found[-1][0] == "ERROR":
                return ops
            assert used <= len(rest)
            assert need == 0 or need > len(rest) - used
            rest = rest[used:]
    return ops


def converse(data: bytes, cuts: list[int]) -> tuple[bytes, bytes, bool]:
    """What the sender and a listener to everything get to see, and whether the sender is out."""
    nats = FakeNats(**SETTINGS)
    listener = nats.dial(b'{"headers":true}')
    listener.send(b"SUB > 1\r\n")
    peer = FakePeer(nats.door)
    peer.send(data, cuts)
    result = peer.take(), listener.take(), peer.closed
    assert not listener.closed
    assert listener.talk(b"PING\r\n") == b"PONG\r\n"
    peer.leave()
    assert nats.router.size == 1
    listener.leave()
    assert nats.router.size == 0
    return result


def check(data: bytes, cuts: list[int]) -> None:
    """Raise AssertionError when one input is treated wrongly."""
    rules = {"control_line_max": 256, "payload_max": 10_000, "headers": True}
    whole = scan_all(data, [], **rules)
    assert scan_all(data, cuts, **rules) == whole
    assert scan_all(data, cuts, run_max=2, **rules) == whole
    once, again = converse(data, []), converse(data, cuts)
    if any(op[0] == "SUB" and op[2] for op in whole):
        return  # queue groups draw lots
    assert once == again


def run(data: bytes, cuts: list[int]) -> bool:
    """Check one input; keep it when it fails."""
    # on a crash of the interpreter this is what is left to look at
    current = Path(os.environ.get("FUZZ_CURRENT", os.devnull))
    current.write_bytes(data)
    try:
        check(data, cuts)
    except AssertionError as error:
        CORPUS.mkdir(parents=True, exist_ok=True)
        kept = CORPUS / f"{hashlib.sha256(data).hexdigest()[:16]}.bin"
        kept.write_bytes(data)
        print(f"FAILED {kept} cuts={cuts}: {error}", file=sys.stderr)
        return False
    return True


def fuzz(seconds: float, seed: int) -> int:
    """Run mutations until the time is up; how many failed."""
    rng = random.Random(seed)
    kept = [path.read_bytes() for path in sorted(CORPUS.glob("*.bin"))]
    seeds = PIECES + kept
    failed = sum(not run(data, cuts_of(rng, data)) for data in kept)
    inputs = 0
    end = time.monotonic() + seconds
    while time.monotonic() < end and failed < 10:
        data = mutate(rng, seeds)
        failed += not run(data, cuts_of(rng, data))
        inputs += 1
    print(f"nats_parser: seed {seed}, {inputs} inputs, {failed} failed")
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument(
        "--seconds", type=float, default=float(os.environ.get("FUZZ_SECONDS", "10"))
    )
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    parser.add_argument("files", nargs="*", type=Path)
    options = parser.parse_args()
    if options.files:
        rng = random.Random(options.seed)
        return int(
            not all(run(f.read_bytes(), cuts_of(rng, f.read_bytes())) for f in options.files)
        )
    return int(fuzz(options.seconds, options.seed) > 0)


if __name__ == "__main__":
    sys.exit(main())
