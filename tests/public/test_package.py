"""The package `twinwire`: what importing it loads, its types, its page, its files in a wheel."""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
# What a client may load of the package `broker`.
CLIENT = ("broker", "broker._compiled", "broker.client")
NEVER = ("aiohttp", "uvloop", "orjson", "click", "snappy", "cramjam", "cryptography", "pyarrow")

LOADED = """
import json, sys
before = set(sys.modules)
{}
print(json.dumps(sorted(set(sys.modules) - before)))
"""
# As on a machine where `pip install --no-deps twinwire` was run: nothing else can be imported.
ALONE = """
import sys
class Nothing:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top not in sys.stdlib_module_names and top not in ("broker", "twinwire"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Nothing())
"""


def run(program: str) -> str:
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def loaded(program: str) -> list[str]:
    return [str(name) for name in json.loads(run(LOADED.format(program)))]


@pytest.mark.parametrize("module", ["nsq", "bulk", "testing"])
def test_no_part_of_the_server_is_imported(module: str) -> None:
    names = loaded(f"from twinwire import {module}")
    assert f"twinwire.{module}" in names
    wrong = [
        name
        for name in names
        if name.partition(".")[0] in NEVER
        or (name.startswith("broker") and name not in CLIENT and not name.startswith(CLIENT[-1]))
    ]
    assert wrong == []


def test_the_package_alone_imports_nothing() -> None:
    names = loaded("import twinwire")
    found = [name for name in names if name.startswith(("broker", "twinwire", "asyncio"))]
    assert found == ["twinwire"]
    assert run("import twinwire; print(twinwire.__version__)").startswith("0.")
    assert "twinwire.nsq" in loaded("import twinwire; twinwire.nsq.Writer")


def test_one_kind_of_client_does_not_import_the_other() -> None:
    assert not [n for n in loaded("import twinwire.nsq") if "bulk" in n or "testing" in n]
    assert not [n for n in loaded("import twinwire.bulk") if "nsq" in n or "asyncio" in n]


def test_a_client_needs_no_other_package() -> None:
    """Publishing and reading by address; what needs another package says which."""
    run(
        ALONE
        + """
from twinwire import bulk, nsq, testing
nsq.Writer("127.0.0.1:4150"), bulk.Connection
def refused(call, text):
    try:
        call()
    except ImportError as error:
        assert text in str(error), error
    else:
        raise AssertionError(text)
nsq.Reader("t", "c", nsqd_tcp_addresses="127.0.0.1:4150")
def missing(name):
    return None
import importlib.util
real, importlib.util.find_spec = importlib.util.find_spec, missing
import broker.client.nsq.lookup, broker.client.nsq.options
broker.client.nsq.lookup.find_spec = broker.client.nsq.options.find_spec = missing
refused(lambda: nsq.Reader("t", "c", lookupd_http_addresses="127.0.0.1:4161"), "aiohttp")
refused(lambda: nsq.Options(snappy=True), "python-snappy")
refused(lambda: bulk.read_arrow, "twinwire[arrow]")
"""
    )


def test_unknown_names() -> None:
    import twinwire
    from twinwire import bulk, testing

    for module in (twinwire, bulk, testing):
        with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
            _ = module.nothing
        assert set(module.__all__) <= set(dir(module))


def test_earlier_names_are_the_same_objects() -> None:
    import broker.client.bulk
    import broker.client.nsq
    from twinwire import bulk, nsq

    for name in broker.client.nsq.__all__:
        assert getattr(nsq, name) is getattr(broker.client.nsq, name)
    assert bulk.Connection is broker.client.bulk.Connection
    assert broker.client.bulk.WrongDoor is bulk.WrongServer
    writer, message = nsq.Writer, nsq.Message
    assert (writer.pub, writer.mpub, writer.dpub) == (
        writer.publish,
        writer.multi_publish,
        writer.deferred_publish,
    )
    assert message.detach is message.enable_async


