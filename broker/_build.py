"""The build: every .pyx below broker/ is a module; those of one part are one shared object.

    python -m broker._build [--keep-going] [--annotate] [PATH ...]

builds in place and rebuilds only what changed, in the sources or in the options with which they
are compiled; pyproject.toml names the same classes for packagers. A part is a folder of broker/:
the modules below broker/engine are in broker/engine/_compiled.*.so, where broker/_compiled.py finds
them.
TWINWIRE_BUILD selects the mode, and each mode keeps its objects in a separate folder:

    release   what users run
    debug     no optimiser, asserts of Cython and of C
    asan      as debug, with the address and undefined-behaviour sanitizers, and a call to
              __sanitizer_cov_trace_pc in every block: tests/fuzz/coverage.c has it
    cov       line tracing, so that coverage can see Cython

This module is loaded by path while the package is not installed yet: it imports nothing of it.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import gc
import json
import logging
import os
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import TYPE_CHECKING, Any

from setuptools import Distribution, Extension
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build import build
from setuptools.command.build_ext import build_ext

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "broker"
SHARED_OBJECT = "_compiled"
JOBS = max(2, len(os.sched_getaffinity(0)))


@dataclass(frozen=True)
class Mode:
    """The compiler options that a build mode adds."""

    compile_args: tuple[str, ...]
    link_args: tuple[str, ...] = ()
    small_args: tuple[str, ...] = ()  # for SELDOM_RUN, after the others
    macros: tuple[tuple[str, str | None], ...] = ()
    directives: tuple[tuple[str, object], ...] = ()


# Hidden symbols and no interposition let the compiler inline across functions of one module. No
# -march: a wheel must run on every machine of its family; code that needs more asks at run time.
_COMMON = ("-std=c11", "-Wall", "-Wno-unused-function", "-fvisibility=hidden")
_CHECKED = (("boundscheck", True), ("initializedcheck", True))
_DEBUG_MACROS = (("TWINWIRE_DEBUG", "1"),)
_SANITIZE = "-fsanitize=address,undefined"
_COVER = "-fsanitize-coverage=trace-pc"

MODES = {
    # Python's own flags ask for debug information, which is five sixths of a module's file and
    # nearly half of the compiler's time.
    # No row of benchmarks/compare.py gains by -O3, which takes a fifth more time; with -O1 most of
    # NATS lose 4 to 7 %.
    "release": Mode(
        (*_COMMON, "-O2", "-g0", "-fno-semantic-interposition"),
        ("-Wl,--strip-all",),
        ("-Og",),
        macros=(("CYTHON_WITHOUT_ASSERTIONS", "1"),),
        # The lines of the source in the generated C: a quarter of it, which nobody reads here.
        directives=(("emit_code_comments", False),),
    ),
    "debug": Mode((*_COMMON, "-O0", "-g", "-UNDEBUG"), macros=_DEBUG_MACROS, directives=_CHECKED),
    # -g1 is what a report of the sanitizer shows: files and lines. With -g and -O1 the compiler
    # takes two and a half times as long.
    "asan": Mode(
        (*_COMMON, "-Og", "-g1", "-UNDEBUG", "-fno-omit-frame-pointer", _SANITIZE, _COVER),
        (_SANITIZE,),
        macros=_DEBUG_MACROS,
        directives=_CHECKED,
    ),
    "cov": Mode(
        (*_COMMON, "-O0", "-g"),
        macros=(("CYTHON_TRACE_NOGIL", "1"), ("CYTHON_USE_SYS_MONITORING", "0")),
        directives=(("linetrace", True),),
    ),
}

# Modules that run at the start, for administration, for a segment, and for a new connection or
# name, not for each message; or that spend their time in Python and its libraries (HTTP, TLS,
# compression, what passes between NATS accounts). With less optimization they compile in half of
# the time.
SELDOM_RUN = frozenset(
    f"{PACKAGE}.{name}"
    for name in (
        "engine.catalog",
        "engine.cursor.deadletter",
        "engine.cursor.local",
        "engine.engine",
        "engine.log.policy",
        "engine.log.publish",
        "engine.log.retention",
        "engine.names",
        "engine.recovery",
        "engine.settings",
        "engine.state",
        "engine.stream.rewrite",
        "net.filters",
        "net.handover",
        "protocols.access",
        "protocols.jetstream.api.sink",
        "protocols.jetstream.backup.transfer",
        "protocols.jetstream.blocks.records",
        "protocols.jetstream.origins.copier",
        "protocols.jetstream.origins.receiver",
        "protocols.nats.accounts.account",
        "protocols.nats.accounts.crossing",
        "protocols.nats.accounts.imports",
        "protocols.nats.accounts.mapping",
        "protocols.nats.accounts.transform",
        "protocols.nats.client.frontend",
        "protocols.nats.client.permissions",
        "protocols.nsq.authorization",
        "protocols.nsq.frontend",
    )
)

DIRECTIVES: dict[str, object] = {
    "language_level": 3,
    "boundscheck": False,
    "wraparound": False,
    "cdivision": True,
    "initializedcheck": False,
    "auto_pickle": False,  # a lot of C, for objects that nobody pickles
    "binding": False,
    "embedsignature": False,
}


def mode_name() -> str:
    """The mode that the environment requests."""
    name = os.environ.get("TWINWIRE_BUILD", "release")
    if name not in MODES:
        raise SystemExit(f"TWINWIRE_BUILD={name}: must be one of {', '.join(MODES)}")
    return name


class Part(Extension):
    """The shared object of one part, and the modules in it."""

    def __init__(self, folder: str, modules: Sequence[Any]) -> None:
        self.modules = list(modules)
        name = f"{PACKAGE}.{folder}.{SHARED_OBJECT}"
        super().__init__(
            name,
            [source for module in modules for source in module.sources],
            extra_link_args=list(MODES[mode_name()].link_args),
        )


def parts(only: Sequence[str] = ()) -> list[Part]:
    """All shared objects; with paths of .pyx files those that have one of them."""
    wanted = {Path(p).resolve() for p in only}
    by_folder: dict[str, list[Extension]] = {}
    for module in extensions():
        by_folder.setdefault(module.name.split(".")[1], []).append(module)
    return [
        Part(folder, modules)
        for folder, modules in by_folder.items()
        if not wanted or any(ROOT / next(iter(module.sources)) in wanted for module in modules)
    ]


def extensions() -> list[Extension]:
    """One uncompiled module per .pyx."""
    found = []
    for path in sorted((ROOT / PACKAGE).rglob("*.pyx")):
        relative = path.relative_to(ROOT)
        found.append(extension(".".join(relative.with_suffix("").parts), relative))
    return found


def extension(name: str, source: Path) -> Extension:
    """An uncompiled module; `source` is relative to the project root."""
    mode = MODES[mode_name()]
    headers = _headers()
    return Extension(
        name,
        [str(source)],
        depends=list(headers),  # Cython sees direct includes only; there are few headers
        include_dirs=sorted({str(Path(h).parent) for h in headers}),
        define_macros=list(mode.macros),
        extra_compile_args=[*mode.compile_args, *(mode.small_args if name in SELDOM_RUN else ())],
        extra_link_args=list(mode.link_args),
    )


@cache
def _headers() -> tuple[str, ...]:
    return tuple(sorted(str(p.relative_to(ROOT)) for p in (ROOT / PACKAGE).rglob("*.h")))


def _discover(distribution: Any) -> None:
    # Each command requests the extensions at some point, in no fixed order.
    if not distribution.ext_modules:
        distribution.ext_modules = parts()


class Build(build):
    """`build`, with a separate folder for each mode."""

    def initialize_options(self) -> None:
        _discover(self.distribution)
        super().initialize_options()
        self.build_base = str(Path("build") / mode_name())


class BdistWheel(bdist_wheel):
    """`bdist_wheel`, which must know early that the wheel is not pure Python."""

    def initialize_options(self) -> None:
        _discover(self.distribution)
        super().initialize_options()


class BuildExt(build_ext):
    """`build_ext` with Cython: generated C stays in build/, unchanged modules are left alone."""

    strict = False  # Cython warnings are errors
    keep_going = False
    annotate = False

    def initialize_options(self) -> None:
        _discover(self.distribution)
        super().initialize_options()
        self.parallel = JOBS
        self.failed: set[str] = set()  # modules that do not compile

    def run(self) -> None:
        if self.inplace:  # also an editable install, which would compile into a throwaway folder
            self.build_lib = str(Path("build") / mode_name() / "lib")
            self.build_temp = str(Path("build") / mode_name() / "o")
        self._cythonize()
        super().run()

    def _cythonize(self) -> None:
        """Translate all modules to C, those of parts and those that are on their own."""
        found: list[Any] = []
        for ext in self.extensions:
            found += ext.modules if isinstance(ext, Part) else [ext]
        done = {module.name: module for module in self._translated(found)}
        self.failed |= {module.name for module in found} - done.keys()
        kept: list[Any] = []
        for ext in self.extensions:
            if isinstance(ext, Part):
                ext.modules = [done[each.name] for each in ext.modules if each.name in done]
                kept.append(ext)
            elif ext.name in done:
                kept.append(done[ext.name])
        for ext in kept:
            # setuptools sets these two before run(); cythonize makes new objects without them.
            ext._full_name = ext.name
            ext._needs_stub = False
            ext.optional = self.keep_going
        self.extensions = kept

    def _translated(self, modules: Sequence[Extension]) -> list[Any]:
        from Cython.Compiler import Options
        from Cython.Compiler.Errors import CompileError

        Options.warning_errors = self.strict
        # One by one, so that a module that does not compile does not prevent the others.
        groups = [[m] for m in modules] if self.keep_going else [modules]
        done: list[Any] = []
        for group in groups:
            try:
                done += self._to_c(group)
            except CompileError:
                if not self.keep_going:
                    raise
        for ext in done:
            ext.include_dirs.sort()  # its order varies, which a compiler cache would miss
        return done

    def _to_c(self, modules: Sequence[Extension]) -> list[Any]:
        from Cython.Build import cythonize
        from Cython.Shadow import __version__

        folder = Path("build") / mode_name() / "c"
        directives = DIRECTIVES | dict(MODES[mode_name()].directives)
        stamp = Stamp(folder / "options", {"cython": __version__, "directives": directives})
        if not stamp.matches():  # Cython compares the times of the sources only
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            stamp.write()
        with _without_collections():
            made: list[Any] = cythonize(  # type: ignore[no-untyped-call]
                list(modules),
                build_dir=str(folder),
                nthreads=JOBS if len(modules) > 1 else 0,
                quiet=True,
                annotate=self.annotate,
                compiler_directives=directives,
            )
        return made

    def build_extensions(self) -> None:
        """Compile the modules of all parts, then link."""
        found = [each for ext in self.extensions if isinstance(ext, Part) for each in ext.modules]
        # The largest first: at the end all cores have something to do.
        found.sort(key=lambda each: -Path(each.sources[0]).stat().st_size)
        with ThreadPoolExecutor(JOBS) as pool:
            results = [pool.submit(self._compile, each, [_init_macro(each)]) for each in found]
        for module, result in zip(found, results, strict=True):
            problem = result.exception()
            if problem is not None:
                if not self.keep_going:
                    raise problem
                self.failed.add(module.name)
        super().build_extensions()

    def build_extension(self, ext: Any) -> None:
        built = Path(self.get_ext_fullpath(ext.name))
        if isinstance(ext, Part):
            modules = [each for each in ext.modules if each.name not in self.failed]
            table = self._table(ext, modules)
            objects = [self._object_of(each) for each in modules]
            objects.append(self._compile(table))
        else:
            objects = [self._compile(ext)]
        stamp = Stamp(Path(self.build_temp) / f"{ext.name}.link", self._link_options(ext, objects))
        if stamp.matches() and _is_newer(built, objects):
            return
        built.unlink(missing_ok=True)
        self.compiler.link_shared_object(
            list(map(str, objects)), str(built), extra_postargs=ext.extra_link_args
        )
        stamp.write()
        sys.stderr.write(f"built {ext.name}\n")

    def _table(self, part: Part, modules: Sequence[Any]) -> Any:
        """The C file that lists the modules of a part, to be compiled like one of them."""
        path = Path("build") / mode_name() / "c" / Path(*part.name.split(".")).with_suffix(".c")
        rows = "".join(f' \\\n    M("{each.name}", {_init_of(each)})' for each in modules)
        text = f'#define MODULES(M){rows}\n#include "compiled.h"\n'
        if not path.exists() or path.read_text() != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        mode, header = MODES[mode_name()], ROOT / PACKAGE / "compiled.h"
        return Extension(
            part.name,
            [str(path)],
            depends=[str(header)],
            include_dirs=[str(header.parent)],
            extra_compile_args=list(mode.compile_args),
        )

    def _object_of(self, module: Any) -> Path:
        (name,) = self.compiler.object_filenames(module.sources, output_dir=self.build_temp)
        return Path(name)

    def _compile(self, module: Any, macros: Sequence[tuple[str, str]] = ()) -> Path:
        """The object file of a module, compiled if it is not up to date."""
        made = self._object_of(module)
        stamp = Stamp(made.with_suffix(".options"), self._options(module, macros))
        if not stamp.matches() or not _is_newer(made, [*module.sources, *module.depends]):
            made.unlink(missing_ok=True)
            stamp.path.unlink(missing_ok=True)  # a build that is killed leaves a part of the file
            self.compiler.compile(
                module.sources,
                output_dir=self.build_temp,
                macros=[*module.define_macros, *macros],
                include_dirs=module.include_dirs,
                debug=self.debug,
                extra_postargs=module.extra_compile_args,
            )
            stamp.write()
        return made

    def _options(self, module: Any, macros: Sequence[tuple[str, str]] = ()) -> dict[str, object]:
        """What a module is compiled with: programs, their flags, those of the environment too."""
        return {
            "tools": _without_cache(self.compiler.compiler_so),
            "compile": module.extra_compile_args,
            "macros": [*module.define_macros, *macros],
            "include": module.include_dirs,
        }

    def _link_options(self, ext: Any, objects: Sequence[Path]) -> dict[str, object]:
        return {
            "tools": _without_cache(self.compiler.linker_so),
            "link": ext.extra_link_args,
            "objects": list(map(str, objects)),
        }

    def copy_extensions_to_source(self) -> None:
        """Replace changed modules by rename: a running process keeps the file it has mapped."""
        for path in strange_objects(ROOT / PACKAGE):
            path.unlink()
        for ext in self.extensions:
            built = Path(self.build_lib) / self.file_of(ext.name)
            target = ROOT / self.file_of(ext.name)
            if not built.exists() or _same(built, target):
                continue
            fresh = target.with_name(f".{target.name}.new")
            shutil.copy2(built, fresh)
            fresh.replace(target)

    @property
    def library(self) -> Path:
        """The folder in which shared objects are made."""
        return Path(self.build_lib)

    def file_of(self, name: str) -> str:
        """Path of a shared object below a library folder."""
        return str(self.get_ext_filename(name))  # type: ignore[no-untyped-call]


def _init_of(module: Any) -> str:
    """The name of a module's init function in a shared object with several of them."""
    return f"init_{module.name.replace('.', '__')}"


