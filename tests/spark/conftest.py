"""One Spark for all these tests, and brokers with topics in them."""

from __future__ import annotations

import importlib.util
import itertools
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support import Server
from support.live.spark import SYNCED, make_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_NUMBERS = itertools.count()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    missing = "java is not installed" if shutil.which("java") is None else ""
    for module in ("pyarrow", "pyspark"):
        if importlib.util.find_spec(module) is None:
            missing = f"{module} is not installed"
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.spark)
            item.add_marker(pytest.mark.only_ours)
            item.add_marker(pytest.mark.timeout(300))
            if missing:
                item.add_marker(pytest.mark.skip(reason=missing))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    session = make_session(tmp_path_factory.mktemp("spark"))
    yield session
    session.stop()


@pytest.fixture(scope="session")
def lake(broker_for: Callable[[dict[str, Any]], Server]) -> Server:
    """A broker that most of these tests share."""
    return broker_for(SYNCED)


@pytest.fixture
def topic() -> str:
    """A name that no other test has."""
    return f"spark-{next(_NUMBERS)}"
