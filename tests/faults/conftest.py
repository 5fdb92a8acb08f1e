"""Fixtures of the tests with failing file calls."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.engine import scratch

from broker.runtime import vfs


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder in memory; file calls work again after the test."""
    path = scratch()
    yield path
    vfs.heal()
    shutil.rmtree(path, ignore_errors=True)
