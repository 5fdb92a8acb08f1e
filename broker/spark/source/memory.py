"""Memory of tasks. Their buffers are of a few MiB, come by the hundred, and live for a moment.

The C library and Arrow's own pool would hand each of them back to the kernel and ask for fresh
pages the next moment: for nothing, and on a virtual machine at the price of a fault of the host for
each page, which stops the whole processor, the broker's threads on it as well.
"""

from __future__ import annotations

import ctypes
from functools import cache

import pyarrow as pa

from broker.spark.limits import KEPT_MEMORY_BYTES

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3


@cache
def keep_memory() -> None:
    """Once per process: so much of what is freed stays for what comes next."""
    library = ctypes.CDLL(None)
    if hasattr(library, "gnu_get_libc_version"):  # others have numbers of their own, or no mallopt
        library.mallopt(_M_MMAP_THRESHOLD, KEPT_MEMORY_BYTES)
        library.mallopt(_M_TRIM_THRESHOLD, KEPT_MEMORY_BYTES)
        pa.set_memory_pool(pa.system_memory_pool())
