"""Numbers of the log of delivery events: default, unit, and why."""

from __future__ import annotations

from typing import Final

from broker import limits

# bytes of one record that is being gathered: about 1500 events, and the names they belong to
EVENTS_BUFFER: Final = 64 * limits.KIB
# ns from the first event of a record to its append: long enough that a quiet broker does not write
# a record for each message, short enough that nobody waits for them
EVENTS_LINGER: Final = 100 * limits.MS
EVENTS_LINGER_MAX: Final = 60 * limits.SECOND
# what the log keeps unless [[storage.topic]] says otherwise: nobody acknowledges these records
EVENTS_MAX_AGE: Final = 7 * 24 * 3600 * limits.SECOND
EVENTS_MAX_BYTES: Final = 1 * limits.GIB

assert EVENTS_LINGER <= EVENTS_LINGER_MAX
assert EVENTS_BUFFER < limits.STORAGE_SEGMENT_SIZE_MAX
