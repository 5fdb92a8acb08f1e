"""Frames that are hurt on their way to a task: no record is lost for that, and none comes twice."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("pyspark")

from support.bulk.fake import Answer, FakeBulkApi, FakeLog, Request
from support.clients.frames import record
from support.spark.data_source import read_batch

from broker.spark.errors import DataLossError

TEN = {seq: record(seq, b"body-%d" % seq) for seq in range(1, 11)}


class Hurting:
    """Hurts one record the first time it is sent; `more` changes what is sent from then on."""

    def __init__(self, seq: int, **more: Any) -> None:
        self.log, self.more = FakeLog(TEN, 11), more
        self.body: bytes | None = TEN[seq]

    def __call__(self, request: Request) -> Answer:
        made = self.log(request)
        if self.body is not None and self.body in made.body:
            made.body = made.body.replace(self.body, self.body[:-1] + b"?")
            self.body = None
            vars(self.log).update(self.more)
        return made


@pytest.mark.parametrize("more", [{}, {"per_frame": 10}])
def test_it_is_fetched_again_and_no_more_than_that(more: dict[str, int]) -> None:
    with FakeBulkApi(Hurting(5, **more)) as fake:
        rows = read_batch(servers=fake.address, subscribe="t")
    assert [row["offset"] for row in rows] == list(range(1, 11))


@pytest.mark.parametrize("more", [{"per_frame": 2}, {"per_frame": 1}])
def test_fewer_than_before_do_not_take_their_place(more: dict[str, int]) -> None:
    with FakeBulkApi(Hurting(5, **more)) as fake, pytest.raises(DataLossError, match="5"):
        read_batch(servers=fake.address, subscribe="t")
    with FakeBulkApi(Hurting(5, **more)) as fake:
        rows = read_batch(servers=fake.address, subscribe="t", failOnDataLoss="false")
    assert [row["offset"] for row in rows] == [1, 2, 3, 4, 6, 7, 8, 9, 10]
