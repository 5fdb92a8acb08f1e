"""Imports of stores of nats-server, whole ones and damaged ones."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support.jetstream_stores import KEY, LEFT, unpack

from broker.config.config import Config
from broker.engine.cursor.journal import read_journal
from broker.importers.jetstream import importer
from broker.importers.jetstream.importer import Options, Outcome, importing
from broker.importers.jetstream.staging import Staging, open_stream
from broker.importers.nsqd import ImportRefusedError
from broker.protocols.jetstream import files

KINDS = ["plain", "chacha", "aes"]
STREAMS = "jetstream/$G/streams"


def take_over(
    source: Path, data: Path, options: Options | None = None, *, dry: bool = False
) -> Outcome:
    with importing(source, data, Config(), options or Options(key=KEY), dry=dry) as make:
        return make().inspect() if dry else asyncio.run(make().run())


def contents(data: Path, stream: str) -> dict[int, tuple[bytes, bytes, bytes]]:
    """The messages of an imported stream: subject, headers and body by seq."""

    async def read() -> dict[int, tuple[bytes, bytes, bytes]]:
        async with Staging(data, Config(), "").engine(data / "logs") as engine:
            store = open_stream(engine, f"js.$G/{stream}")
            found = (store.message(seq) for seq in range(1, store.last_seq + 1))
            read = {each[0]: each[2:] for each in found if each is not None}
            assert store.last_seq == engine.owned[f"js.$G/{stream}"].next_seq - 1
            store.close()
            return read

    return asyncio.run(read())


@pytest.fixture(params=KINDS)
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return unpack(request.param, tmp_path)


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    return unpack("plain", tmp_path)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


def test_all_kinds_of_stores_are_imported(source: Path, data: Path) -> None:
    data.mkdir()
    found = take_over(source, data, dry=True)
    assert list(data.iterdir()) == []
    outcome = take_over(source, data)
    assert (found.streams, found.remarks) == (outcome.streams, [])
    assert [(s.name, s.messages, s.first, s.last, s.gaps) for s in outcome.streams] == [
        ("BIG", 526, 1, 526, 0),
        ("EMPTY", 0, 0, 3, 0),
        ("ORDERS", 8, 5, 16, 4),
    ]
    orders = contents(data, "ORDERS")
    assert list(orders) == LEFT
    assert orders[5] == (b"orders.0", b"NATS/1.0\r\nN: 4\r\n\r\n", b"order 4")
    assert orders[16] == (b"orders.3", b"", b"order 15")
    big = contents(data, "BIG")
    assert {seq: body for seq, (_, _, body) in big.items()} == {
        **{seq: (b"%d " % (seq - 1) * 3000)[:8000] for seq in range(1, 526)},
        526: b"last",
    }
    assert not (data / importer.STAGING).exists()


def test_consumers_keep_their_places(source: Path, data: Path) -> None:
    take_over(source, data)
    folder = data / "jetstream" / "%24G" / "ORDERS"
    stored = json.loads((folder / "stream.json").read_text().splitlines()[0])
    assert stored["config"]["max_msgs_per_subject"] == 3
    (found,), problems = files.find_consumers(folder)
    assert (found.config.name, found.config.ack_wait, problems) == ("work", 3600 * 10**9, [])
    ops, _, unread = read_journal(str(files.journal_of(folder, "work")))
    assert unread == 0
    kinds: dict[int, list[tuple[int, ...]]] = {}
    for kind, *numbers in ops:
        kinds.setdefault(kind, []).append(tuple(numbers))
    assert kinds[9] == [(12, 5, 0)]  # the last delivery
    assert kinds[10] == [(5, 1, 0)]  # the ack floor
    assert kinds[7] == [(6, 1, 2), (8, 1, 3), (12, 1, 5)]


def test_a_store_is_imported_once(plain: Path, data: Path) -> None:
    before = {path: path.read_bytes() for path in plain.rglob("*") if path.is_file()}
    assert not take_over(plain, data).already
    outcome = take_over(plain, data)
    assert (outcome.already, outcome.changed) == (True, False)
    assert {path: path.read_bytes() for path in plain.rglob("*") if path.is_file()} == before
    block = next(plain.rglob("ORDERS/msgs/1.blk"))
    os.utime(block, (5, 5))
    assert take_over(plain, data).changed


def test_a_stream_that_exists_is_left_alone(plain: Path, data: Path) -> None:
    place = data / "logs" / "js.%24G%2FORDERS"
    place.mkdir(parents=True)
    (place / "mine").write_text("x")
    outcome = take_over(plain, data)
    assert [stream.name for stream in outcome.streams] == ["BIG", "EMPTY"]
    assert "ORDERS of account $G exists already" in outcome.remarks[0]
    assert [path.name for path in place.iterdir()] == ["mine"]


@pytest.mark.parametrize("key", ["", "wrong"])
def test_without_the_key_nothing_is_imported(key: str, tmp_path: Path, data: Path) -> None:
    outcome = take_over(unpack("aes", tmp_path), data, Options(key=key))
    assert outcome.streams == []
    assert len(outcome.remarks) == 3
    assert all("not imported" in line and "key" in line for line in outcome.remarks)
    assert not (data / "jetstream").exists()


def test_only_the_accounts_that_were_requested(plain: Path, data: Path) -> None:
    assert take_over(plain, data, Options(accounts=("A",))).streams == []
    assert len(take_over(plain, data, Options(accounts=("$G",))).streams) == 3


def test_an_interrupted_import_goes_on(
    plain: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ended between the renames of each stream's log and its configuration."""
    real: Callable[[Staging, Path], None] = Staging._move_config
    ended = []

    def end(self: Staging, path: Path) -> None:
        if path not in ended:
            ended.append(path)
            raise OSError("the process ends")
        real(self, path)

    monkeypatch.setattr(Staging, "_move_config", end)
    for _ in range(3):
        with pytest.raises(ImportRefusedError, match="ends"):
            take_over(plain, data)
    outcome = take_over(plain, data)
    assert (outcome.streams, outcome.remarks) == ([], [])
    assert take_over(plain, data).already
    assert list(contents(data, "ORDERS")) == LEFT
    found, _ = files.find_streams(data / "jetstream" / "%24G")
    assert [each.name for each in found if not each.problem] == ["BIG", "EMPTY", "ORDERS"]


