# cython: language_level=3
"""Blocks of records that writers upload, and records of commits. See blocks.pyx."""

cdef enum:
    # The `reply` of a record of a commit: the commit's id and the record's number.
    COMMIT_ID_BYTES = 8
    STAGED_REPLY_BYTES = 12
