"""The allocator: what is allocated, what is given back, how many heaps there are."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from broker.runtime import memory
from broker.server.memory import resident_bytes

pytestmark = pytest.mark.skipif(
    os.environ.get("TWINWIRE_BUILD") == "asan", reason="the sanitizer has an allocator of its own"
)

PIECE_BYTES = 4000  # less than what the allocator maps by itself, more than Python's own pools take
COUNT = 10_000


def test_free_pieces_between_others_are_given_back() -> None:
    pieces: list[bytearray | None] = [bytearray(PIECE_BYTES) for _ in range(COUNT)]
    full = memory.used_bytes()
    for number in range(COUNT):
        if number % 100:
            pieces[number] = None
    assert memory.used_bytes() < full - COUNT * PIECE_BYTES // 2
    before = resident_bytes()
    assert memory.trim()
    assert resident_bytes() < before - COUNT * PIECE_BYTES // 2
    del pieces


THREADS = """
import ctypes, threading
from broker.runtime import memory
memory.limit_arenas(2)
ready, over = threading.Barrier(9), threading.Barrier(9)
def work():
    kept = [bytearray(4000) for _ in range(100)]
    ready.wait()
    over.wait()
threads = [threading.Thread(target=work) for _ in range(8)]
for thread in threads:
    thread.start()
ready.wait()
libc = ctypes.CDLL(None)
libc.fopen.restype = ctypes.c_void_p
libc.malloc_info(0, ctypes.c_void_p(libc.fopen(b"/dev/stdout", b"w")))
libc.fflush(None)
over.wait()
"""


def test_threads_share_a_heap() -> None:
    command = [sys.executable, "-c", THREADS]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    assert 1 <= found.stdout.count("<heap nr") <= 2


LARGE = """
import resource
from broker.runtime import memory
memory.keep_free(32 << 20, 8 << 20)
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for size, count in ((1, 8), (1, 20), (3, 4), (1, 20)):
    kept = []
    for number in range(40):
        if number == 20:
            before = faults()
        bodies = [bytearray(size << 20) for _ in range(count)]      # their bytes are written
        kept.append(bytearray(1000))
        del bodies
print(faults() - before)
"""


def test_large_buffers_do_not_come_from_the_system_each_time() -> None:
    command = [sys.executable, "-c", LARGE]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(found.stdout) < 5120  # the pages of one round; there were twenty


SMALL = """
import ctypes, sys
from broker.runtime import memory
if sys.argv[1] == "at once":
    memory.merge_at_once()
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
class Facts(ctypes.Structure):      # of mallinfo2
    _fields_ = [(name, ctypes.c_size_t) for name in (
        "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks",
        "fordblks", "keepcost")]
libc.mallinfo2.restype = Facts
pieces = [ctypes.c_void_p(libc.malloc(48)) for _ in range(10_000)]
for piece in pieces:
    libc.free(piece)
print(libc.mallinfo2().fsmblks)     # free, and not merged yet
"""


@pytest.mark.parametrize(("when", "waits"), [("later", True), ("at once", False)])
def test_small_pieces_are_merged_when_they_become_free(when: str, waits: bool) -> None:
    command = [sys.executable, "-c", SMALL, when]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (int(found.stdout) > 100_000) == waits