def _init_macro(module: Any) -> tuple[str, str]:
    """What gives it that name instead of the one that Python would look for."""
    return f"PyInit_{module.name.rpartition('.')[2]}", _init_of(module)


def _without_cache(command: Sequence[str]) -> list[str]:
    return [word for word in command if Path(word).name != "ccache"]


def _is_newer(made: Path, sources: Sequence[str | Path]) -> bool:
    """Whether a file exists and is at least as new as all that it is made from."""
    if not made.exists():
        return False
    time_ns = made.stat().st_mtime_ns
    return all(Path(each).stat().st_mtime_ns <= time_ns for each in sources)


class Stamp:
    """A file that says with which options something was made."""

    def __init__(self, path: Path, options: dict[str, object]) -> None:
        self.path = path
        self.text = json.dumps(options, indent=1, sort_keys=True)

    def matches(self) -> bool:
        """Whether it was made with these options, and completely."""
        return self.path.exists() and self.path.read_text() == self.text

    def write(self) -> None:
        """Note that it was."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(self.text)


@contextlib.contextmanager
def _without_collections() -> Iterator[None]:
    """Cython's trees live until a module is done: searching them for garbage is a sixth of its
    time. Processes that are forked meanwhile inherit this."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def strange_objects(package: Path) -> list[Path]:
    """Shared objects that are not those of a part with modules, of another Python apart: what a
    module was in an earlier version would be found before what it is now."""
    suffix = EXTENSION_SUFFIXES[0]
    known = {package / each.name.split(".")[1] / f"{SHARED_OBJECT}{suffix}" for each in parts()}
    return sorted(set(package.rglob(f"*{suffix}")) - known)


