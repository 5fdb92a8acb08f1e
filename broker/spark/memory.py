"""Memory of tasks: freed buffers are kept for the next ones.

Tasks use hundreds of buffers of a few MiB, each for a short time. The C library and Arrow's own
pool would return each to the kernel and request new pages at once. On a virtual machine each new
page costs a fault of the host, which stops the virtual processor, also for the broker.

This is a separate module because the source, the sink and the jobs' tasks use it.
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
    """Keep up to KEPT_MEMORY_BYTES of freed memory; takes effect once per process."""
    library = ctypes.CDLL(None)
    if hasattr(library, "gnu_get_libc_version"):  # other libraries have other options, or none
        library.mallopt(_M_MMAP_THRESHOLD, KEPT_MEMORY_BYTES)
        library.mallopt(_M_TRIM_THRESHOLD, KEPT_MEMORY_BYTES)
        pa.set_memory_pool(pa.system_memory_pool())
