"""Fixtures of tests in several folders; tests/conftest.py offers them to all."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.engine import scratch
from support.fakes.nsq import FakeNsq, MakeNsq


@pytest.fixture
def memory_path() -> Iterator[Path]:
    """As tmp_path, where a sync costs nothing: for tests with hundreds of them."""
    path = scratch()
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def make_nsq() -> Iterator[MakeNsq]:
    """Makes NSQ frontends without sockets; they end with the test."""
    made: list[FakeNsq] = []

    def make(**settings: object) -> FakeNsq:
        made.append(FakeNsq(**settings))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for nsq in made:
        nsq.close()


@pytest.fixture
def nsq(make_nsq: MakeNsq) -> FakeNsq:
    """One with the usual settings."""
    return make_nsq()
