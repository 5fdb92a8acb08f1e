"""When a scheduled message is due: the patterns of Nats-Schedule.

    @at 2026-11-25T23:00:00Z        once
    @every 1m30s                    periodically, from the time of the message on
    @hourly, @daily, @weekly ...    names for cron patterns
    0 30 8 * * MON-FRI              second, minute, hour, day of the month, month, day of the week

Times are wall clock nanoseconds; those of repeating patterns are whole seconds. If a pattern
restricts days of the month and of the week, a day has to match only one of them.
"""

from __future__ import annotations

import calendar
import zoneinfo
from datetime import UTC, date, datetime, tzinfo
from typing import TYPE_CHECKING, Final, NamedTuple

from broker.base.units import SECOND
from broker.protocols.jetstream import limits
from broker.protocols.jetstream.publish.wire import duration_ns
from broker.protocols.jetstream.structs import moment_ns

if TYPE_CHECKING:
    from collections.abc import Iterator

_NAMES: Final = {
    "@yearly": "0 0 0 1 1 *",
    "@annually": "0 0 0 1 1 *",
    "@monthly": "0 0 0 1 * *",
    "@weekly": "0 0 0 * * 0",
    "@daily": "0 0 0 * * *",
    "@midnight": "0 0 0 * * *",
    "@hourly": "0 0 * * * *",
}
_MONTHS: Final[dict[str, int]] = {
    "jan": 1, "feb": 2, "mar": 3, "apr": 4, "may": 5, "jun": 6,
    "jul": 7, "aug": 8, "sep": 9, "oct": 10, "nov": 11, "dec": 12,
}  # fmt: skip
_DAYS: Final = {"sun": 0, "mon": 1, "tue": 2, "wed": 3, "thu": 4, "fri": 5, "sat": 6}
_FIELDS: Final[tuple[tuple[int, int, dict[str, int]], ...]] = (
    (0, 59, {}),
    (0, 59, {}),
    (0, 23, {}),
    (1, 31, {}),
    (1, 12, _MONTHS),
    (0, 6, _DAYS),
)
_YEARS: Final = (date(2023, 1, 1), 4 * 366)  # a pattern without a day in this period is invalid
_EVERY_MIN: Final = 1 * SECOND


class ScheduleError(ValueError):
    """A pattern is invalid."""


class TimeZoneError(ValueError):
    """A time zone is unknown."""


class At(NamedTuple):
    """A single time."""

    at_ns: int

    def first(self, _stored_ns: int) -> int:
        """The first due time. `stored_ns`: the time of the message."""
        return self.at_ns

    def following(self, _due_ns: int, _now_ns: int) -> int:
        """The next due time that is later than now; 0 = never."""
        return 0

    def adjusted(self, due_ns: int, _now_ns: int) -> int:
        """When it is due, after the clock was set back to now."""
        return due_ns


