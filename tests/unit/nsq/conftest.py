"""Fixtures of the NSQ face."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fakes_nsq import FakeNsq, MakeNsq


@pytest.fixture
def make_nsq() -> Iterator[MakeNsq]:
    """Makes faces; they end with the test."""
    made: list[FakeNsq] = []

    def make(**settings: object) -> FakeNsq:
        made.append(FakeNsq(**settings))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for nsq in made:
        nsq.close()


@pytest.fixture
def nsq(make_nsq: MakeNsq) -> FakeNsq:
    return make_nsq()
