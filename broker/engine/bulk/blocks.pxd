# cython: language_level=3
"""Blocks of records that writers upload, and records that came with a commit. See blocks.pyx."""

cdef enum:
    # What stands in `reply` of a record that came with a commit: the commit's id and a number.
    COMMIT_ID_BYTES = 8
    STAGED_REPLY_BYTES = 12
