"""Fixtures every test may use: a shared server, servers of one's own, names nobody else has.

TWINWIRE_TEST_TARGET=original runs the same tests against nats-server and nsqd.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from xdist.scheduler import LoadFileScheduling

sys.path.insert(0, str(Path(__file__).parent))  # importlib mode adds nothing: `support` is here

import bare
from support.servers import originals

sys.addaudithook(bare.refuse)
originals.join_path()  # before any module of tests looks for a program

from support import Broker, Originals, Server, ServerError, running_servers
from support.clients.nats_py import mend_flush
from support.fixtures import (  # noqa: F401
    authority,
    connect,
    disk,
    make_nsq,
    memory_path,
    nsq,
    pair,
    start_nats,
)
from support.golden.transcript import UNIQ_LENGTH
from support.servers.processes import TARGET_ORIGINAL, Config

mend_flush()

# A machine that does something else as well is no reason for a test to fail. `make test` takes the
# same examples each time; HYPOTHESIS=fresh takes others in each run.
PROFILES = ("patient", "fresh")
for _profile in PROFILES:
    hypothesis.settings.register_profile(
        _profile,
        deadline=None,
        derandomize=_profile == "patient",
        suppress_health_check=[hypothesis.HealthCheck.too_slow],
        print_blob=_profile == "fresh",
    )
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS", PROFILES[0]))

LOG_SHOWN_CHARS = 8_000
SPARK = "tests/spark/"
SPARK_LOGGERS = {"DataFrameQueryContextLogger", "SQLQueryContextLogger"}
_NUMBERS = itertools.count()
_MARKS = pytest.StashKey[dict[int, list[int]]]()

StartBroker = Callable[..., Server]
BrokerFor = Callable[[Config], Server]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "only_ours: says something the originals do not do")
    # "Exception ignored in ...": what a compiled function could not raise, and did not handle.
    config.addinivalue_line("filterwarnings", "error::pytest.PytestUnraisableExceptionWarning")
    # before the processes that share the tests are started: one seed for all
    os.environ.setdefault("TWINWIRE_TEST_POWERCUT_SEED", os.urandom(4).hex())


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Tests of some folders would do the same on a bare machine as on any other."""
    path, root = collection_path, config.rootpath
    if "TWINWIRE_TEST_BARE" in os.environ and path.is_relative_to(root):
        return bare.is_left_out(str(path.relative_to(root))) or None
    return None


def pytest_report_header() -> str:
    seed = os.environ["TWINWIRE_TEST_POWERCUT_SEED"]
    return f"power cuts: seed {seed}; again: make powercut STATES=500 SEED={seed}"


class _Files(LoadFileScheduling):
    """What is shared out among processes is files, and all Spark tests as one: they share a
    session."""

    def _split_scope(self, nodeid: str) -> str:
        return SPARK if nodeid.startswith(SPARK) else str(super()._split_scope(nodeid))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> _Files:
    return _Files(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not item.nodeid.startswith(SPARK))  # long ones begin first
    if not TARGET_ORIGINAL:
        return
    missing = Originals.missing()
    for item in items:
        if item.get_closest_marker("only_ours"):
            item.add_marker(pytest.mark.skip(reason="only ours does this"))
        elif missing:
            item.add_marker(pytest.mark.skip(reason=f"not on PATH: {', '.join(missing)}"))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    item.stash[_MARKS] = {id(server): server.log_marks() for server in running_servers()}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Iterator[None]:
    """A failed Spark query leaves loggers that do not propagate. pytest adds its own handler to
    such loggers when the next phase begins, and these would set their JSON formatter on it."""
    try:
        return (yield)
    finally:
        for name in SPARK_LOGGERS & logging.Logger.manager.loggerDict.keys():
            logging.getLogger(name).propagate = True


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Show what the servers said during a test that failed."""
    outcome = yield
    report = outcome.get_result()  # type: ignore[attr-defined]
    if not report.failed:
        return
    marks = item.stash.get(_MARKS, {})
    for server in running_servers():
        if log := server.log_since(marks.get(id(server))):
            report.sections.append((f"server {server.folder.name}", log[-LOG_SHOWN_CHARS:]))


def _make(folder: Path, config: Config | str | None = None, data: Path | None = None) -> Server:
    if not TARGET_ORIGINAL:
        return Broker(folder, config, data)
    if isinstance(config, str):
        pytest.skip("a config file in our own words")
    return Originals(folder, config, data)


@pytest.fixture(scope="session")
def broker_for(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerFor]:
    """A running server with the given config, shared by all who ask for the same."""
    servers: dict[str, Server] = {}
    failed: set[str] = set()

    def get(config: Config) -> Server:
        key = json.dumps(config, sort_keys=True)
        if key in failed:
            raise ServerError(f"no server with {key}: it did not start for an earlier test")
        if key not in servers:
            server = _make(tmp_path_factory.mktemp("shared"), config)
            try:
                servers[key] = server.start()
            except ServerError:
                failed.add(key)  # not again for each of hundreds of tests
                raise
        return servers[key]

    yield get
    for server in servers.values():
        server.close()


@pytest.fixture(scope="session")
def shared_broker(broker_for: BrokerFor) -> Server:
    return broker_for({})


@pytest.fixture
def broker(shared_broker: Server) -> Server:
    """The shared server with default settings; a crash fails the test in which it happened."""
    shared_broker.check_alive()
    return shared_broker


@pytest.fixture
def start_broker(tmp_path: Path) -> Iterator[StartBroker]:
    """Start servers of one's own; they end with the test."""
    servers: list[Server] = []

    def start(config: Config | str | None = None, data: Path | None = None) -> Server:
        server = _make(tmp_path / f"server{len(servers)}", config, data)
        servers.append(server)
        return server.start()

    yield start
    for server in servers:
        server.close()


def make_name() -> str:
    """A name of eight characters, legal everywhere, never used before in this run."""
    run = os.getpid() % 36**3
    return f"u{_base36(run):0>3}{_base36(next(_NUMBERS)):0>4}"[:UNIQ_LENGTH]


@pytest.fixture
def uniq() -> str:
    return make_name()


def _base36(number: int) -> str:
    digits = "0123456789abcdefghijklmnopqrstuvwxyz"
    text = ""
    while number:
        number, digit = divmod(number, 36)
        text = digits[digit] + text
    return text
