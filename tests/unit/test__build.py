"""The build in place."""

from __future__ import annotations

import pickle
import re
import shutil
import subprocess
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from types import SimpleNamespace

import pytest
from Cython.Build import Dependencies
from Cython.Utils import clear_function_caches
from setuptools import Distribution, Extension

from broker import _build
from broker._build import (
    MODES,
    PACKAGE,
    ROOT,
    SELDOM_RUN,
    SHARED_OBJECT,
    BuildExt,
    Part,
    build_into,
    extensions,
    parts,
    strange_objects,
)
from broker.runtime.buffers import ChunkPool


def test_objects_of_earlier_versions_are_found(tmp_path: Path) -> None:
    """After an update of the sources, what was compiled before must not be imported."""
    suffix = EXTENSION_SUFFIXES[0]
    mine, *others = [
        Path(name + suffix)
        for name in (f"engine/{SHARED_OBJECT}", "engine/names", f"moved/{SHARED_OBJECT}", "top")
    ]
    for path in (mine, *others):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).touch()
    (tmp_path / "engine" / f"{SHARED_OBJECT}.cpython-39-other.so").touch()
    assert strange_objects(tmp_path) == [tmp_path / path for path in others]


def test_each_module_is_in_one_part() -> None:
    found = [module.name for part in parts() for module in part.modules]
    assert sorted(found) == sorted(each.name for each in extensions())
    assert {part.name for part in parts(["broker/net/conn.pyx"])} == {"broker.net._compiled"}
    for part in parts():
        folder = part.name.removesuffix(SHARED_OBJECT)
        assert part.modules
        assert all(each.name.startswith(folder) for each in part.modules)


