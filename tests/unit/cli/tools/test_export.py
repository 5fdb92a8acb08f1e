"""`twinwire export`: files by seq range, whatever interrupts it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from support.bulk.fake import Answer, FakeBulkApi, FakeLog, json_answer
from support.clients.frames import header_block, record

from broker.cli.tools.export import NEEDS, _SeqOrTime, export
from broker.client.bulk.errors import MISSING

ROOT = Path(__file__).parents[4]
HEADERS = header_block((b"K", b"\xff"))
TEN = {seq: record(seq, b"body-%d" % seq, headers=HEADERS) for seq in range(1, 11)}


@pytest.fixture
def log() -> FakeLog:
    return FakeLog(dict(TEN), 11)


@pytest.fixture
def fake(log: FakeLog) -> Iterator[FakeBulkApi]:
    with FakeBulkApi(log) as made:
        yield made


def run(fake: FakeBulkApi, out: Path, *words: str, topic: str = "t") -> Result:
    words = ("--bulk-address", fake.address, "--out", str(out), *words)
    return CliRunner().invoke(export, [topic, *words])


def files(out: Path, kind: str = "parquet") -> list[str]:
    assert not list(out.glob("*.part"))
    return sorted(path.name for path in out.glob(f"*.{kind}"))


def rows(out: Path, kind: str = "parquet") -> list[dict[str, Any]]:
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    found: list[dict[str, Any]] = []
    for name in sorted(files(out, kind), key=lambda name: int(name.split("-")[2])):
        path = out / name
        if kind == "parquet":
            found += pq.ParquetFile(path).read().to_pylist()
        else:
            found += pa.ipc.open_file(path).read_all().to_pylist()
    return found


def offsets(out: Path) -> list[int]:
    return [row["offset"] for row in rows(out)]


def test_without_pyarrow_it_says_what_to_install(tmp_path: Path) -> None:
    script = (
        "import sys; sys.modules['pyarrow'] = None; from broker.cli.commands import main; main()"
    )
    command = [sys.executable, "-c", script, "export", "t", "--out", str(tmp_path / "new")]
    ended = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert (ended.returncode, ended.stderr) == (1, NEEDS + "\n")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    "words",
    [
        ("--from", "yesterday"),
        ("--bulk-address", "no port:x"),
        ("--format", "csv"),
        ("--file-records", "0"),
    ],
)
def test_wrong_use(fake: FakeBulkApi, tmp_path: Path, words: tuple[str, ...]) -> None:
    assert run(fake, tmp_path, *words).exit_code == 2
    assert fake.requests == []


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("15m", 900), ("6h", 21_600), ("2d", 172_800)]
)
def test_a_time_ago(text: str, seconds: int) -> None:
    found = _SeqOrTime().convert(text, None, None)
    assert isinstance(found, datetime)
    assert abs((datetime.now(UTC) - found).total_seconds() - seconds) < 60


class TestFiles:
    """These need PyArrow."""

    @pytest.fixture(autouse=True)
    def _pyarrow(self) -> None:
        pytest.importorskip("pyarrow")

    def test_a_topic(self, fake: FakeBulkApi, tmp_path: Path) -> None:
        ended = run(
            fake, tmp_path / "a" / "b", "--key-header", "K", "--columns", "offset,key,value"
        )
        assert ended.exit_code == 0, ended.output
        assert "t of b: 1 files with 10 records\n" in ended.output
        assert files(tmp_path / "a" / "b") == ["t-2-1-10.parquet"]
        assert rows(tmp_path / "a" / "b") == [
            {"offset": i, "key": b"\xff", "value": b"body-%d" % i} for i in range(1, 11)
        ]

    def test_parquet_as_other_programs_want_it(self, fake: FakeBulkApi, tmp_path: Path) -> None:
        import pyarrow.parquet as pq

        run(fake, tmp_path)
        file = pq.ParquetFile(tmp_path / "t-2-1-10.parquet")
        assert file.metadata.num_row_groups == 1
        assert file.metadata.row_group(0).column(0).compression == "ZSTD"
        assert str(file.schema_arrow.field("timestamp").type) == "timestamp[us, tz=UTC]"
        assert "isAdjustedToUTC=true, timeUnit=microseconds" in str(file.schema)

    def test_arrow(self, fake: FakeBulkApi, tmp_path: Path) -> None:
        assert run(fake, tmp_path, "--format", "arrow").exit_code == 0
        assert [row["value"] for row in rows(tmp_path, "arrow")][:1] == [b"body-1"]

    def test_ndjson(self, fake: FakeBulkApi, tmp_path: Path) -> None:
        assert run(fake, tmp_path, "--format", "ndjson", "--to", "2").exit_code == 0
        assert json.loads((tmp_path / "t-2-1-1.ndjson").read_text()) == {
            "offset": 1,
            "timestamp": "2023-11-14T22:13:20.123456+00:00",
            "subject": "t",
            "value": "body-1",
            "headers": [{"key": "K", "valueBase64": "/w=="}],
        }

    def test_what_has_come_since(self, fake: FakeBulkApi, log: FakeLog, tmp_path: Path) -> None:
        assert run(fake, tmp_path, "--file-records", "4").exit_code == 0
        first = ["t-2-1-4.parquet", "t-2-5-8.parquet", "t-2-9-10.parquet"]
        assert files(tmp_path) == first
        before = {name: (tmp_path / name).stat().st_ino for name in first}
        log.records |= {seq: record(seq) for seq in range(11, 14)}
        log.next = 14
        ended = run(fake, tmp_path, "--file-records", "4")
        assert "2 files with 3 records, 3 already complete" in ended.output
        new = sorted([*first, "t-2-11-12.parquet", "t-2-13-13.parquet"])
        assert files(tmp_path) == new
        assert {name: (tmp_path / name).stat().st_ino for name in first} == before
        assert offsets(tmp_path) == list(range(1, 14))
        fake.requests.clear()
        assert run(fake, tmp_path).exit_code == 0
        assert [r for r in fake.requests if "/range/" in r.path] == []

    def test_an_interruption(self, log: FakeLog, tmp_path: Path) -> None:
        broken = True

        def answer(request: Any) -> Answer:
            if broken and request.query.get("start") == "8":
                return json_answer({"error": "the disk is gone"}, 500)
            return log(request)

        with FakeBulkApi(answer) as fake:
            ended = run(fake, tmp_path, "--file-records", "4")
            assert ended.exit_code == 1
            assert "the disk is gone" in ended.output
            assert files(tmp_path) == ["t-2-1-4.parquet"]
            broken = False
            assert run(fake, tmp_path, "--file-records", "4").exit_code == 0
        assert offsets(tmp_path) == list(range(1, 11))

    def test_a_hole_between_files_is_filled(self, fake: FakeBulkApi, tmp_path: Path) -> None:
        run(fake, tmp_path, "--from", "3", "--to", "5")
        run(fake, tmp_path, "--from", "8")
        assert files(tmp_path) == ["t-2-3-4.parquet", "t-2-8-10.parquet"]
        run(fake, tmp_path)
        assert offsets(tmp_path) == list(range(1, 11))
        assert "t-2-5-7.parquet" in files(tmp_path)

    def test_gaps(self, fake: FakeBulkApi, log: FakeLog, tmp_path: Path) -> None:
        log.gaps = ((4, 5, MISSING),)
        del log.records[4]
        ended = run(fake, tmp_path)
        assert ended.exit_code == 1
        assert "4-4 missing" in ended.output
        assert "use --on-gap skip to continue" in ended.output
        assert files(tmp_path) == []
        ended = run(fake, tmp_path, "--on-gap", "skip")
        assert ended.exit_code == 3
        assert "export: t of b: 4-4 missing: skipped\n" in ended.output
        assert offsets(tmp_path) == [1, 2, 3, 5, 6, 7, 8, 9, 10]

    def test_trimmed(self, fake: FakeBulkApi, log: FakeLog, tmp_path: Path) -> None:
        log.first = 5
        assert run(fake, tmp_path, "--from", "2").exit_code == 1
        assert run(fake, tmp_path, "--from", "2", "--on-gap", "skip").exit_code == 3
        assert offsets(tmp_path) == [5, 6, 7, 8, 9, 10]

    def test_a_folder_of_another_log(self, fake: FakeBulkApi, log: FakeLog, tmp_path: Path) -> None:
        assert run(fake, tmp_path).exit_code == 0
        ended = run(fake, tmp_path, "--columns", "offset")
        assert ended.exit_code == 1
        assert "started with other options" in ended.output

        def answer(request: Any) -> Answer:
            made = log(request)
            return Answer(200, made.body.replace(b'"broker_id": "id"', b'"broker_id": "other"'))

        with FakeBulkApi(answer) as other:
            ended = run(other, tmp_path)
        assert ended.exit_code == 1
        assert "t-2 of another log" in ended.output

    def test_two_brokers_of_one_number(self, fake: FakeBulkApi, tmp_path: Path) -> None:
        with FakeBulkApi(FakeLog({}, 1)) as second:
            ended = run(fake, tmp_path, "--bulk-address", second.address)
        assert ended.exit_code == 1
        assert "two brokers have the topic t as partition 2" in ended.output
        assert list(tmp_path.iterdir()) == []

    def test_no_such_topic(self, fake: FakeBulkApi, tmp_path: Path) -> None:
        ended = run(fake, tmp_path, topic="u")
        assert (ended.exit_code, ended.output) == (1, "export: no broker has the topic u\n")

    def test_a_full_disk_leaves_no_half_file(
        self, fake: FakeBulkApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(_fd: int) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("os.fsync", full)
        ended = run(fake, tmp_path)
        assert ended.exit_code == 1
        assert "No space left" in ended.output
        assert files(tmp_path) == []


def test_names_of_files(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    from broker.cli.tools.export_files import LogFiles

    files = LogFiles(tmp_path, "a/b-0\u00e9", 3, "parquet")
    assert files.path(1, 11).name == "a%2Fb-0%C3%A9-3-1-10.parquet"
    assert LogFiles(tmp_path, ".hidden", 0, "arrow").stem == "%2Ehidden-0"
    other = LogFiles(tmp_path, "a/b", 0, "parquet")
    files.path(1, 11).touch()
    other.path(5, 9).touch()
    (tmp_path / "a%2Fb-0-7-9.arrow").touch()
    assert (files.complete(), other.complete()) == ([(1, 11)], [(5, 9)])
    assert list(other.missing(3, 25, 10)) == [(3, 5), (9, 11), (11, 21), (21, 25)]
    assert list(other.missing(6, 8, 10)) == []
