# cython: language_level=3
"""Blocks of records that writers upload, and records that came with a commit. See blocks.pyx."""

cdef enum:
    # Record flag: it came with a commit. `reply` holds the commit's id and, as u32, which record of
    # the commit it is; whoever reads the record is told of no reply subject.
    STORED_STAGED = 4
    COMMIT_ID_BYTES = 8
    STAGED_REPLY_BYTES = 12
