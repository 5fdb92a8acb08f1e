# cython: language_level=3
"""Which message of a stream has which subject: all in memory, no file. See subjects.pyx."""
from libc.stdint cimport uint16_t, uint32_t, uint64_t

from broker.engine.stream.filter cimport Filter, FilterOwner, post_t
from broker.routing.router cimport Router
from broker.runtime.types cimport tw_key_t

cdef enum:
    CHUNK_SHIFT = 14
    CHUNK_SEQS = 1 << CHUNK_SHIFT
    NAME_CLASSES = 92       # sizes of names that have a list of free cells

# The subjects of up to CHUNK_SEQS consecutive seqs, those with the same seq >> CHUNK_SHIFT.
cdef struct chunk_t:
    uint64_t start          # dense: seq of index 0; sparse: seq of the block's first
    uint32_t *ids           # owned; id of the subject by index, 0 = not live
    uint32_t *links         # owned; 2 by index: the distance to the previous message of the same
    #                         subject, and that to the next; NULL = all are 0
    uint16_t *offsets       # owned; sparse: seq - start by index, rising; dense: NULL
    uint32_t size           # indexes in use
    uint32_t cap            # indexes that fit
    uint32_t live           # messages

# One live subject.
cdef struct subject_t:
    uint64_t first          # seq of its oldest live message
    uint64_t last           # and of its newest
    uint32_t count          # live messages; 0 = a free id
    uint32_t name           # place of its name; of a free id the next free one
    uint32_t group          # number of the filters that match it, in `groups`
    uint16_t name_len
    uint16_t spare

# A part of the hash table: subjects whose hashes begin with the same `depth` bits.
cdef struct part_t:
    uint32_t used
    uint32_t cap            # number of slots
    uint32_t depth
    uint64_t slots[1]       # hash << 32 | id; 0 = empty

# Filters that match the same subjects.
cdef struct group_t:
    uint32_t refs           # subjects that have it
    uint32_t size
    uint32_t hash
    uint32_t next           # in its bucket, number + 1
    void *filters[1]        # borrowed, by address


