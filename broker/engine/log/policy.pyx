# cython: language_level=3
"""The policy of a log: when appends are synced, when messages are dropped, and to what it is bound.

    sync        'always'    an append is answered when it is on the disk
                a period    in seconds: answered when it is written, synced that often
                'none'      answered when it is written, synced when the kernel does it
    retention   'acked'     messages are dropped when all cursors have finished them
                'limits'    messages are dropped by limits of age, bytes and count, finished or not
                'owned'     messages are dropped when the log's owner says so, which also opens
                            its readers; seqs may be left out
    subjects    None        what is published to the log's own name is stored
                a tuple     what is published to one of these subjects, which may have wildcards

A policy is immutable: a log gets another one. The sync policy comes from the configuration and from
the log's settings; retention and subjects are stored with the log's metadata.
"""
from broker.engine import limits
from broker.engine.log.subjects import check_subject

ACKED = 'acked'
LIMITS = 'limits'
OWNED = 'owned'

cdef tuple NAMES = (ACKED, LIMITS, OWNED)      # in order of RetentionMode

cdef dict plain = {}        # (sync, retention) -> LogPolicy


cdef class LogPolicy:
    def __init__(self, sync='none', retention=ACKED, subjects=None):
        """See above. ValueError: unknown retention, or invalid subjects."""
        self.set_sync(sync)
        self.set_retention(retention)
        self.set_subjects(subjects)

    cdef object set_sync(self, object sync):
        if sync == 'always':
            self.sync_mode = SYNC_ALWAYS
        elif sync == 'none':
            self.sync_mode = SYNC_NONE
        else:
            self.sync_mode = SYNC_PERIOD
            self.sync_period_ns = int(sync * 1e9)

    cdef object set_retention(self, object retention):
        if retention not in NAMES:
            raise ValueError(f'invalid retention {retention!r}')
        self.retention_mode = <RetentionMode><int>NAMES.index(retention)

    cdef object set_subjects(self, object subjects):
        if subjects is None:
            self.subjects = None
            return
        self.subjects = tuple(dict.fromkeys(subjects))
        if len(self.subjects) > limits.LOG_SUBJECTS_MAX:
            raise ValueError(f'more than {limits.LOG_SUBJECTS_MAX} subjects')
        for subject in self.subjects:
            check_subject(subject)

    cdef LogPolicy copy(self):
        cdef LogPolicy other = LogPolicy.__new__(LogPolicy)
        other.sync_mode = self.sync_mode
        other.sync_period_ns = self.sync_period_ns
        other.retention_mode = self.retention_mode
        other.subjects = self.subjects
        return other

    @property
    def sync(self):
        """'always', 'none' or a period in seconds."""
        if self.sync_mode == SYNC_PERIOD:
            return self.sync_period_ns / 1e9
        return 'always' if self.sync_mode == SYNC_ALWAYS else 'none'

    @property
    def retention(self):
        """'acked', 'limits' or 'owned'."""
        return NAMES[<int>self.retention_mode]

    cdef LogPolicy with_sync(self, object sync):
        cdef LogPolicy other = self.copy()
        other.set_sync(sync)
        same = other.sync_mode == self.sync_mode and other.sync_period_ns == self.sync_period_ns
        return self if same else other

    cdef LogPolicy with_retention(self, object retention):
        cdef LogPolicy other = self.copy()
        other.set_retention(retention)
        return other

    cdef LogPolicy with_subjects(self, object subjects):
        cdef LogPolicy other = self.copy()
        other.set_subjects(subjects)
        return other


def plain_policy(sync, retention):
    """The policy of a log that is bound to its own name. Equal policies share one object. `sync` is
    a value of the configuration, of which there are few."""
    policy = plain.get((sync, retention))
    if policy is None:
        policy = plain[sync, retention] = LogPolicy(sync, retention)
    return policy


def implied_retention(protocol):
    """The retention of a log whose metadata do not name one: in earlier builds all logs of a
    protocol, and no others, had limits."""
    return ACKED if protocol is None else LIMITS
