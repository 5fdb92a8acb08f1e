"""An index of subjects, and the calls that only compiled code can make of it."""

from __future__ import annotations

import pytest
from support.native.subjects import Subjects

from broker.engine.stream.subjects import SubjectIndex


@pytest.fixture
def index() -> SubjectIndex:
    return SubjectIndex()


@pytest.fixture
def at(index: SubjectIndex) -> Subjects:
    return Subjects(index)
