"""What the tests of the core share."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.engine import scratch


@pytest.fixture
def memory_path() -> Iterator[Path]:
    """As tmp_path, where a sync costs nothing: for tests with hundreds of them."""
    path = scratch()
    yield path
    shutil.rmtree(path, ignore_errors=True)
