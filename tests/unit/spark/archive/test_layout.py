"""Names of an archive's folders and files."""

from __future__ import annotations

import pytest

from broker.spark.archive import layout


def test_a_record_of_an_hour() -> None:
    hour = 1_763_740_800 // 3600  # 2025-11-21T16:00Z
    assert layout.folder("orders", hour) == "topic=orders/date=2025-11-21/hour=16"
    name = layout.file_name("orders", layout.Name(0, 1, 500_000, "9f3a12bcdd00"))
    assert name == "orders-0-1-500000-9f3a12bc.parquet"


def test_hours_before_1970_and_long_after() -> None:
    assert layout.folder("t", -1) == "topic=t/date=1969-12-31/hour=23"
    assert layout.folder("t", 2**63 // 3_600_000_000_000) == "topic=t/date=2262-04-11/hour=23"


@pytest.mark.parametrize(
    "topic", ["orders", "a-b-7-8", ".hidden", "_x", "ünï", "a/b", "a=b", "x" * 400, "%" * 200, "~"]
)
@pytest.mark.parametrize("records", [None, 17])
def test_names_can_be_read_again(topic: str, records: int | None) -> None:
    name = layout.file_name(topic, layout.Name(3, 17, 2**63, "AB-12ffffffff"), records)
    assert layout.parse_name(name) == (3, 17, 2**63, "ab12ffff")
    assert name[0] not in "._"
    assert "/" not in name
    assert len(name) < 256
    assert len(layout.topic_folder(topic)) < 256


def test_long_topics_do_not_meet() -> None:
    names = {layout.file_name("x" * n, layout.Name(0, 1, 2, "ab")) for n in range(300, 400)}
    folders = {layout.topic_folder("x" * n) for n in range(300, 400)}
    assert len(names) == len(folders) == 100


def test_other_files_are_not_ours() -> None:
    for name in ("part-0000.parquet", "orders-0-1-2-ab.txt", ".x.tmp", "orders-0-1-ab.parquet"):
        assert layout.parse_name(name) is None, name


def test_a_day_has_no_hour() -> None:
    folder = layout.folder("orders", None, "2026-11-21")
    assert folder == "topic=orders/date=2026-11-21/hour=__HIVE_DEFAULT_PARTITION__"
    assert layout.is_day_file(f"{folder}/x.parquet")
    assert layout.date_of(f"{folder}/x.parquet") == "2026-11-21"