class Every(NamedTuple):
    """A period."""

    period_ns: int

    def first(self, stored_ns: int) -> int:
        """The first due time. `stored_ns`: the time of the message."""
        return (stored_ns + self.period_ns + SECOND // 2) // SECOND * SECOND

    def following(self, due_ns: int, now_ns: int) -> int:
        """The next due time that is later than now."""
        periods = max(1, (now_ns - due_ns) // self.period_ns + 1)
        return (due_ns + periods * self.period_ns + SECOND // 2) // SECOND * SECOND

    def adjusted(self, due_ns: int, now_ns: int) -> int:
        """When it is due, after the clock was set back to now."""
        periods = max(0, due_ns - now_ns - 1) // self.period_ns
        return (due_ns - periods * self.period_ns + SECOND // 2) // SECOND * SECOND


class Cron(NamedTuple):
    """A cron pattern."""

    seconds: tuple[int, ...]
    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: tuple[int, ...]
    months: frozenset[int]
    weekdays: frozenset[int]
    either: bool  # days of the month and of the week are both restricted
    zone: tzinfo

    def first(self, stored_ns: int) -> int:
        """The first due time. `stored_ns`: the time of the message."""
        return self.following(0, stored_ns)

    def following(self, _due_ns: int, now_ns: int) -> int:
        """The next due time that is later than now; 0 = never."""
        after = now_ns // SECOND
        today = datetime.fromtimestamp(after, self.zone).date()
        for day in self.dates(today, limits.JS_CRON_DAYS_MAX):
            found = self._first_of_day(day, after)
            if found:
                return found * SECOND
        return 0

    def adjusted(self, due_ns: int, now_ns: int) -> int:
        """When it is due, after the clock was set back to now."""
        return min(due_ns, self.following(0, now_ns) or due_ns)

    def dates(self, first: date, count: int) -> Iterator[date]:
        """The days of the pattern among `count` days from `first` on. Months without such days are
        skipped."""
        last = first.toordinal() + count - 1
        year, month = first.year, first.month
        while date(year, month, 1).toordinal() <= last:
            size = calendar.monthrange(year, month)[1] if month in self.months else 0
            for number in range(1, size + 1) if self.either else self.days:
                if number <= size:
                    day = date(year, month, number)
                    if first <= day and day.toordinal() <= last and self._matches_day(day):
                        yield day
            year, month = (year, month + 1) if month < 12 else (year + 1, 1)
            if year > date.max.year:
                return

    def _matches_day(self, day: date) -> bool:
        by_month, by_week = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        return by_month or by_week if self.either else by_month and by_week

    def _first_of_day(self, day: date, after: int) -> int:
        """The first time of a day that is later than the second `after`; 0 = none."""
        if not self._may_have(day, (0, 0, 0), (23, 59, 59), after):
            return 0
        for hour in self.hours:
            if not self._may_have(day, (hour, 0, 0), (hour, 59, 59), after):
                continue
            for minute in self.minutes:
                if not self._may_have(day, (hour, minute, 0), (hour, minute, 59), after):
                    continue
                for second in self.seconds:
                    here = self._at(day, hour, minute, second)
                    stamp = int(here.timestamp())
                    if stamp > after and self._exists(here):
                        return stamp
        return 0

    def _at(self, day: date, hour: int, minute: int, second: int) -> datetime:
        return datetime(day.year, day.month, day.day, hour, minute, second, tzinfo=self.zone)

    def _may_have(
        self, day: date, first: tuple[int, int, int], last: tuple[int, int, int], after: int
    ) -> bool:
        """Whether a part of a day ends after the second `after`, and clocks that are set forward do
        not skip it."""
        end = self._at(day, *last)
        return end.timestamp() > after and (
            self._exists(end) or self._exists(self._at(day, *first))
        )

    def _exists(self, here: datetime) -> bool:
        """Whether this local time exists: clocks that are set forward skip some times."""
        return datetime.fromtimestamp(here.timestamp(), self.zone) == here


Schedule = At | Every | Cron


def parse(text: str, zone: str = "") -> Schedule:
    """The schedule of a pattern. ScheduleError, TimeZoneError."""
    kind, blank, rest = text.partition(" ")
    if blank and kind in {"@at", "@every"}:
        if zone:
            raise ScheduleError(text)
        return _at(rest) if kind == "@at" else _every(rest)
    return _cron(_NAMES.get(text, text), _zone(zone))


def _at(text: str) -> At:
    try:
        at_ns = moment_ns(text)
    except ValueError as problem:
        raise ScheduleError(text) from problem
    if text != text.strip() or not text:
        raise ScheduleError(text)
    return At(at_ns)


def _every(text: str) -> Every:
    period_ns = duration_ns(text.encode())
    if period_ns is None or period_ns < _EVERY_MIN:
        raise ScheduleError(text)
    return Every(period_ns)


def _zone(name: str) -> tzinfo:
    if not name:
        return UTC
    try:
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError) as problem:
        raise TimeZoneError(name) from problem


def _cron(text: str, zone: tzinfo) -> Cron:
    words = text.split()
    if len(words) != len(_FIELDS):
        raise ScheduleError(text)
    found = [_field(word, *field) for word, field in zip(words, _FIELDS, strict=True)]
    days, weekdays = words[3], words[5]
    cron = Cron(
        tuple(sorted(found[0])),
        tuple(sorted(found[1])),
        tuple(sorted(found[2])),
        tuple(sorted(found[3])),
        frozenset(found[4]),
        frozenset(found[5]),
        days[0] not in "*?" and weekdays[0] not in "*?",
        zone,
    )
    if next(cron.dates(*_YEARS), None) is None:
        raise ScheduleError(text)
    return cron


def _field(text: str, low: int, high: int, names: dict[str, int]) -> set[int]:
    """The values of one field: a list of `*`, numbers, ranges, each with a step."""
    found: set[int] = set()
    for part in text.split(","):
        span, slash, step_text = part.partition("/")
        step = _number(step_text, {}) if slash else 1
        if span in {"*", "?"}:
            first, last = low, high
        else:
            begin, dash, end = span.partition("-")
            first = _number(begin, names)
            last = _number(end, names) if dash else high if slash else first
        if not low <= first <= last <= high or step < 1:
            raise ScheduleError(text)
        found.update(range(first, last + 1, step))
    return found


def _number(text: str, names: dict[str, int]) -> int:
    if text.lower() in names:
        return names[text.lower()]
    if not (text.isascii() and text.isdecimal()):
        raise ScheduleError(text)
    return int(text)
