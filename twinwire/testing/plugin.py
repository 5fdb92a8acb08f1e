"""The pytest plugin: fixtures that are brokers, and their logs in the reports of failed tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from twinwire.testing.broker import Broker
    from twinwire.testing.settings import Sections

MARKER: Final = "twinwire(**sections): the configuration of twinwire_fresh_broker, by sections"
LOG_CHARS: Final = 8_000
_marks = pytest.StashKey[dict[int, int]]()


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line("markers", MARKER)


def _running() -> tuple[Broker, ...]:
    """Without an import for tests that have no broker."""
    import sys

    module = sys.modules.get("twinwire.testing.broker")
    return () if module is None else tuple(module.running())


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Note how long the logs are before the test."""
    item.stash[_marks] = {id(broker): len(broker.logs) for broker in _running()}


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Add what brokers logged during a test that failed."""
    outcome: Any = yield
    report = outcome.get_result()
    if report.failed:
        marks = item.stash.get(_marks, {})
        for broker in _running():
            if log := broker.logs[marks.get(id(broker), 0) :]:
                report.sections.append((f"twinwire {broker.nats_url}", log[-LOG_CHARS:]))


@pytest.fixture(scope="session")
def twinwire_config() -> Sections:
    """The configuration of the shared broker; override it in conftest.py, with this scope."""
    return {}


@pytest.fixture(scope="session")
def twinwire_session_broker(
    twinwire_config: Sections, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Broker]:
    """The shared broker, for fixtures whose scope is wider than a test."""
    from twinwire.testing.broker import Broker

    with Broker(twinwire_config, folder=tmp_path_factory.mktemp("twinwire")) as broker:
        yield broker


@pytest.fixture
def twinwire_broker(twinwire_session_broker: Broker) -> Iterator[Broker]:
    """A broker that all tests of the session share: it runs, and has no faults, when a test
    begins. Use names of topics that no other test uses."""
    broker = twinwire_session_broker
    if not broker.is_running:
        broker.start()
    yield broker
    if broker.is_running:
        broker.resume()
        broker.faults.heal()


@pytest.fixture
def make_twinwire_broker(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Callable[..., Broker]]:
    """A function that starts a broker, with a configuration or without; it ends with the test."""
    from twinwire.testing.broker import Broker

    made: list[Broker] = []

    def make(config: Sections | None = None) -> Broker:
        made.append(Broker(config, folder=tmp_path_factory.mktemp("twinwire")))
        made[-1].start()
        return made[-1]

    yield make
    for broker in reversed(made):
        broker.close()


@pytest.fixture
def twinwire_fresh_broker(
    request: pytest.FixtureRequest, make_twinwire_broker: Callable[..., Broker]
) -> Broker:
    """An empty broker for this test alone; the marker `twinwire` gives its configuration."""
    marker = request.node.get_closest_marker("twinwire")
    return make_twinwire_broker({} if marker is None else marker.kwargs)
