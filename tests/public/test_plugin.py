"""The pytest plugin, in test runs of its own."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from importlib.metadata import entry_points

import pytest

pytest_plugins = ["pytester"]

pytestmark = pytest.mark.skipif(
    not any(point.name == "twinwire" for point in entry_points(group="pytest11")),
    reason="the plugin is registered by an installation: run make",
)
WAIT_S = 30.0


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the run that this test belongs to."""
    for name in ("PYTEST_ADDOPTS", "PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT"):
        monkeypatch.delenv(name, raising=False)


def run(pytester: pytest.Pytester, tests: str, *arguments: str) -> pytest.RunResult:
    pytester.makepyfile(tests)
    return pytester.runpytest_subprocess("-p", "no:cacheprovider", *arguments, timeout=120)


def test_one_broker_for_the_session(pytester: pytest.Pytester) -> None:
    """Whatever a test does to it, the next one finds it running and healthy."""
    pytester.makeconftest(
        """
        import pytest

        @pytest.fixture(scope="session")
        def twinwire_config():
            return {"storage": {"sync": "always"}}

        @pytest.fixture(scope="session")
        def addresses(twinwire_session_broker):
            return twinwire_session_broker.nats_url, twinwire_session_broker.nsqd_tcp_address
        """
    )
    result = run(
        pytester,
        """
        import asyncio, nats, pytest
        from twinwire import nsq

        async def publish(broker, topic):
            async with nsq.Writer(broker.nsqd_tcp_address) as writer:
                await writer.publish(topic, b"x")

        @pytest.mark.parametrize("number", range(4))
        def test_it(twinwire_broker, addresses, number):
            broker = twinwire_broker
            assert (broker.nats_url, broker.nsqd_tcp_address) == addresses
            assert broker.faults.active == ()
            assert 'sync = "always"' in (broker.folder / "twinwire.toml").read_text()
            asyncio.run(publish(broker, f"t{number}"))
            if number == 0:
                broker.faults.full_disk()
                with pytest.raises(nsq.ServerError):
                    asyncio.run(publish(broker, "t0"))
            elif number == 1:
                broker.kill()
            elif number == 2:
                broker.pause()
        """,
    )
    result.assert_outcomes(passed=4)


def test_brokers_of_one_test(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        import pytest

        seen = set()

        @pytest.mark.twinwire(nats={"max_payload": "3KiB"}, stan={"enabled": False})
        def test_marked(twinwire_fresh_broker):
            text = (twinwire_fresh_broker.folder / "twinwire.toml").read_text()
            assert 'max_payload = "3KiB"' in text and "enabled = false" in text
            seen.add(twinwire_fresh_broker.data)

        def test_plain(twinwire_fresh_broker):
            assert "max_payload" not in (twinwire_fresh_broker.folder / "twinwire.toml").read_text()
            seen.add(twinwire_fresh_broker.data)

        def test_several(make_twinwire_broker):
            brokers = [make_twinwire_broker(), make_twinwire_broker({"log": {"level": "debug"}})]
            seen.update(broker.data for broker in brokers)
            assert len(seen) == 4
        """,
        "--strict-markers",
    )
    result.assert_outcomes(passed=3)


def test_a_failed_test_shows_the_log_of_its_time(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        import asyncio
        from twinwire import nsq

        async def publish(broker, topic):
            async with nsq.Writer(broker.nsqd_tcp_address) as writer:
                await writer.publish(topic, b"x")
                broker.wait_for_log(topic)

        def test_first(twinwire_broker):
            asyncio.run(publish(twinwire_broker, "before"))

        def test_fails(twinwire_broker):
            asyncio.run(publish(twinwire_broker, "meanwhile"))
            assert False
        """,
    )
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*- twinwire nats://127.0.0.1:* -*", "*TOPIC(meanwhile): created"])
    result.stdout.no_fnmatch_line("*TOPIC(before)*")


def test_the_fixtures_are_listed(pytester: pytest.Pytester) -> None:
    result = pytester.runpytest_subprocess("--fixtures", "-v", timeout=120)
    for name in (
        "twinwire_broker",
        "twinwire_session_broker",
        "twinwire_fresh_broker",
        "make_twinwire_broker",
        "twinwire_config",
    ):
        result.stdout.fnmatch_lines([f"{name}*"])
    result = pytester.runpytest_subprocess("--markers", timeout=120)
    result.stdout.fnmatch_lines(["@pytest.mark.twinwire(*"])


def test_with_xdist_each_process_has_its_own(pytester: pytest.Pytester) -> None:
    pytest.importorskip("xdist")
    result = run(
        pytester,
        """
        import pytest

        @pytest.mark.parametrize("number", range(6))
        def test_it(twinwire_broker, number, worker_id):
            print(f"used {worker_id} {twinwire_broker.pid}")
        """,
        "-n2",
        "-rP",
    )
    result.assert_outcomes(passed=6)
    used = {line for line in result.outlines if line.startswith("used ")}
    pids = {line.split()[2] for line in used}
    assert len(pids) == len({line.split()[1] for line in used})
    assert not any(is_running(int(pid)) for pid in pids)


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_killed_test_run_leaves_no_broker(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import sys

        def test_it(twinwire_broker):
            print("pid", twinwire_broker.pid, flush=True)
            sys.stdin.read()
        """
    )
    pipe = subprocess.PIPE
    command = [sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider"]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, cwd=pytester.path) as child:
        assert child.stdout is not None
        line = b""
        while not line.startswith(b"pid"):
            line = child.stdout.readline()
            assert line
        broker = os.pidfd_open(int(line.split()[1]))
        child.kill()
        ready, _, _ = select.select([broker], [], [], WAIT_S)
        os.close(broker)
    assert ready


def test_a_run_without_brokers_imports_nothing(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        import sys

        def test_it():
            assert not [name for name in sys.modules if name.startswith("broker.")]
            assert "twinwire.testing.broker" not in sys.modules
        """,
    )
    result.assert_outcomes(passed=1)