def test_no_private_names_are_public() -> None:
    """Neither in signatures nor as attributes of a message."""
    from inspect import signature

    from twinwire import nsq

    names = {*signature(nsq.Reader).parameters, *signature(nsq.Writer).parameters}
    assert not names & {"clock", "chance"}
    assert {name for name in dir(nsq.Message) if not name.startswith("_")} == {
        *("id", "body", "attempts", "timestamp_ns", "topic", "address"),
        *("finish", "requeue", "touch", "enable_async", "is_async", "has_responded", "detach"),
    }


def test_the_command_by_the_name_of_the_package() -> None:
    command = [sys.executable, "-m", "twinwire", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("twinwire")


PROGRAM = """
import asyncio
from typing import assert_type

from twinwire import bulk, nsq, testing


async def handle(message: nsq.Message) -> bool:
    assert_type(message.body, bytes)
    return message.attempts < 3


async def main() -> None:
    async with nsq.Writer(["127.0.0.1:4150"], nsq.Options(client_id="me")) as writer:
        await writer.publish("t", b"x")
        await writer.multi_publish("t", [b"x", bytearray(b"y")])
        await writer.deferred_publish("t", b"x", delay_s=3)
        await writer.pub("t", "text")
    async with nsq.Reader("t", "c", handle, nsqd_tcp_addresses="127.0.0.1:4150") as reader:
        await reader.connected(timeout_s=5)
    async with testing.Broker({"storage": {"sync": "always"}}) as broker:
        assert_type(broker.nats_url, str)
        with broker.faults.full_disk():
            assert_type(broker.faults.drop_connections(), int)
    with bulk.Connection("127.0.0.1:4171") as connection:
        assert_type(connection.topics(), bulk.Listing)


asyncio.run(main())
"""


def test_types_of_a_users_program(tmp_path: Path) -> None:
    """With mypy --strict, outside the checkout; the one error is the one that is there."""
    pytest.importorskip("mypy")
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path), "program.py"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    errors = [line for line in done.stdout.splitlines() if ": error:" in line]
    assert len(errors) == 1, done.stdout
    assert 'incompatible type "str"; expected "bytes |' in errors[0]


def _tool() -> Any:
    spec = importlib.util.spec_from_file_location("python_api", ROOT / "tools" / "python_api.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_of_the_api_is_current() -> None:
    """If not: .venv/bin/python tools/python_api.py"""
    tool = _tool()
    assert tool.PAGE.read_text() == tool.page()


def test_every_public_name_is_documented() -> None:
    tool = _tool()
    for name in tool.MODULES:
        module = importlib.import_module(f"twinwire.{name}")
        silent = []
        for each in module.__all__:
            found = getattr(module, each)
            if callable(found) and not found.__doc__:
                silent.append(each)
            if tool.is_class(found):
                silent += [f"{each}.{call}" for call, doc in tool.members_of(found) if not doc]
        assert silent == [], name


@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        "docs/guides/python-client.md",
        "docs/guides/testing-with-twinwire.md",
        "docs/reference/bulk-client.md",
    ],
)
def test_examples_are_python_and_their_names_exist(page: str) -> None:
    found = 0
    blocks = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
    for code in blocks.findall((ROOT / page).read_text()):
        tree = compile(code, page, "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("twinwire"):
                module = importlib.import_module(str(node.module))
                assert [one.name for one in node.names if not hasattr(module, one.name)] == []
                found += 1
    assert found


def test_a_wheel_has_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What setuptools copies into one, without its compiled modules."""
    from setuptools import Distribution

    monkeypatch.chdir(ROOT)
    distribution = Distribution({"script_name": "setup.py"})
    distribution.parse_config_files([str(ROOT / "pyproject.toml")])
    command: Any = distribution.get_command_obj("build_py")
    command.build_lib = str(tmp_path)
    command.ensure_finalized()
    command.run()
    found = {path.relative_to(tmp_path).as_posix() for path in (tmp_path / "twinwire").rglob("*")}
    there = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "twinwire").rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    assert {path for path in found if "." in path} == there
    assert "twinwire/py.typed" in found
    assert (tmp_path / "broker/client/nsq/__init__.py").exists()
