"""The build in place."""

from __future__ import annotations

from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

from broker._build import without_source


def test_modules_that_moved_are_found(tmp_path: Path) -> None:
    """After an update of the sources, what was compiled before must not be imported."""
    (tmp_path / "part").mkdir()
    for name in ("here", "moved", "part/moved"):
        (tmp_path / f"{name}{EXTENSION_SUFFIXES[0]}").touch()
    (tmp_path / "here.pyx").touch()
    (tmp_path / "moved.py").touch()
    found = [str(path.relative_to(tmp_path)) for path in without_source(tmp_path)]
    assert found == [f"moved{EXTENSION_SUFFIXES[0]}", f"part/moved{EXTENSION_SUFFIXES[0]}"]
