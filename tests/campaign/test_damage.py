"""A few cases of the bytes part; and it reports problems."""

from __future__ import annotations

import asyncio
import copy
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.engine import scratch

from campaign.brokers import Spawner
from campaign.damage import Bench, Case, make
from campaign.faults import Faults

FOLDER = "jetstream/%24G/J"
STREAM_FILES = [
    *(f"{FOLDER}/stream.json", f"{FOLDER}/consumers/C.json", f"{FOLDER}/consumers/C.acks"),
    *(f"logs/js.%24G%2FJ/{name}" for name in ("deletes.cur", "00000000000000000001.seg")),
]

pytestmark = [pytest.mark.only_ours, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    folder = scratch()
    with Faults(folder) as faults, Spawner(faults.environment) as spawner:
        base = asyncio.run(make(spawner, faults, folder))
    yield Bench(folder, base)
    shutil.rmtree(folder, ignore_errors=True)


def test_a_folder_has_everything_in_it(bench: Bench) -> None:
    names = {path.name for path in bench.base.rglob("*")}
    assert {"clients.state", "meta.json", "broker.json", "r.json", "state.json"} <= names
    assert list((bench.base / "staged" / ".intents").glob("*.json"))
    whole = bench.judge.base
    assert set(whole.records) == {"t", "p", "k", "s"}
    assert [body for body in whole.records["k"].values() if body.startswith("intent")]
    assert whole.acked["t/c"]
    assert whole.durables
    assert {"stream.json", "C.json", "C.acks", "deletes.cur"} <= names
    assert whole.messages
    assert whole.consumer == [18, 6, 4, 10]
    assert not whole.refused


def test_some_cases(bench: Bench) -> None:
    segment = "logs/t/00000000000000000001.seg"
    size = (bench.base / segment).stat().st_size
    cases = [
        *(Case(segment, "flip", at, at % 8) for at in range(70, size, size // 4)),
        *(Case(segment, "cut", at) for at in range(100, size, size // 3)),
        Case("staged/w/state.json", "invert", 20),
        Case("staged/.intents/w.json", "cut", 40),
        Case("bulk/broker.json", "flip", 20, 1),
        Case("stan/clients.state", "flip", 30, 2),
        *(Case(file, "invert", at) for file in STREAM_FILES for at in (9, 14, 40, 100)),
        *(Case(file, "cut", 50) for file in STREAM_FILES),
    ]
    assert {str(case): found for case, found in bench.batch(cases) if found} == {}


def test_what_is_wrong_is_reported(bench: Bench) -> None:
    judge, case = bench.judge, Case("logs/t/00000000000000000001.seg", "flip", 2000, 1)
    (seq,) = judge.touched(case)
    found = copy.deepcopy(judge.base)
    found.logged.append("damaged")
    del found.records["t"][seq]
    bench.restore()
    case.apply(bench.data)
    assert list(judge.problems(case, found, bench.data)) == []
    del found.records["t"]["1"], found.records["p"]["2"]
    found.acked["t/c"].append(60)
    found.readers.clear()
    del found.acked["s/stan:d:client:d"]
    found.logged.clear()
    text = "; ".join(judge.problems(case, found, bench.data))
    for what in (
        "log t: records 1 are not served",
        "log p: records 2 are not served",
        "[60] count as done with",
        "cursor s/stan:d:client:d is not there",
        "readers were",
        "nothing is reported",
    ):
        assert what in text
    del found.messages["9"]
    found.messages["20"] = "j.3 j 19"
    found.consumer[1] += 1
    text = "; ".join(judge.problems(case, found, bench.data))
    for what in (
        "stream: messages 9 are not served",
        "stream: messages 20 are there again",
        "stream: its consumer is at [18, 7, 4, 10], was at [18, 6, 4, 10]",
    ):
        assert what in text
    found.records["p"]["3"] = "something else"
    assert "unknown body" in "; ".join(judge.problems(case, found, bench.data))


def test_a_process_that_dies_is_a_finding(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(case: Case) -> list[str]:
        if case.at:
            os.kill(os.getpid(), signal.SIGKILL)
        return []

    monkeypatch.setattr(bench, "run", run)
    cases = [Case("x", "cut", at) for at in (0, 1, 0)]
    assert [found for _, found in bench.batch(cases)] == [[], ["the process ended with -9"], []]


def test_a_case_is_named(tmp_path: Path) -> None:
    assert str(Case("a/b", "flip", 3, 1)) == "a/b: flip bit 1 at 3"
    assert str(Case("a/b", "cut", 3)) == "a/b: cut at 3"
