# cython: language_level=3
"""All logs of one data folder, by name."""
from broker.engine.log.log cimport Log
from broker.engine.state cimport EngineState


cdef class Engine:
    cdef readonly EngineState shared
    cdef readonly dict logs         # name (str) -> Log
    cdef readonly dict owned  # the same, for logs that other protocols may neither see nor change
    cdef dict by_bytes              # name (bytes) -> Log
    # name (str) -> path, of logs that could not be opened. The name is reserved: nothing in the
    # folder changes, and a caller that wants the log gets a QuarantinedError.
    cdef readonly dict quarantined
    # name (str) -> the object that replaces the log of this name, or None. See `reserve`.
    cdef readonly dict reserved
    cdef readonly list problems     # what recovery found wrong, as texts
    cdef object sync_for            # sync_for(name) -> 'always', 'none' or seconds
    cdef object retention_for
    cdef object loop
    cdef object timer

    cdef object open_folders(self, list folders)
    cdef Log recover(self, str folder, int root_fd, list entry)
    cdef Log recover_unknown(self, str name, folder)
    cdef Log make_log(self, str name, folder, bint ephemeral, str protocol, str retention,
                      subjects)
    cdef Log find(self, const char *name, size_t n)     # None: there is no such log