def test_modules_that_seldom_run_exist_and_are_optimized_less(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A module that is renamed or removed must not stay in the list."""
    monkeypatch.setenv("TWINWIRE_BUILD", "release")
    small = {one.name for one in extensions() if "-Og" in one.extra_compile_args}
    assert small == SELDOM_RUN


def test_other_modes_compile_all_modules_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sanitizer or a debugger sees the options that the mode asks for."""
    for mode in set(MODES) - {"release"}:
        monkeypatch.setenv("TWINWIRE_BUILD", mode)
        assert {tuple(one.extra_compile_args) for one in extensions()} == {MODES[mode].compile_args}


def test_no_typed_memoryviews() -> None:
    """One in a .pxd adds its machine code to every module that cimports its class."""
    typed = re.compile(r"\b(?:char|int|long|float|double|\w+_t)\[::?1?(?:, ?::?1?)*\] ?\w")
    sources = [path for path in (ROOT / PACKAGE).rglob("*.p[yx][xd]") if path.is_file()]
    assert sources
    assert [str(path) for path in sources if typed.search(path.read_text())] == []


def test_compiled_objects_have_no_generated_pickling() -> None:
    """Cython would generate it for every class."""
    with pytest.raises(TypeError, match="cannot pickle"):
        pickle.dumps(ChunkPool(64, 1024, 4096))


class TestOptions:
    """Changed options rebuild what was made with the old ones, although no source is newer."""

    @pytest.fixture(autouse=True)
    def folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("TWINWIRE_BUILD", "release")
        Path("tiny.pyx").write_text("def one():\n    return 1\n")

    @staticmethod
    def build(*flags: str) -> tuple[int, int]:
        """The times of the generated C and of the module."""
        tiny = Extension("tiny", ["tiny.pyx"], extra_compile_args=["-O0", *flags])
        assert build_into([tiny], Path("lib"), Path("o"))
        made = Path("lib", f"tiny{EXTENSION_SUFFIXES[0]}")
        return Path("build/release/c/tiny.c").stat().st_mtime_ns, made.stat().st_mtime_ns

    def test_of_the_compiler(self) -> None:
        source, module = self.build()
        assert self.build() == (source, module)
        assert self.build("-g") > (source, module)
        assert self.build("-g")[0] == source

    def test_of_the_environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        _, module = self.build()
        monkeypatch.setenv("CFLAGS", "-DMADE_BY_A_TEST")
        assert self.build()[1] > module

    def test_of_cython(self, monkeypatch: pytest.MonkeyPatch) -> None:
        source, module = self.build()
        monkeypatch.setitem(_build.DIRECTIVES, "cdivision", False)
        later = self.build()
        assert later[0] > source
        assert later[1] > module


class TestPart:
    """A shared object with two modules."""

    @pytest.fixture(autouse=True)
    def folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("TWINWIRE_BUILD", "debug")
        Path("broker/made/inner").mkdir(parents=True)
        for folder in ("broker", "broker/made", "broker/made/inner"):
            Path(folder, "__init__.py").touch()
        for name, number in (("same", 1), ("inner/same", 2)):
            Path(f"broker/made/{name}.pyx").write_text(f"def number():\n    return {number}\n")

    @staticmethod
    def build(*, keep_going: bool = False) -> tuple[BuildExt, dict[str, int]]:
        """The command, and the times of all object files."""
        clear_function_caches()  # Cython remembers folders that it has made, and times of files
        Dependencies._dep_tree = None
        modules = [
            Extension(f"broker.made.{name}", [f"broker/made/{name.replace('.', '/')}.pyx"])
            for name in ("same", "inner.same")
        ]
        part = Part("made", modules)
        command = BuildExt(Distribution({"name": "made", "ext_modules": [part]}))
        command.build_lib, command.build_temp = "lib", "o"
        command.keep_going = keep_going
        command.ensure_finalized()
        command.run()
        return command, {str(path): path.stat().st_mtime_ns for path in Path().rglob("*.[os]*")}

    def test_both_are_imported(self) -> None:
        self.build()
        Path("broker/made/inner/same.pyx").unlink()
        shutil.copytree("broker", "lib/broker", dirs_exist_ok=True)
        shutil.copy(ROOT / PACKAGE / "_compiled.py", "lib/broker")
        code = """
import importlib.util, sys
sys.path.insert(0, "lib")
import broker._compiled
broker._compiled.install()
for name in ("broker.made.same", "broker.made.inner.same"):
    module = importlib.import_module(name)
    print(module.__name__, module.__file__.count("/made/_compiled."), module.number())
    assert importlib.util.find_spec(name).origin == module.__file__
try:
    import broker.made.other
except ModuleNotFoundError as problem:
    print(problem)
try:
    import broker.absent.other
except ModuleNotFoundError as problem:
    print(problem)
"""
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        )
        assert done.stdout.splitlines() == [
            "broker.made.same 1 1",
            "broker.made.inner.same 1 2",
            "No module named 'broker.made.other'",
            "No module named 'broker.absent'",
        ]

    def test_only_what_changed_is_compiled(self) -> None:
        _, first = self.build()
        assert self.build()[1] == first
        Path("broker/made/same.pyx").write_text("def number():\n    return 3\n")
        _, later = self.build()
        changed = {
            Path(name).name.partition(".")[0] for name in first if first[name] != later[name]
        }
        assert changed == {"same", "_compiled"}
        assert sum(first[name] == later[name] for name in first if name.endswith("same.o")) == 1

    def test_a_module_that_fails_is_left_out(self) -> None:
        Path("broker/made/same.pyx").write_text("def number(:\n")
        command, _ = self.build(keep_going=True)
        assert command.failed == {"broker.made.same"}
        assert list(Path("lib").rglob("_compiled*"))


def test_a_change_of_the_compiler_cache_rebuilds_nothing() -> None:
    """`CC="ccache gcc"` compiles with the same compiler."""
    found = []
    for tools in (["gcc", "-O2"], ["/usr/bin/ccache", "gcc", "-O2"]):
        command = _build.BuildExt(Distribution({"ext_modules": extensions()}))
        command.compiler = SimpleNamespace(compiler_so=tools, linker_so=tools)
        found.append(command._options(extensions()[0]))
    assert found[0] == found[1]
