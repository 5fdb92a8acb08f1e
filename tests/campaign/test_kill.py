"""A short era of the kill part; and it detects violations."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.engine import Rig, scratch, segment_files

from campaign import kill
from campaign.ledgers import Finding, body_of
from campaign.load import WORK, Load, Pace
from campaign.logfiles import LogFiles

pytestmark = pytest.mark.only_ours


@pytest.fixture
def folder() -> Iterator[Path]:
    path = scratch()
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.mark.timeout(240)
def test_a_few_kills(tmp_path: Path) -> None:
    row = kill.run(7, 3, tmp_path, slots=1, kills=6)
    assert row.good, row.findings
    assert row.result.startswith("6 kills")


def test_files_are_read_on_from_where_they_were(folder: Path) -> None:
    with Rig(folder / "logs", segment_bytes=600) as rig:
        log = rig.log(WORK)
        files = LogFiles(folder, WORK)
        assert not list(files.fresh())
        for start in (0, 3, 40):
            bodies = [body_of(number) for number in range(start, start + 3)]
            rig.publish(log, bodies)
            assert [record.body for record in files.fresh()] == bodies
        files.forget()
        assert [record.seq for record in files.fresh()] == list(range(1, 10))


@pytest.mark.parametrize("harm", ["cut", "flip"])
def test_damage_is_noticed(folder: Path, harm: str) -> None:
    load = Load(random.Random(1), Pace())
    topic = load.topics[WORK]
    with Rig(folder / "logs") as rig:
        rig.publish(rig.log(WORK), [body_of(number) for number in range(9)])
        topic.answered(topic.take(9))
        rig.close()
    load.look_into(folder)
    (path,) = segment_files(folder / "logs", WORK)
    data = bytearray(path.read_bytes())
    if harm == "flip":
        data[100] ^= 1
    else:
        del data[-10:]
    path.write_bytes(data)
    with pytest.raises(Finding, match="damaged bytes" if harm == "flip" else "1 ack.* lost: 8"):
        load.look_into(folder, whole=True)