cdef class SubjectIndex(FilterOwner):
    cdef readonly uint64_t messages     # live ones
    cdef readonly uint32_t size         # live subjects
    cdef readonly uint64_t next_seq     # seqs from it on may be added

    cdef tw_key_t key
    cdef part_t **parts                 # 1 << parts_bits, by the first bits of a hash
    cdef uint32_t parts_bits
    cdef subject_t **slabs              # subjects by id; slabs never move
    cdef uint32_t slabs_size
    cdef uint32_t ids_used              # ids below it were given out at least once
    cdef uint32_t id_free               # first of a chain; 0 = none
    cdef uint64_t ended                 # subjects that lost their last message, and calls of clear
    cdef char **names                   # blocks of names
    cdef uint32_t names_size
    cdef uint32_t name_end              # where the next new name goes
    cdef uint32_t names_free[NAME_CLASSES]

    # From chunks_first to chunks_end, in order; those without messages are gone, except the last.
    cdef chunk_t **chunks
    cdef uint64_t *blocks               # numbers of the chunks
    cdef size_t chunks_first, chunks_end, chunks_cap

    cdef Router router                  # filters by subject; None until there is one
    cdef object filters                 # weak, by subjects
    cdef list recent                    # those requested last, so that they are kept
    cdef void *newest                   # list of all filters, borrowed
    cdef uint32_t mark
    cdef group_t **groups               # number 0: no filter
    cdef uint32_t groups_size, groups_cap, groups_used, group_free
    cdef uint32_t *groups_chain         # by free number the next free one
    cdef uint32_t *buckets              # groups by hash
    cdef uint32_t buckets_mask

    # The message seq, higher than any before, has this subject; the subject's id.
    cdef uint32_t add(self, const char *subject, size_t n, uint64_t seq) except 0
    # Fetch what `add` will need for a subject, some time before: its place in the table (returns
    # the hash), then the subject itself.
    cdef uint32_t expect(self, const char *name, size_t n) noexcept nogil
    cdef void expect_subject(self, uint32_t hash) noexcept nogil
    cdef uint32_t find(self, const char *subject, size_t n) noexcept     # id, 0 = no live message
    cdef uint32_t subject_of(self, uint64_t seq) noexcept                # id, 0 = not live
    cdef bint remove_message(self, uint64_t seq) noexcept                # True = it was live
    # Messages from seq on were not stored; the seqs may be used again.
    cdef void undo_from(self, uint64_t seq) noexcept
    # All messages below seq are gone; how many there were.
    cdef uint64_t drop_below(self, uint64_t seq) noexcept
    cdef void clear(self) noexcept      # all messages are gone; next_seq stays

    # Of a live subject. The name is valid until the next change.
    cdef uint64_t first_of(self, uint32_t id) noexcept
    cdef uint64_t last_of(self, uint32_t id) noexcept
    cdef uint32_t count_of(self, uint32_t id) noexcept
    cdef const char *name_of(self, uint32_t id, size_t *n) noexcept
    # The neighbours of a live message with the same subject, 0 = none.
    cdef uint64_t next_of(self, uint64_t seq) noexcept
    cdef uint64_t previous_of(self, uint64_t seq) noexcept
    # The newest live message of a live subject that is not above seq, 0 = none.
    cdef uint64_t last_of_until(self, uint32_t id, uint64_t seq) noexcept

    # Of live messages that match; without a filter any. 0 = none.
    cdef uint64_t next_match(self, Filter f, uint64_t seq) noexcept     # the first one >= seq
    # The seqs of live messages in [seq, end), in order, at most `most`; how many.
    cdef size_t list_live(self, uint64_t seq, uint64_t end, uint64_t *into, size_t most) noexcept
    cdef uint64_t previous_match(self, Filter f, uint64_t seq) noexcept     # the last one <= seq
    cdef uint64_t last_match(self, Filter f) noexcept
    cdef uint64_t count_matching(self, Filter f, uint64_t from_seq) noexcept

    cdef int begin(self) except -1
    cdef void free_subjects(self) noexcept
    cdef part_t **part_of(self, uint32_t hash) noexcept nogil
    cdef uint32_t look_up(self, const char *name, size_t n, uint32_t hash) noexcept nogil
    cdef void prefetch(self, const subject_t *s) noexcept nogil
    cdef int insert(self, uint32_t hash, uint32_t id) except -1
    cdef int split(self, uint32_t hash) except -1
    cdef void replace(self, uint32_t hash, part_t *low, part_t *high) noexcept
    cdef int double_parts(self) except -1
    cdef void remove(self, uint32_t hash, uint32_t id) noexcept
    cdef uint32_t make_name(self, const char *name, size_t n) except 0
    cdef void free_name(self, uint32_t name, size_t n) noexcept
    cdef uint32_t make_subject(self, const char *name, size_t n, uint32_t hash) except 0
    cdef void leave_group(self, uint32_t id, uint32_t group) noexcept
    cdef void free_subject(self, uint32_t id) noexcept

    cdef size_t chunk_from(self, uint64_t block) noexcept nogil
    cdef bint place(self, uint64_t seq, size_t *chunk, size_t *index) noexcept nogil
    cdef chunk_t *chunk_for(self, uint64_t seq) except NULL
    cdef int make_room(self) except -1
    cdef void drop_chunk(self, size_t at) noexcept
    cdef void compact_chunk(self, size_t at) noexcept
    cdef void remove_at(self, size_t at, size_t i) noexcept
    cdef uint64_t follow(self, const chunk_t *c, size_t i, uint64_t seq, uint32_t id) noexcept
    cdef uint64_t follow_back(self, const chunk_t *c, size_t i, uint64_t seq,
                              uint32_t id) noexcept
    cdef void set_link(self, uint64_t seq, int side, uint64_t distance) noexcept
    cdef uint64_t search(self, uint32_t id, uint64_t seq) noexcept
    cdef uint64_t search_back(self, uint32_t id, uint64_t seq) noexcept
    cdef bint next_of_few(self, Filter f, uint64_t seq, uint64_t *found) noexcept
    cdef bint count_posts(self, Filter f) noexcept
    cdef bint count_links(self, Filter f, post_t *posts) noexcept

    cdef Filter new_filter(self, tuple key)
    cdef Filter in_use(self, Filter f)
    cdef int collect_exact(self, Filter f) except -1
    cdef int cover(self, Filter f, uint32_t id) except -1
    cdef int compare(self, Filter f, uint32_t start, uint32_t end) except -1
    cdef bint is_subscribed(self, Filter f, const char *name, size_t n) except -1
    cdef uint32_t group_of_name(self, const char *name, size_t n) except? 0xFFFFFFFF
    cdef uint32_t group_with(self, uint32_t group, void *filter) except? 0xFFFFFFFF
    cdef uint32_t group_of(self, void **filters, uint32_t size) except? 0xFFFFFFFF
    cdef uint32_t group_number(self) except 0
    cdef void grow_buckets(self) noexcept
    cdef void link_group(self, uint32_t number) noexcept
    cdef void unlink_group(self, uint32_t number) noexcept
    cdef void free_group(self, uint32_t number) noexcept
    cdef void regroup(self, uint32_t id, uint32_t group) noexcept
    cdef void drop_group_ref(self, uint32_t number) noexcept
    cdef void remove_from_group(self, uint32_t number, void *filter) noexcept

    cdef inline subject_t *at(self, uint32_t id) noexcept nogil:
        return &self.slabs[id >> 7][id & 127]

    cdef inline char *name_at(self, uint32_t name) noexcept nogil:
        return self.names[name >> 13] + <size_t>(name & 8191) * 8
