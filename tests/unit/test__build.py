"""The build in place."""

from __future__ import annotations

import pickle
import re
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from broker._build import MODES, PACKAGE, ROOT, SELDOM_RUN, extensions, without_source
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


def test_modules_that_seldom_run_exist_and_are_compiled_for_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A module that is renamed or removed must not stay in the list."""
    monkeypatch.setenv("TWINWIRE_BUILD", "release")
    small = {one.name for one in extensions() if "-Os" in one.extra_compile_args}
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
