"""Random bytes for the NSQ scanner and session: no crash, and cuts between reads change nothing.

    python tests/fuzz/nsq_parser.py [--seconds N] [--seed N] [FILE ...]

Inputs grow out of the pieces below and of corpus/nsq by mutation. A failing input is written to
corpus/nsq, named after its digest, and runs again from then on; FILEs are run instead of fuzzing.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import os
import random
import struct
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
CORPUS = Path(__file__).parent / "corpus" / "nsq"
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from fakes_nsq import OK, FakeNsq, NsqPeer, frames_of, mpub, pub, sized  # noqa: E402

from broker.protocols.nsq.wire import Scanner  # noqa: E402

PIECES = [
    b"  V2",
    pub(b"a", b"hello"),
    pub(b"a", b"hello") * 3,
    pub(b"b#ephemeral", b"x"),
    b"PUB a b c\r\n" + sized(b"PUB a\n"),
    b"DPUB a 5\n" + sized(b"later"),
    b"DPUB a 0\n" + sized(b"now"),
    mpub(b"a", b"1", b"22", b"333"),
    b"MPUB a\n" + struct.pack(">ii", 1, 2) + sized(b"lied") + sized(b"about"),
    b"MPUB m\n" + struct.pack(">ii", 90, 1) + sized(b"less"),
    b"SUB a c\n",
    b"SUB a c\nRDY 20\n",
    mpub(b"a", *[b"m"] * 10) + b"SUB a c\nRDY 5\n",
    b"FIN 0000000000000001\nFIN 0000000000000003\nREQ 0000000000000002 0\n",
    b"SUB b#ephemeral c#ephemeral\n",
    b"RDY 2\n",
    b"RDY\n",
    b"RDY \n",
    b"FIN 0000000000000001\n",
    b"FIN 0000000000000002\r\n",
    b"FIN nothexnothexnot!\n",
    b"REQ 0000000000000001 0\n",
    b"REQ 0000000000000002 100\n",
    b"TOUCH 0000000000000001\n",
    b"NOP\n",
    b"CLS\n",
    b"IDENTIFY\n" + sized(b"{}"),
    b"IDENTIFY\n" + sized(b'{"feature_negotiation":true,"msg_timeout":1000}'),
    b"IDENTIFY\n" + sized(b'{"heartbeat_interval":-1,"sample_rate":50}'),
    b"AUTH\n" + sized(b"x"),
]
TOKENS = [
    b"\n", b"\r", b" ", b"\0", b"\0\0\0\0", b"\0\0\0\1", b"\0\0\0\xff", b"\x7f\xff\xff\xff",
    b"\xff", b"\x80\0\0\0", b"#ephemeral", b"PUB ", b"MPUB ", b"DPUB ", b"FIN ", b"RDY ",
    b"SUB ", b"-1", b"99999999999999999999", b"a" * 70, b"null", b"{", b'"',
]  # fmt: skip
LENGTH_MAX = 20_000
LINE_LONG = 16_500
SETTINGS = {"max_msg_size": 1_000, "max_body_size": 3_000, "max_rdy_count": 50}
RULES = (1_000, 3_000, 3_600_000_000_000, 50)

Op = tuple[Any, ...]


def mutate(rng: random.Random, seeds: list[bytes]) -> bytes:
    """A new input: pieces in a row, with some damage."""
    data = bytearray(b"  V2" if rng.random() < 0.97 else b"")
    for _ in range(rng.choice((1, 2, 5, 20))):
        data += rng.choice(seeds[1:]) * rng.choice((1, 1, 1, 2, 40))
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
                data[at:at] = b"a" * rng.choice((10, 300, 1_001, LINE_LONG))
    return bytes(data[:LENGTH_MAX])


def cuts_of(rng: random.Random, data: bytes) -> list[int]:
    """Where reads end: a few places, or after every byte."""
    if len(data) < 400 and rng.random() < 0.3:
        return list(range(1, len(data)))
    return sorted(rng.randrange(len(data) + 1) for _ in range(rng.choice((1, 3, 10, 50))))


def scan_all(data: bytes, cuts: list[int]) -> list[Op]:
    """Every command up to the first wrong one, scanned as a connection does it."""
    state, rest, found = Scanner(*RULES), b"", []
    edges = [0, *cuts, len(data)]
    for start, end in itertools.pairwise(edges):
        rest += data[start:end]
        ops: list[Op] = [()]
        while rest and ops:
            used, ops = state.scan(rest)  # type: ignore[assignment]
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
    peer = NsqPeer(nsq.door)
    half = len(data) // 2
    peer.send(data[:half], [cut for cut in cuts if cut < half])
    peer.send(data[half:], [cut - half for cut in cuts if cut >= half])
    result = peer.take(), peer.closed
    frames_of(result[0])
    peer.end_input()
    assert peer.closed
    assert nsq.dial().ask(b"NOP\n" + pub(b"other", b"x")) == [OK]
    for session in list(nsq.face.sessions):
        session.drain()
    nsq.loop.run()
    assert not nsq.face.sessions
    for name in list(nsq.engine.logs):
        assert all(cursor.consumers == 0 for cursor in nsq.engine.logs[name].cursors.values())
        nsq.engine.delete_log(name)
    return result


def check(nsq: FakeNsq, data: bytes, cuts: list[int]) -> None:
    """Raise AssertionError when one input is treated wrongly."""
    assert scan_all(data, cuts) == scan_all(data, [])
    once, again = converse(nsq, data, []), converse(nsq, data, cuts)
    if b"sample_rate" not in data:  # a sample draws lots
        assert once == again


def run(nsq: FakeNsq, data: bytes, cuts: list[int]) -> bool:
    """Check one input; keep it when it fails."""
    # on a crash of the interpreter this is what is left to look at
    current = Path(os.environ.get("FUZZ_CURRENT", os.devnull))
    current.write_bytes(data)
    try:
        check(nsq, data, cuts)
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
    nsq = FakeNsq(**SETTINGS)
    kept = [path.read_bytes() for path in sorted(CORPUS.glob("*.bin"))]
    seeds = PIECES + kept
    failed = sum(not run(nsq, data, cuts_of(rng, data)) for data in kept)
    inputs = 0
    end = time.monotonic() + seconds
    while time.monotonic() < end and failed < 10:
        data = mutate(rng, seeds)
        failed += not run(nsq, data, cuts_of(rng, data))
        inputs += 1
    nsq.close()
    print(f"nsq_parser: seed {seed}, {inputs} inputs, {failed} failed")
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument(
        "--seconds", type=float, default=float(os.environ.get("FUZZ_SECONDS", "10"))
    )
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    parser.add_argument("files", nargs="*", type=Path)
    options = parser.parse_args()
    if not options.files:
        return int(fuzz(options.seconds, options.seed) > 0)
    rng, nsq = random.Random(options.seed), FakeNsq(**SETTINGS)
    inputs = [path.read_bytes() for path in options.files]
    good = all(run(nsq, data, cuts_of(rng, data)) for data in inputs)
    nsq.close()
    return int(not good)


if __name__ == "__main__":
    sys.exit(main())
