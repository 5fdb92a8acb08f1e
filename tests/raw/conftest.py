"""Fixtures of the wire tests."""

from __future__ import annotations

import pytest
from support.servers.leafs import TARGETS


@pytest.fixture(params=TARGETS)
def target(request: pytest.FixtureRequest) -> str:
    """Ours, then the original."""
    return str(request.param)
