"""Finds compiled modules: all below one part of the broker are in one shared object.

`broker.engine.log.log` is in `broker/engine/_compiled.*.so`, like every other `.pyx` below
`broker/engine`. With a file for each module, a start would spend 10 ms more on opening and mapping
sixty files, and an installation would have 3 MB more. `_build.py` makes the shared objects, and
`compiled.h` is what each of them has besides its modules.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.machinery import ModuleSpec

TYPE_CHECKING = False  # `typing` takes a server longer to import than it takes to note a signal

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType
    from typing import Any, Final

SHARED_OBJECT: Final = "_compiled"
PACKAGE: Final = __name__.partition(".")[0]


class CompiledLoader:
    """Creates the modules of one shared object."""

    def __init__(self, shared: Any) -> None:
        self._shared = shared

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """A module that was not executed yet."""
        module: ModuleType = self._shared.create(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Run its body."""
        self._shared.execute(module)


class CompiledFinder:
    """Asks the shared object of a part, which is loaded with the first compiled module of it."""

    def __init__(self) -> None:
        self._specs: dict[str, tuple[CompiledLoader, str]] = {}
        self._loaded: set[str] = set()

    def find_spec(
        self, name: str, _path: Sequence[str] | None = None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The compiled module of that name; None: there is none."""
        package, _, rest = name.partition(".")
        part, _, inner = rest.partition(".")
        if package != PACKAGE or inner in {"", SHARED_OBJECT}:
            return None
        if part not in self._loaded:
            self._load(part)
        if name not in self._specs:
            return None
        loader, origin = self._specs[name]
        spec = ModuleSpec(name, loader, origin=origin)  # type: ignore[arg-type]
        spec.has_location = True
        return spec

    def _load(self, part: str) -> None:
        full = f"{PACKAGE}.{part}.{SHARED_OBJECT}"
        try:
            shared: Any = import_module(full)
        except ModuleNotFoundError as problem:
            if problem.name != full:
                raise  # else nothing of this part is compiled
        else:
            loader = CompiledLoader(shared)
            self._specs.update(dict.fromkeys(shared.names, (loader, shared.__file__)))
        self._loaded.add(part)


def install() -> None:
    """Search here what no other finder has found."""
    sys.meta_path.append(CompiledFinder())