def test_a_torn_end_and_a_damaged_block_are_reported(plain: Path, data: Path) -> None:
    orders = plain / STREAMS / "ORDERS/msgs/1.blk"
    orders.write_bytes(orders.read_bytes()[:-7])
    first = plain / STREAMS / "BIG/msgs/1.blk"
    content = bytearray(first.read_bytes())
    content[9000] ^= 1
    first.write_bytes(content)
    for path in (orders, first):
        os.utime(path, (1, 1))
    outcome = take_over(plain, data)
    assert [(stream.name, stream.messages) for stream in outcome.streams] == [
        ("BIG", 2), ("EMPTY", 0), ("ORDERS", 8),
    ]  # fmt: skip
    assert "BIG/msgs/1.blk: offset 0: the checksum of a chunk is wrong" in outcome.remarks[0]
    assert "torn" in outcome.remarks[1]
    assert list(contents(data, "BIG")) == [525, 526]


@pytest.mark.parametrize("damage", ["gone", "garbled"])
def test_without_the_index_limits_are_unknown(damage: str, plain: Path, data: Path) -> None:
    path = plain / STREAMS / "ORDERS/msgs/index.db"
    path.write_bytes(b"x" * 100)
    if damage == "gone":
        path.unlink()
        (plain / STREAMS / "EMPTY/msgs/index.db").unlink()  # it has no limits: not a word
    outcome = take_over(plain, data)
    assert [line.rpartition(": ")[2] for line in outcome.remarks] == [
        "without it messages that limits have removed may be back"
    ]
    assert list(contents(data, "ORDERS")) == [1, 2, 3, 4, *LEFT]


def test_settings_of_a_newer_server_are_left_out(plain: Path, data: Path) -> None:
    path = plain / STREAMS / "EMPTY/meta.inf"
    page = json.loads(path.read_bytes())
    path.write_text(json.dumps({**page, "warp": 9, "num_replicas": 3}))
    outcome = take_over(plain, data)
    assert [line.rpartition("offset 0: ")[2] for line in outcome.remarks] == [
        "its checksum is wrong: it is used as it is",
        "unknown settings are left out: warp",
        "it had 3 replicas and has one now",
    ]
    found, _ = files.find_streams(data / "jetstream" / "%24G")
    assert found[1].stored is not None
    assert found[1].stored.config.num_replicas == 1


def test_a_damaged_state_lets_the_consumer_begin_again(plain: Path, data: Path) -> None:
    path = plain / STREAMS / "ORDERS/obs" / "work" / "o.dat"
    path.write_bytes(path.read_bytes()[:9])
    outcome = take_over(plain, data)
    assert "it is cut off: the consumer starts as it is configured" in outcome.remarks[0]
    folder = data / "jetstream" / "%24G" / "ORDERS"
    assert len(files.find_consumers(folder)[0]) == 1
    assert not files.journal_of(folder, "work").exists()


def test_a_store_in_use_is_refused(plain: Path, data: Path) -> None:
    block = plain / STREAMS / "ORDERS/msgs/1.blk"
    with block.open("r+b"), pytest.raises(ImportRefusedError, match="in use by a running"):
        take_over(plain, data)
    now = time.time()
    os.utime(block, (now, now))
    with pytest.raises(ImportRefusedError, match="a moment ago"):
        take_over(plain, data)


def test_folders_that_are_no_stores_are_refused(plain: Path, tmp_path: Path) -> None:
    with pytest.raises(ImportRefusedError, match="no streams"):
        take_over(tmp_path / "nowhere", tmp_path / "data")
    with pytest.raises(ImportRefusedError, match="must not change"):
        take_over(plain, plain / "jetstream" / "data")
    # beside the original's files is where `twinwire nats-server` has its own
    assert len(take_over(plain, plain / "twinwire").streams) == 3
