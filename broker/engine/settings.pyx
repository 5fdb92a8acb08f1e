# cython: language_level=3
"""What a log is told about syncing and keeping, and how a change of it takes effect at once.

Values come from the configuration; those set for one log while it runs stand in its metadata and
win over it:

    sync                         'always', 'none' or a period in seconds
    max_age, max_bytes, max_msgs the log drops what is older or beyond that, read or not; 0 = any
    keep, keep_bytes             what every cursor is done with stays so long (ns), at most so
                                 many bytes; 0 and 0 = it goes at once
"""
from broker.engine.log.log cimport SYNC_PERIOD, Log
from broker.engine.log.retention cimport enforce, trim

KEYS = ('sync', 'max_age', 'max_bytes', 'max_msgs', 'keep', 'keep_bytes')
SYNC_NAMES = ('always', 'none')


def effective(Log log, policy_for, retention_for):
    """The values that hold for a log, by key."""
    kept = retention_for(log.name) or (0,) * 5
    configured = zip(KEYS, (policy_for(log.name), *kept), strict=True)
    return {key: log.settings.get(key, value) for key, value in configured}


def configure(Log log, policy_for, retention_for):
    """Let a log follow the configuration and its own settings."""
    values = effective(log, policy_for, retention_for)
    log.set_policy(values['sync'])
    limits = (values['max_age'], values['max_bytes'], values['max_msgs'])
    log.retention = limits if any(limits) else None
    log.keep_ns, log.keep_bytes = values['keep'], values['keep_bytes']


def change(Log log, dict settings, policy_for, retention_for):
    """Put other settings in the place of the log's own, now and for good; OSError: as before."""
    before = log.settings
    log.settings = settings
    try:
        log.save(True)
    except OSError:
        log.settings = before
        raise
    configure(log, policy_for, retention_for)
    try:
        log.restamp()
    except OSError as problem:
        log.shared.report('warning', 'a segment cannot be told of the settings', log=log.name,
                          reason=str(problem))
    log.touch()
    log.settle()    # who waited for a sync that is not asked for any more
    if log.sync_policy == SYNC_PERIOD and log.unsynced and log.timer.pos == 0:
        log.shared.turn.arm(log, log.shared.turn.now_ns + log.sync_period_ns)
    trim(log)
    if log.retention is not None:
        enforce(log)


def valid(settings):
    """Whether this can have been stored as the settings of a log."""
    return isinstance(settings, dict) and all(
        sync_is_valid(value) if key == 'sync' else type(value) is int and 0 <= value < 1 << 63
        for key, value in settings.items()) and settings.keys() <= set(KEYS)


def sync_is_valid(value):
    """Whether this is a sync policy."""
    return value in SYNC_NAMES or (type(value) in (int, float) and 0 < value < 1e9)
