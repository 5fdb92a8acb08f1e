"""Patterns of scheduled messages, as nats-server 2.15.2 understands them."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from broker.protocols.jetstream.publish.schedules import (
    Cron,
    ScheduleError,
    TimeZoneError,
    parse,
)

if TYPE_CHECKING:
    from collections.abc import Callable

SECOND = 10**9


def at(text: str, zone: str = "UTC") -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp()) * SECOND


def text_of(wall_ns: int, zone: str = "UTC") -> str:
    return datetime.fromtimestamp(wall_ns // SECOND, ZoneInfo(zone)).strftime("%Y-%m-%d %H:%M:%S")


@pytest.mark.parametrize(
    "pattern",
    [
        "", "junk", "@at", "@at junk", "@at  2020-01-01T00:00:00Z", "@at 2020-01-01 00:00:00",
        "@AT 2040-01-01T01:00:00Z", "@every", "@every -1s", "@every 500ms", "@every 1",
        "0 0 * * *", "0 0 0 * * 7", "0 0 0 L * *", "60 * * * * *", "0 0 0 31 2 *", "0 0 24 * * *",
        "1-0 * * * * *", "TZ=UTC 0 0 0 * * *", "@nope", "*/0 * * * * *", "1, * * * * *",
        "0 0 0 0 * *", "0 0 0 * 13 *", "0 0 0 * foo *", "٣ * * * * *",
    ],
)  # fmt: skip
def test_invalid_patterns(pattern: str) -> None:
    with pytest.raises(ScheduleError):
        parse(pattern)


def test_once() -> None:
    for pattern, due in (
        ("@at 2040-01-01T01:00:00Z", at("2040-01-01T01:00:00")),
        ("@at 2040-01-01T01:00:00.5+02:00", at("2039-12-31T23:00:00") + SECOND // 2),
    ):
        schedule = parse(pattern)
        assert schedule.first(5) == due
        assert schedule.following(due, due) == 0


def test_again_and_again() -> None:
    schedule = parse("@every 2s")
    stored = at("2026-11-25T23:32:30") + 458_443_403
    due = schedule.first(stored)
    assert text_of(due) == "2026-11-25 23:32:32"
    assert text_of(schedule.following(due, due + 2_175_603)) == "2026-11-25 23:32:34"
    # what was missed is left out, and the times stay the same ones
    assert text_of(schedule.following(due, due + 7 * SECOND)) == "2026-11-25 23:32:40"


@pytest.mark.parametrize(
    ("pattern", "now", "due"),
    [
        ("@hourly", "2026-11-25 23:32:30", "2026-11-26 00:00:00"),
        ("@daily", "2026-11-25 23:32:30", "2026-11-26 00:00:00"),
        ("@midnight", "2026-11-26 00:00:00", "2026-11-27 00:00:00"),
        ("@weekly", "2026-11-25 23:32:30", "2026-11-29 00:00:00"),
        ("@monthly", "2026-11-25 23:32:30", "2026-12-01 00:00:00"),
        ("@yearly", "2026-11-25 23:32:30", "2027-01-01 00:00:00"),
        ("@annually", "2027-01-01 00:00:00", "2028-01-01 00:00:00"),
        ("* * * * * *", "2026-11-25 23:59:59", "2026-11-26 00:00:00"),
        ("*/5 * * * * *", "2026-11-25 23:32:31", "2026-11-25 23:32:35"),
        ("5/10 * * * * *", "2026-11-25 23:32:31", "2026-11-25 23:32:35"),
        ("0 0 0 * * MON-FRI", "2026-11-27 10:00:00", "2026-11-30 00:00:00"),
        ("0 0 0 * jan sun", "2026-11-27 10:00:00", "2027-01-03 00:00:00"),
        ("0 30 8,20 * * *", "2026-11-27 10:00:00", "2026-11-27 20:30:00"),
        ("0 0 0 29 2 *", "2026-11-27 10:00:00", "2028-02-29 00:00:00"),
        ("0  0 0 ? * ?", "2026-11-27 10:00:00", "2026-11-28 00:00:00"),
        # the 1st, and Mondays
        ("0 0 0 1 * MON", "2026-11-27 10:00:00", "2026-11-30 00:00:00"),
        ("0 0 0 1 * MON", "2026-11-30 10:00:00", "2026-12-01 00:00:00"),
    ],
)
def test_cron(pattern: str, now: str, due: str) -> None:
    schedule = parse(pattern)
    assert text_of(schedule.first(at(now.replace(" ", "T")))) == due
    assert text_of(schedule.following(0, at(now.replace(" ", "T")) + SECOND // 2)) == due


def test_cron_of_a_time_zone() -> None:
    zone = "Europe/Berlin"
    schedule = parse("0 0 12 * * *", zone)
    now = at("2026-07-01T11:59:59", zone)
    assert text_of(schedule.first(now), zone) == "2026-07-01 12:00:00"
    assert text_of(schedule.first(now)) == "2026-07-01 10:00:00"


def test_a_time_that_a_clock_leaves_out() -> None:
    zone = "Europe/Berlin"
    schedule = parse("0 30 2 * * *", zone)
    assert text_of(schedule.first(at("2026-03-28T12:00:00", zone)), zone) == "2026-03-30 02:30:00"


def test_time_zones() -> None:
    for pattern in ("@at 2040-01-01T01:00:00Z", "@every 1s"):
        with pytest.raises(ScheduleError):
            parse(pattern, "Europe/Berlin")
    for zone in ("Nowhere", "../etc/passwd", "/etc/passwd", "Europe"):
        with pytest.raises(TimeZoneError):
            parse("@daily", zone)
    assert parse("@daily").first(0) == at("1970-01-02T00:00:00")
    assert datetime.fromtimestamp(0, UTC).year == 1970


# --- days that a pattern has ---------------------------------------------------------------------


def field(low: int, high: int) -> st.SearchStrategy[str]:
    numbers = st.integers(low, high)
    return (
        st.sampled_from(["*", "*/7", "*/29", "*/31"])
        | numbers.map(str)
        | st.lists(numbers, min_size=1, max_size=3).map(lambda found: ",".join(map(str, found)))
    )


@settings(max_examples=300)
@given(
    field(1, 31), field(1, 12), field(0, 6), st.dates(date(1970, 1, 1), date(2100, 1, 1)),
    st.integers(1, 800),
)  # fmt: skip
def test_days_are_those_of_a_walk(
    days: str, months: str, weekdays: str, first: date, count: int
) -> None:
    assume("/31" not in months + weekdays and "/29" not in months + weekdays)
    try:
        cron = parse(f"0 0 0 {days} {months} {weekdays}")
    except ScheduleError:
        cron = parse(f"0 0 0 * {months} {weekdays}")
    assert isinstance(cron, Cron)
    walked = []
    for number in range(count):
        day = first + timedelta(days=number)
        by_month, by_week = day.day in cron.days, day.isoweekday() % 7 in cron.weekdays
        if day.month in cron.months and (
            by_month or by_week if cron.either else by_month and by_week
        ):
            walked.append(day)
    assert list(cron.dates(first, count)) == walked


def test_a_pattern_without_days_is_refused_after_few_looks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks = 0

    def count(real: Callable[..., Any]) -> Callable[..., Any]:
        def look(*args: Any) -> Any:
            nonlocal looks
            looks += 1
            return real(*args)

        return look

    for name in ("_matches_day", "_exists", "_at"):
        monkeypatch.setattr(Cron, name, count(getattr(Cron, name)))
    for pattern in ("0 0 0 30 2 *", "0 0 0 31 2,4,6,9,11 *", "0 0 0 29 2 */7"):
        with pytest.raises(ScheduleError):
            parse(pattern)
    assert looks < 10
    # one second of the year that the clocks leave out, and the last second of an hour
    schedule = parse("* * 2 8-14 3 */7", "America/New_York")
    assert schedule.following(0, at("2026-03-09T00:00:00")) == 0
    assert text_of(parse("* * * * * *").first(at("2026-03-09T10:59:58"))) == "2026-03-09 10:59:59"
    assert looks < 1_000
