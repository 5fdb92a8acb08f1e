# cython: language_level=3
"""Settings of a log, for syncs and retention; a change takes effect at once.

Values come from the configuration. Those that are set for one log at run time are stored in its
metadata and override the configuration:

    sync                         'always', 'none' or a period in seconds
    max_age, max_bytes, max_msgs limits of the log, whether its records were read or not; 0 = none
    keep, keep_bytes             how long (ns), and up to how many bytes, finished records are kept;
                                 0 and 0 = they are not kept
"""
from broker.engine.log.log cimport Log

from broker.engine.log.policy import OWNED

KEYS = ('sync', 'max_age', 'max_bytes', 'max_msgs', 'keep', 'keep_bytes')
SYNC_NAMES = ('always', 'none')


def effective(Log log, sync_for, retention_for):
    """The settings in force for a log, by key."""
    kept = retention_for(log.name) or (0,) * 5
    configured = zip(KEYS, (sync_for(log.name), *kept), strict=True)
    return {key: log.settings.get(key, value) for key, value in configured}


def configure(Log log, sync_for, retention_for):
    """Apply the configuration and the log's own settings to a log."""
    if log.policy.retention == OWNED:
        return      # its owner has settings of its own
    values = effective(log, sync_for, retention_for)
    log.set_sync(values['sync'])
    log.retention.configure(
        (values['max_age'], values['max_bytes'], values['max_msgs']),
        values['keep'], values['keep_bytes'])


def change(Log log, dict settings, sync_for, retention_for):
    """Replace the log's own settings permanently. OSError: nothing has changed."""
    log.replace_settings(settings)
    configure(log, sync_for, retention_for)
    log.settings_changed()


def valid(settings):
    """Whether this is a valid stored value of a log's settings."""
    return isinstance(settings, dict) and all(
        sync_is_valid(value) if key == 'sync' else type(value) is int and 0 <= value < 1 << 63
        for key, value in settings.items()) and settings.keys() <= set(KEYS)


def sync_is_valid(value):
    """Whether this is a sync policy."""
    return value in SYNC_NAMES or (type(value) in (int, float) and 0 < value < 1e9)
