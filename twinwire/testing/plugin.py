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
    """The running brokers; tests without a broker do not import the module."""
    import sys

    module = sys.modules.get("twinwire.testing.broker")
    return () if module is None else tuple(module.running())


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Record the length of the logs before the test."""
    item.stash[_marks] = {id(broker): len(broker.logs) for broker in _running()}


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Add the logs of the brokers during a failed test to its report."""
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
    """A broker that all tests of the session share. When a test starts, it is running and has no
    faults. Use names of topics that no other test uses."""
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
    """A function that starts a broker, with or without a configuration. The broker is closed after
    the test."""
    from twinwire.testing.broker import Broker

    brokers: list[Broker] = []

    def make(config: Sections | None = None) -> Broker:
        brokers.append(Broker(config, folder=tmp_path_factory.mktemp("twinwire")))
        brokers[-1].start()
        return brokers[-1]

    yield make
    for broker in reversed(brokers):
        broker.close()


@pytest.fixture
def twinwire_fresh_broker(
    request: pytest.FixtureRequest, make_twinwire_broker: Callable[..., Broker]
) -> Broker:
    """An empty broker for this test only; the marker `twinwire` sets its configuration."""
    marker = request.node.get_closest_marker("twinwire")
    return make_twinwire_broker({} if marker is None else marker.kwargs)
