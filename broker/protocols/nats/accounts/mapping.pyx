# cython: language_level=3
"""Subject mappings of an account.

    orders.*   80 % -> new.orders.$1        below 80
               (20 % are unchanged)         below 100

A literal source takes precedence over patterns; of patterns, the first in the configuration wins.
The original's order is undefined: that of a Go map. Source: accounts.go AddWeightedMappings,
selectMappedSubject.
"""
cimport cython
import os

from libc.stdint cimport uint32_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcmp

from broker.routing.trie cimport key_of
from broker.runtime.types cimport tw_hash
from broker.protocols.nats.accounts.transform cimport Transform, within

from broker.protocols.nats import errors
from broker.base.gotext import go_quote
from broker.protocols.nats.accounts.subjects import has_wildcard, is_subject, numbered, raw
from broker.protocols.nats.accounts.placeholders import MappingError, check_destination


def weighted_transforms(mapping, str cluster=''):
    """[(Transform, below)] of one settings.Mapping on a server of this cluster; MappingError."""
    cdef dict by_cluster = {'': []}
    cdef set seen = set()
    if not is_subject(mapping.source):
        raise MappingError(errors.NATS_BAD_SUBJECT)
    for destination in mapping.destinations:
        if destination.subject in seen:
            raise MappingError(
                errors.NATS_MAPPING_TWICE.format(quoted=go_quote(raw(destination.subject))))
        seen.add(destination.subject)
        if not 0 <= destination.weight <= 100:
            raise MappingError(errors.NATS_MAPPING_WEIGHT)
        found = by_cluster.setdefault(destination.cluster, [])
        if sum(weight for _, weight in found) + destination.weight > 100:
            raise MappingError(errors.NATS_MAPPING_WEIGHTS)
        check_destination(destination.subject)
        found.append((Transform(mapping.source, destination.subject), destination.weight))
    chosen = [entry for entry in by_cluster.get(cluster) or by_cluster[''] if entry[1]]
    rest = 100 - sum(weight for _, weight in chosen)
    if rest and mapping.source not in seen:     # a mapping to the source itself means a loss
        chosen.append((Transform(mapping.source, numbered(mapping.source)), rest))
    chosen.sort(key=lambda entry: entry[1])
    below = 0
    for index, (transform, weight) in enumerate(chosen):
        below += weight
        chosen[index] = (transform, below)
    return chosen


@cython.final
cdef class Mapper:
    def __init__(self, tuple mappings, str cluster=''):
        """`mappings`: settings.Mapping; raises MappingError. `cluster`: that of this server."""
        cdef dict rules = {}
        cdef uint32_t choices = 0
        self.key = key_of(os.urandom(sizeof(self.key)))
        self.random = int.from_bytes(os.urandom(8), 'little') | 1
        self.kept = []
        for mapping in mappings:    # a later mapping replaces an earlier one of the same source
            rules[mapping.source] = weighted_transforms(mapping, cluster)
            choices += <uint32_t>len(rules[mapping.source])
        order = sorted(rules, key=has_wildcard)
        self.literals = <uint32_t>sum(not has_wildcard(source) for source in order)
        self.sources = tuple(raw(source) for source in order)
        self.table_mask = 1
        while self.table_mask < 2 * self.literals:
            self.table_mask = self.table_mask * 2 + 1
        self.rules = <rule_t *>calloc(max(len(order), 1), sizeof(rule_t))
        self.choices = <choice_t *>malloc(max(choices, 1) * sizeof(choice_t))
        self.table = <uint32_t *>calloc(<size_t>self.table_mask + 1, sizeof(uint32_t))
        if self.rules == NULL or self.choices == NULL or self.table == NULL:
            raise MemoryError
        choices = 0
        for source in order:
            choices = self.fill(self.sources[self.rules_size], rules[source], choices)

    def __dealloc__(self):
        free(self.rules)
        free(self.choices)
        free(self.table)

    def fill(self, bytes source, list chosen, uint32_t at):
        """Set the next rule with its choices at index `at`; returns the index after them."""
        cdef rule_t *rule = self.rules + self.rules_size
        cdef uint32_t i
        rule.source = source
        rule.source_len = <uint32_t>len(source)
        rule.first = at
        rule.size = <uint32_t>len(chosen)
        rule.fixed = not chosen or chosen[0][1] == 100
        for transform, below in chosen:
            self.kept.append(transform)
            self.choices[at].transform = <void *>transform
            self.choices[at].below = below
            at += 1
        if self.rules_size < self.literals:
            i = tw_hash(&self.key, rule.source, rule.source_len) & self.table_mask
            while self.table[i]:
                i = (i + 1) & self.table_mask
            self.table[i] = self.rules_size + 1
        self.rules_size += 1
        return at

    cdef rule_t *find(self, const char *subject, size_t n) noexcept nogil:
        cdef uint32_t i
        cdef rule_t *rule
        if self.literals:
            i = tw_hash(&self.key, subject, n) & self.table_mask
            while self.table[i]:
                rule = self.rules + self.table[i] - 1
                if rule.source_len == n and memcmp(rule.source, subject, n) == 0:
                    return rule
                i = (i + 1) & self.table_mask
        for i in range(self.literals, self.rules_size):
            rule = self.rules + i
            if within(subject, n, rule.source, rule.source_len):
                return rule
        return NULL

    cdef int map(self, const char *subject, size_t n, char *out, size_t *out_len) noexcept nogil:
        cdef rule_t *rule = self.find(subject, n)
        cdef choice_t *choice
        cdef uint32_t i, draw = 0
        cdef int chance = 0
        cdef Py_ssize_t size
        if rule == NULL:
            return MAP_SAME
        if not rule.fixed:
            chance = MAP_CHANCE
            # xorshift
            self.random ^= self.random << 13
            self.random ^= self.random >> 7
            self.random ^= self.random << 17
            draw = <uint32_t>(((self.random >> 32) * 100) >> 32)
        for i in range(rule.size):
            choice = self.choices + rule.first + i
            if draw < choice.below:
                size = (<Transform>choice.transform).apply(subject, n, out)
                if size < 0:
                    break
                out_len[0] = <size_t>size
                if (<Transform>choice.transform).random:
                    chance = MAP_CHANCE
                return MAP_TO | chance
        return MAP_LOST | chance

    def __call__(self, bytes subject):
        """(the subject or None if dropped, whether the result is random)."""
        cdef char out[0xFFFF]
        cdef size_t n = 0
        cdef int answer = self.map(subject, <size_t>len(subject), out, &n)
        if answer & MAP_TO:
            return out[:n], bool(answer & MAP_CHANCE)
        return None if answer & MAP_LOST else subject, bool(answer & MAP_CHANCE)
