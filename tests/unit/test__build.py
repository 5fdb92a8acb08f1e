"""The build in place."""

from __future__ import annotations

import pickle
import re
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from types import SimpleNamespace

import pytest
from setuptools import Distribution, Extension

from broker import _build
from broker._build import (
    MODES,
    PACKAGE,
    ROOT,
    SELDOM_RUN,
    build_into,
    extensions,
    without_source,
)
from broker.runtime.buffers import ChunkPool


def test_modules_that_moved_are_found(tmp_path: Path) -> None:
    """After an update of the sources, what was compiled before must not be imported."""
    (tmp_path / "part").mkdir()
    for name in ("here", "moved", "part/moved"):
        (tmp_path / f"{name}{EXTENSION_SUFFIXES[0]}").touch()
    (tmp_path / "here.pyx").touch()
    (tmp_path / "moved.py").touch()
    found = [str(path.relative_to(tmp_path)) for path in without_source(tmp_path)]
    assert found == [f"moved{EXTENSION_SUFFIXES[0]}", f"part/moved{EXTENSION_SUFFIXES[0]}"]


def test_modules_that_seldom_run_exist_and_are_optimized_less(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A module that is renamed or removed must not stay in the list."""
    monkeypatch.setenv("TWINWIRE_BUILD", "release")
    small = {one.name for one in extensions() if "-O1" in one.extra_compile_args}
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


def test_a_change_of_the_compiler_cache_rebuilds_nothing() -> None:
    """`CC="ccache gcc"` compiles with the same compiler."""
    found = []
    for tools in (["gcc", "-O2"], ["/usr/bin/ccache", "gcc", "-O2"]):
        command = _build.BuildExt(Distribution({"ext_modules": extensions()}))
        command.compiler = SimpleNamespace(compiler_so=tools, linker_so=tools)
        found.append(command._options(extensions()[0]))
    assert found[0] == found[1]
