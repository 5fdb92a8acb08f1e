# cython: language_level=3
"""Which names topics and channels may have."""

cdef extern from "names.h" nogil:
    enum:
        NAME_BYTES_MAX "TW_NAME_BYTES_MAX"
    # Whether a topic or channel may be called this.
    bint name_ok "tw_name_ok"(const char *name, size_t n)
    bint name_is_ephemeral "tw_name_is_ephemeral"(const char *name, size_t n)
