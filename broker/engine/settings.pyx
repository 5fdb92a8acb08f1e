# cython: language_level=3
"""Settings of a log, syncing and keeping, and how a change of them takes effect at once.

Values come from the configuration; those set for one log while it runs stand in its metadata and
win over it:

    sync                         'always', 'none' or a period in seconds
    max_age, max_bytes, max_msgs the log drops what is older or beyond that, read or not; 0 = any
    keep, keep_bytes             what every cursor is done with stays so long (ns), at most so
                                 many bytes; 0 and 0 = it goes at once
"""
from broker.engine.log.log cimport Log

from broker.engine.log.policy import OWNED

KEYS = ('sync', 'max_age', 'max_bytes', 'max_msgs', 'keep', 'keep_bytes')
SYNC_NAMES = ('always', 'none')


def effective(Log log, sync_for, retention_for):
    """The values in force for a log, by key."""
    kept = retention_for(log.name) or (0,) * 5
    configured = zip(KEYS, (sync_for(log.name), *kept), strict=True)
    return {key: log.settings.get(key, value) for key, value in configured}


def configure(Log log, sync_for, retention_for):
    """Let a log follow the configuration and its own settings."""
    if log.policy.retention == OWNED:
        return      # its owner has settings of its own
    values = effective(log, sync_for, retention_for)
    log.set_sync(values['sync'])
    log.retention.configure(
        (values['max_age'], values['max_bytes'], values['max_msgs']),
        values['keep'], values['keep_bytes'])


def change(Log log, dict settings, sync_for, retention_for):
    """Put other settings in the place of the log's own, now and for good; OSError: as before."""
    log.replace_settings(settings)
    configure(log, sync_for, retention_for)
    log.settings_changed()


def valid(settings):
    """Whether this can have been stored as the settings of a log."""
    return isinstance(settings, dict) and all(
        sync_is_valid(value) if key == 'sync' else type(value) is int and 0 <= value < 1 << 63
        for key, value in settings.items()) and settings.keys() <= set(KEYS)


def sync_is_valid(value):
    """Whether this is a sync policy."""
    return value in SYNC_NAMES or (type(value) in (int, float) and 0 < value < 1e9)
