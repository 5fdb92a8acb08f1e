"""Taking over file stores of NATS Streaming: what is there afterwards, and what ends in between."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop
from click.testing import CliRunner, Result
from support.engine import Rig
from support.servers.processes import _Process
from support.stan.stores import (
    contents,
    message,
    put_identity,
    put_slice,
    recorded_store,
)

from broker.cli.commands import main
from broker.config.config import Config
from broker.engine.cursor.local import LocalConsumer, peek_log
from broker.engine.log.log import Log
from broker.importers import nsqd as server_import
from broker.importers import stan as server_import_stan
from broker.importers.nsqd import ImportRefusedError
from broker.importers.stan import Import, Outcome, importing
from broker.protocols.stan.store import ForeignStateError, Store

ROOT = Path(__file__).resolve().parents[3]
DEADLINE_S = 60


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    return folder


def run(
    source: Path, data: Path, *patterns: str, advance: Callable[[int], object] = lambda _: None
) -> Outcome:
    work = Import(source, data, Config(), patterns)
    work.advance = advance
    return uvloop.run(work.run())


def taken(rig: Rig, consumer: LocalConsumer) -> list[tuple[int, int, int, bytes]]:
    """Everything there is for it; older segments are read in the background."""
    for _ in range(50):
        rig.settle()
    return consumer.records


def plain(cursor: str) -> str:
    """Its name; those of plain subscriptions are made up."""
    return re.sub(r"(stan:p:)\w{22}", r"\1", cursor)


def inspect(data: Path) -> dict[str, Any]:
    """Per channel: first, behind, protocol, and per cursor its redeliveries and position."""
    found = {}
    copy = data / "copy"  # whoever is given something leaves a note
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(data / "logs", copy)
    with Rig(copy) as rig:
        assert not rig.engine.problems
        for log in rig.engine.logs.values():
            cursors = {}
            for name, cursor in log.cursors.items():
                at, consumer = cursor.next_seq, LocalConsumer(cursor, 1 << 20)
                records = sorted(taken(rig, consumer))
                again = [seq for seq, *_ in records if seq < at]
                assert {attempts for seq, attempts, *_ in records if seq < at} <= {2}
                assert [seq for seq, *_ in records if seq >= at] == list(range(at, log.visible))
                cursors[plain(name)] = (at, again)
            found[log.name] = (log.first_seq, log.visible, log.protocol, cursors)
    return found


def subscriptions(data: Path) -> dict[str, tuple[str, bool]]:
    """Per number and cursor: client, offline."""
    found = Store(data / "stan", "test-cluster")
    assert not found.problems
    return {f"{r.number} {plain(r.cursor)}": (r.client_id, r.offline) for r in found.subs.values()}


ORDERS = {
    "orders": (11, 41, "stan", {
        "stan:d:worker:d": (41, [33, 35, 40]),
        "stan:d:stay:live": (41, [39]),
        "stan:q:dq:g": (41, [40]),
        "stan:q:crew": (41, list(range(11, 41))),
        "stan:p:": (41, list(range(11, 40))),
    }),
    "other": (1, 2, "stan", {}),
}  # fmt: skip


def test_a_recorded_store(tmp_path: Path, data: Path) -> None:
    source = recorded_store("orders", tmp_path)
    before = contents(source)
    for path in source.rglob("*"):
        path.chmod(0o555 if path.is_dir() else 0o444)
    outcome = run(source, data)
    assert contents(source) == before
    assert [str(channel) for channel in outcome.channels] == [
        "orders: 30 messages (11-40), 6 subscriptions, 64 unacknowledged",
        "other: 1 messages (1-1), 0 subscriptions, 0 unacknowledged",
    ]
    assert (outcome.clients, outcome.remarks, outcome.changed) == (1, [], False)
    assert inspect(data) == ORDERS
    assert subscriptions(data) == {
        "1 stan:d:worker:d": ("worker", True),
        "2 stan:q:dq:g": ("", True),
        "3 stan:d:stay:live": ("stay", False),
        "4 stan:p:": ("stay", False),
        "5 stan:q:crew": ("stay", False),
        "6 stan:q:crew": ("stay", False),
    }
    [client] = Store(data / "stan", "test-cluster").clients.values()
    assert (client.client_id, bytes.fromhex(client.conn_id)) == ("stay", client.hb_inbox.encode())
    with Rig(data / "logs") as rig:
        log = rig.engine.log("orders")
        records = peek_log(log, 11, 100).read(1 << 20)
        times = [records[seq][0] for seq in range(11, 41)]
        assert times == sorted(times)
        assert 1_700_000_000 * 10**9 < times[0] < log.created_ns
        assert [records[seq][5] for seq in (11, 40)] == [b"order 11", b"order 40"]
        other = peek_log(rig.engine.log("other"), 1, 1).read(1 << 20)[1]
        assert (other[3], other[5]) == (b"answers.here", b"with a reply")
    again = run(source, data)
    assert (again.already, again.changed, again.channels) == (True, False, [])
    (source / "other" / "subs.dat").chmod(0o644)
    os.utime(source / "other" / "subs.dat")
    assert run(source, data).changed


def test_a_dry_run_and_patterns(tmp_path: Path, data: Path) -> None:
    source = recorded_store("orders", tmp_path)
    before = contents(source)
    outcome = Import(source, data, Config()).inspect()
    assert [(c.name, c.messages, c.unacked) for c in outcome.channels] == [
        ("orders", 30, 64), ("other", 1, 0)
    ]  # fmt: skip
    assert list(data.iterdir()) == []
    assert [c.name for c in run(source, data, "oth*", "other").channels] == ["other"]
    assert [c.name for c in run(source, data, "or.>").channels] == []
    assert [c.name for c in run(source, data, ">").channels] == ["orders"]
    assert run(source, data).already
    assert inspect(data) == ORDERS
    assert contents(source) == before


class CutOffError(Exception):
    """Stands for the end of the process."""


STEPS = [
    *((server_import.Progress, "save", at) for at in range(1, 7)),
    *((Store, "sync", at) for at in range(1, 4)),
    *((Store, "put_sub", at) for at in (1, 3)),
    *((Path, "rename", at) for at in (1, 2)),
    (Import, "_append", 20),
]


@pytest.mark.parametrize(("owner", "step", "at"), STEPS)
def test_ended_anywhere_and_run_again(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch, owner: type, step: str, at: int
) -> None:
    """Before what must survive is written, and after."""
    source = recorded_store("orders", tmp_path)
    do, calls = getattr(owner, step), 0

    def cut(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == at:
            raise CutOffError
        return do(*arguments)

    monkeypatch.setattr(owner, step, cut)
    with pytest.raises(CutOffError):
        run(source, data)
    for name, found in inspect(data).items() if (data / "logs").exists() else ():
        assert found == ORDERS[name]
    outcome = run(source, data)
    assert (outcome.remarks, outcome.already) == ([], False)
    assert {n: (f, b) for n, (f, b, *_) in inspect(data).items()} == {
        "orders": (11, 41), "other": (1, 2)
    }  # fmt: skip
    # numbers may be others by now, but nobody is there twice
    store = Store(data / "stan", "test-cluster")
    assert sorted(plain(record.cursor) for record in store.subs.values()) == [
        "stan:d:stay:live", "stan:d:worker:d", "stan:p:", "stan:q:crew", "stan:q:crew",
        "stan:q:dq:g",
    ]  # fmt: skip
    with Rig(data / "logs") as rig:
        cursors = rig.engine.log("orders").cursors
        assert {r.cursor for r in store.subs.values()} == set(cursors)


def test_damage_is_reported_and_the_rest_taken_over(tmp_path: Path, data: Path) -> None:
    source = recorded_store("orders", tmp_path)
    path = source / "orders" / "msgs.3.dat"
    content = bytearray(path.read_bytes())
    content[content.index(b"order 25")] ^= 1
    path.write_bytes(content)
    last = source / "orders" / "msgs.4.dat"
    last.write_bytes(last.read_bytes()[:-1])
    outcome = run(source, data)
    remarks = outcome.remarks
    assert len(remarks) == 3
    assert f"{path}: offset " in remarks[0]
    assert f"{last}: offset " in remarks[1]
    assert "the index has 30 messages, the files have 28" in remarks[2]
    with Rig(data / "logs") as rig:
        log = rig.engine.log("orders")
        assert (log.first_seq, log.visible) == (11, 41)
        assert sorted(peek_log(log, 1, 100).read(1 << 20)) == [*range(11, 25), *range(26, 40)]
        consumer = LocalConsumer(log.open_cursor("new", start=11), 100)
        found = taken(rig, consumer)
        assert [seq for seq, *_ in found] == [*range(11, 25), *range(26, 40)]
        # the sequence of a message that was there is not given again
        assert rig.publish(log, [b"next"]) == [1]
        assert (found[-1][0], found[-1][3]) == (41, b"next")
        assert log.cursors["stan:d:worker:d"].next_seq == 41
    assert run(source, data).remarks == remarks


def test_a_lost_message_keeps_its_sequence(tmp_path: Path, data: Path) -> None:
    put_identity(tmp_path / "source")
    path = put_slice(tmp_path / "source", "c", 1, [message(i, "c") for i in (1, 2, 3)])
    path.write_bytes(path.read_bytes()[:-1])
    assert [channel.last for channel in run(tmp_path / "source", data).channels] == [2]
    assert inspect(data) == {"c": (1, 4, "stan", {})}


def test_a_damaged_identity_and_a_node_of_a_cluster(tmp_path: Path, data: Path) -> None:
    source = tmp_path / "source"
    put_identity(source, node=b"a")
    put_slice(source, "c", 1, [message(1, "c")])
    outcome = Import(source, data, Config()).inspect()
    assert "was node 'a' of a cluster" in outcome.remarks[0]
    (source / "server.dat").write_bytes((source / "server.dat").read_bytes()[:-1])
    outcome = run(source, data)
    assert "server.dat: offset 4" in outcome.remarks[0]
    assert [channel.messages for channel in outcome.channels] == [1]


def test_names_that_are_taken(tmp_path: Path, data: Path) -> None:
    source = recorded_store("orders", tmp_path)
    with Rig(data / "logs") as rig:
        rig.log("orders")
        rig.close()
    outcome = run(source, data)
    assert [channel.name for channel in outcome.channels] == ["other"]
    assert "channel orders exists already" in outcome.remarks[0]
    put_identity(tmp_path / "foreign", b"elsewhere")
    put_slice(tmp_path / "foreign", "c", 1, [message(1, "c")])
    with pytest.raises(ImportRefusedError, match="'elsewhere' does not match 'test-cluster'"):
        run(tmp_path / "foreign", data)
    with pytest.raises(ForeignStateError):
        Store(data / "stan", "elsewhere")


def test_what_does_not_read_back_is_not_taken_over(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = recorded_store("orders", tmp_path)
    append = server_import_stan.append_at

    def spoil(log: Log, body: bytes, timestamp_ns: int, reply: bytes) -> int:
        return append(log, body[:-1], timestamp_ns, reply=reply)

    monkeypatch.setattr(server_import_stan, "append_at", spoil)
    with (
        pytest.raises(ImportRefusedError, match="differs when it is read back"),
        importing(source, data, Config()) as make,
    ):
        uvloop.run(make().run())
    assert list((data / "logs").iterdir()) == []


def command(*args: str) -> Result:
    return CliRunner().invoke(main, ["import-stan", *args])


def process(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "broker", "import-stan", *args], capture_output=True, text=True,
        cwd=ROOT, timeout=DEADLINE_S, check=False,
    )  # fmt: skip


def test_the_command(tmp_path: Path, data: Path) -> None:
    source = recorded_store("orders", tmp_path)
    where = (str(source), "--data", str(data))
    dry = command(*where, "--dry-run")
    assert dry.exit_code == 0
    assert dry.stdout.endswith("2 channels, 31 messages, 1 clients found\n")
    good = command(*where)
    assert good.exit_code == 0
    assert good.stdout.endswith("2 channels, 31 messages, 1 clients imported\n")
    again = command(*where)
    assert (again.exit_code, "was imported before" in again.stdout) == (0, True)
    other = command(str(source), "--data", str(tmp_path / "new"), "-c", str(config(tmp_path)))
    assert 'start with stan.cluster_id = "test-cluster"' in other.stdout
    last = source / "orders" / "msgs.4.dat"
    last.write_bytes(last.read_bytes()[:-1])
    assert command(str(source), "--data", str(tmp_path / "third")).exit_code == 3


def test_folders_in_use_are_refused(tmp_path: Path, data: Path) -> None:
    source = recorded_store("orders", tmp_path)
    where = (str(source), "--data", str(data))
    with (data / "twinwire.lock").open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        ours = command(*where)
    assert (ours.exit_code, "is in use by" in ours.stderr) == (1, True)
    with (source / "clients.dat").open("ab"):
        busy = command(*where)
    assert (busy.exit_code, "in use by a running nats-streaming" in busy.stderr) == (1, True)
    with (source / ".rootdir.lck").open("ab") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        held = process(*where)
    assert (held.returncode, "in use by a running nats-streaming" in held.stderr) == (1, True)


@pytest.mark.parametrize("below", [".", "data"])
def test_the_source_is_no_place_for_our_data(tmp_path: Path, below: str) -> None:
    source = recorded_store("orders", tmp_path)
    before = contents(source)
    done = command(str(source), "--data", str(source / below))
    assert (done.exit_code, "which must not change" in done.stderr) == (1, True)
    assert contents(source) == before


def config(folder: Path) -> Path:
    path = folder / "c.toml"
    path.write_text('[stan]\ncluster_id = "mine"\n')
    return path


@pytest.mark.parametrize(
    "source", ["mysql://u:p@h/db", "user:pw@tcp(host:3306)/db", "dbname=x sslmode=disable"]
)
def test_stores_in_databases_are_refused(source: str) -> None:
    done = command(source)
    assert (done.exit_code, "SQL stores cannot be imported" in done.stderr) == (1, True)


def test_other_stores_are_refused(tmp_path: Path) -> None:
    data = ("--data", str(tmp_path / "data"))
    secret = command(str(recorded_store("secret", tmp_path)), *data)
    assert (secret.exit_code, "encrypted stores cannot be imported" in secret.stderr) == (1, True)
    empty = tmp_path / "empty"
    empty.mkdir()
    for name in (str(empty), "nowhere"):
        assert command(name, *data).exit_code == 1


def test_killed_in_the_middle(tmp_path: Path, data: Path) -> None:
    source, bodies = tmp_path / "source", [b"%d" % i for i in range(1, 60_001)]
    put_identity(source)
    for name in ("a", "b"):
        put_slice(source, name, 1, [message(i, name, bodies[i - 1]) for i in range(1, 60_001)])
    before = contents(source)
    victim = _Process(tmp_path / "log")
    victim.spawn([sys.executable, "-m", "broker", "import-stan", str(source), "--data", str(data)])
    while not (data / ".import-stan" / "b").exists():
        victim.step()
    assert victim.child is not None
    victim.child.kill()
    assert victim.child.wait() != 0
    assert list((data / ".import-stan").iterdir()) != []
    done = command(str(source), "--data", str(data), "--quiet")
    assert (done.exit_code, done.stderr) == (0, "")
    assert "1 channels, 60000 messages" in done.stdout
    with Rig(data / "logs") as rig:
        for name in ("a", "b"):
            log = rig.engine.log(name)
            assert (log.first_seq, log.visible) == (1, 60_001)
            consumer = LocalConsumer(log.open_cursor("all", start=1), 1 << 20)
            assert [record[3] for record in taken(rig, consumer)] == bodies
    assert contents(source) == before
    assert not (data / ".import-stan").exists() or list((data / ".import-stan").iterdir()) == []