def _same(one: Path, other: Path) -> bool:
    if not other.exists():
        return False
    a, b = one.stat(), other.stat()
    return (a.st_size, a.st_mtime_ns) == (b.st_size, b.st_mtime_ns)


def main(argv: Sequence[str] | None = None) -> int:
    """Build in place; 0 if every requested module is up to date."""
    parser = argparse.ArgumentParser(prog="python -m broker._build", description="build in place")
    parser.add_argument(
        "paths", nargs="*", help=".pyx files, built with the others of their parts; default: all"
    )
    parser.add_argument(
        "-k", "--keep-going", action="store_true", help="continue after a module that fails"
    )
    parser.add_argument("-a", "--annotate", action="store_true", help="write Cython's HTML reports")
    parser.add_argument("-v", "--verbose", action="store_true", help="show the command lines")
    options = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO if options.verbose else logging.ERROR)

    found = parts(options.paths)
    if not found:
        sys.stderr.write("nothing to build\n")
        return 1 if options.paths else 0
    os.chdir(ROOT)
    base = Path("build") / mode_name()
    base.mkdir(parents=True, exist_ok=True)
    with (base / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two builds at once would write the same C files
        return _build_in_place(found, options)


def build_into(found: list[Extension], library: Path, objects: Path) -> bool:
    """Compile modules that do not belong to the package into a folder of their own."""
    command = BuildExt(Distribution({"name": "twinwire", "ext_modules": found}))
    command.build_lib, command.build_temp = str(library), str(objects)
    return _run(command)


def _run(command: BuildExt) -> bool:
    command.strict = True
    command.ensure_finalized()
    try:
        command.run()
    except Exception as error:  # the compilers have already reported the error, with file and line
        sys.stderr.write(f"build failed: {type(error).__name__}: {error}\n")
        return False
    return True


def _build_in_place(found: list[Part], options: argparse.Namespace) -> int:
    command = BuildExt(Distribution({"name": "twinwire", "ext_modules": found}))
    command.inplace = True
    command.keep_going = options.keep_going
    command.annotate = options.annotate
    if not _run(command):
        return 1
    command.failed |= {
        part.name for part in found if not (command.library / command.file_of(part.name)).exists()
    }
    if command.failed:
        sys.stderr.write(f"not built: {', '.join(sorted(command.failed))}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
