"""The house rules that a program can check: imports go one way, sizes, words that must not appear.

Tools that read Python imports do not see .pyx files and pass a broken layout, so this reads the
import and cimport lines itself.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROTOCOLS = ("nsq", "nats", "stan", "jetstream")

CODE = sorted(
    path for kind in ("*.py", "*.pyx", "*.pxd", "*.pyi") for path in (ROOT / "broker").rglob(kind)
)
TEXTS = sorted(
    path
    for folder in ("broker", "tests", "benchmarks", "docs", "conf")
    for path in (ROOT / folder).rglob("*")
    if path.suffix in {".py", ".pyx", ".pxd", ".pyi", ".h", ".md", ".toml"}
    and "corpus" not in path.parts
)

# Who may import whom, in the order of the layers; JetStream is a protocol that will be.
_BASE = {"root", "base"}
_ENGINE = _BASE | {"runtime", "routing", "names", "engine"}
_SERVED = _ENGINE | {"net", "protocols", "wire"}
ALLOWED = {
    "root": set(),
    "build": set(),
    "base": {"root"},
    "runtime": _BASE,
    "routing": _BASE | {"runtime"},
    "names": _BASE,  # engine/names: which topics there may be; C without state
    "engine": _ENGINE,
    "net": _BASE | {"runtime"},
    "wire": _BASE | {"runtime", "names"},
    "protocols": _SERVED,  # what protocols share: who may use a log
    "nsq": _SERVED,
    "nats": _SERVED,
    "stan": _SERVED | {"nats"},
    "jetstream": _SERVED | {"nats"},
    "bulk": _SERVED,
    "telemetry": _SERVED | {"nats"},
    "console": _SERVED | {*PROTOCOLS, "bulk"},
    "config": _SERVED | {*PROTOCOLS, "bulk", "console", "telemetry"},
    "server": _SERVED | {*PROTOCOLS, "bulk", "config", "console", "telemetry"},
    "importers": _SERVED | {*PROTOCOLS, "bulk", "config", "server"},
    "client": _BASE | {"wire"},
    "bench": _BASE | {"client", "wire", "runtime"},
    "spark": _BASE | {"client"},
    "cli": _SERVED | {*PROTOCOLS, "config", "server", "importers", "client", "bench", "spark"},
    "main": {"cli"},
}


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def part_of(module: str) -> str | None:
    parts = module.split(".")
    if len(parts) == 1:
        return "root"
    if parts[1:] == ["engine", "names"]:
        return "names"
    if parts[1] == "protocols":
        if len(parts) == 2 or parts[2] not in PROTOCOLS:
            return "protocols"
        is_wire = len(parts) > 3 and re.match(r"wire|\w+_pb2$", parts[3])
        return "wire" if is_wire else parts[2]
    return {"_build": "build", "_compiled": "root", "__main__": "main"}.get(parts[1], parts[1])


_IMPORT = re.compile(
    r"^[ \t]*(?:from[ \t]+(?P<base>broker[\w.]*)[ \t]+c?import[ \t]+(?P<names>\([^)]*\)|[^\n#]+)"
    r"|c?import[ \t]+(?P<module>broker[\w.]*))",
    re.MULTILINE,
)
_RELATIVE = re.compile(r"^[ \t]*from[ \t]+\.", re.MULTILINE)
MODULES = {name_of(path) for path in CODE}


def imported(source: str) -> Iterator[str]:
    for match in _IMPORT.finditer(source):
        if match["module"]:
            yield match["module"]
            continue
        names = re.findall(r"(\w+)(?:\s+as\s+\w+)?\s*(?:,|$|\)|\n)", match["names"])
        for name in names:
            inner = f"{match['base']}.{name}"
            yield inner if inner in MODULES else match["base"]


def test_the_reader_of_imports() -> None:
    source = (
        "from broker.base import limits, logs as l\n"
        "  from broker.runtime.heap cimport (\n  heap_t,\n)\n"
        "import broker.config.load\ncimport broker.runtime.types as t  # import broker.cli\n"
    )
    assert list(imported(source)) == [
        "broker.base.limits",
        "broker.base.logs",
        "broker.runtime.heap",
        "broker.config.load",
        "broker.runtime.types",
    ]


def test_every_module_has_a_place() -> None:
    assert {m for m in MODULES if part_of(m) not in ALLOWED} == set()


def imports() -> Iterator[tuple[str, str]]:
    """Every import and cimport of one module of the broker by another, for types too."""
    for path in CODE:
        for target in imported(path.read_text()):
            yield name_of(path), target


def test_imports_follow_the_layers() -> None:
    wrong = set()
    for module, target in imports():
        part, other = part_of(module) or "", part_of(target) or ""
        same = part == other and (part != "wire" or module.split(".")[:3] == target.split(".")[:3])
        owner = target.split(".")[2] if other == "wire" else part
        if (not same and other not in ALLOWED[part]) or (
            part in PROTOCOLS and owner not in ALLOWED[part] | {part}
        ):
            wrong.add((module, target))
    assert wrong == set()


def test_imports_are_absolute() -> None:
    assert [name_of(path) for path in CODE if _RELATIVE.search(path.read_text())] == []


def test_there_are_no_circles() -> None:
    """Of imports and cimports, for types too."""
    graph: dict[str, set[str]] = {}
    for module, target in imports():
        graph.setdefault(module, set()).add(target)
    assert circles(graph) == []


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Groups of modules that reach each other, the largest first (Tarjan)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(module: str) -> None:
        index[module] = low[module] = len(index)
        stack.append(module)
        for target in graph.get(module, ()):
            if target not in index:
                visit(target)
                low[module] = min(low[module], low[target])
            elif target in stack:
                low[module] = min(low[module], index[target])
        if low[module] == index[module]:
            circle = stack[stack.index(module) :]
            del stack[stack.index(module) :]
            if len(circle) > 1:
                found.append(sorted(circle))

    for module in sorted(graph):
        if module not in index:
            visit(module)
    return sorted(found, key=lambda circle: (-len(circle), circle))


# --- folders -------------------------------------------------------------------------------------

FOLDERS = sorted({path.parent for path in CODE})
FILES_MAX = 15


def modules_of(folder: Path) -> set[str]:
    return {path.stem for path in CODE if path.parent == folder} - {"__init__"}


def test_folders_say_what_they_are() -> None:
    """What it is, where to start reading, who may import it: in the docstring of its package."""
    silent = [
        str(folder.relative_to(ROOT))
        for folder in FOLDERS
        if not (folder / "__init__.py").is_file()
        or not ast.get_docstring(ast.parse((folder / "__init__.py").read_text()))
    ]
    assert silent == []


def test_folders_are_of_a_size_to_read() -> None:
    crowded = {
        str(folder.relative_to(ROOT)): len(modules_of(folder))
        for folder in FOLDERS
        if len(modules_of(folder)) > FILES_MAX
    }
    assert crowded == {}


def test_a_prefix_is_a_folder() -> None:
    """Two modules `x_a` and `x_b` in one folder would be a folder x."""
    wrong = {}
    for folder in FOLDERS:
        prefixes = Counter(name.split("_")[0] for name in modules_of(folder) if "_" in name[1:-1])
        families = {prefix for prefix, count in prefixes.items() if prefix and count > 1}
        if families:
            wrong[str(folder.relative_to(ROOT))] = families
    assert wrong == {}


# Assignments to fields of a log, a cursor or a session outside the module of its class.
_FOREIGN = re.compile(r"^\s*(?:self\.)?(log|cursor|session)\.\w+ [-+|&]?= ", re.MULTILINE)


def test_fields_are_assigned_by_their_class() -> None:
    found = [
        f"{name_of(path)}: {match[0].strip()}"
        for path in CODE
        if path.suffix in {".py", ".pyx"}
        for match in _FOREIGN.finditer(path.read_text())
        if path.stem != match[1]
    ]
    assert found == []


# Tests of the tree itself.
_OF_THE_TREE = {"test_architecture", "test_bare", "test_documents", "test_noexcept"}


def test_unit_tests_stand_where_their_module_stands() -> None:
    """tests/unit/x/test_m.py, or test_m_more.py, tests broker/x/m or the package x. What belongs to
    no module is in tests/behaviour."""
    unit = ROOT / "tests" / "unit"
    wrong = []
    for path in unit.rglob("test_*.py"):
        folder = ROOT / "broker" / path.parent.relative_to(unit)
        names = {folder.name} | (modules_of(folder) if folder.is_dir() else set())
        tested = path.stem.removeprefix("test_")
        if path.stem not in _OF_THE_TREE and not any(
            tested == name or tested.startswith(f"{name}_") for name in names
        ):
            wrong.append(str(path.relative_to(ROOT)))
    assert wrong == []


# --- words ---------------------------------------------------------------------------------------

# Private words for which the field has its own, and how often each stands in broker/ because it is
# a key on the disk, a label of a metric or a name of the public client.
WORDS_KEPT = {
    "face": 8,
    "door": 14,
    "gate": 0,
    "desk": 0,
    "speaker": 0,
    "ear": 0,
    "taker": 0,
    "knock": 0,
    "mishap": 0,
    "promise": 0,
    "warrant": 0,
    "pulse": 0,
    "deeds": 0,
    "told": 23,
}
# The same in tests, benchmarks and tools: labels, names of the public client, JavaScript's.
WORDS_KEPT_IN_TESTS = {"door": 11, "face": 1, "promise": 2, "told": 4}


def retired_words(paths: list[Path]) -> dict[str, int]:
    """How often each of them stands there."""
    found = dict.fromkeys(WORDS_KEPT, 0)
    for path in paths:
        text = path.read_text()
        for word in WORDS_KEPT:
            found[word] += len(
                re.findall(
                    rf"(?i:(?<![a-z]){word}s?(?![a-z]))|(?<=[a-z_]){word.capitalize()}s?(?![a-z])",
                    text,
                )
            )
    return found


def test_retired_words() -> None:
    assert retired_words(CODE) == WORDS_KEPT


def test_retired_words_in_tests() -> None:
    code = [
        path
        for path in (*TEXTS, *(ROOT / "tools").rglob("*.py"))
        if path.suffix in {".py", ".pyx", ".pyi"}
        and path.relative_to(ROOT).parts[0] != "broker"
        and path != Path(__file__)
    ]
    assert retired_words(code) == dict.fromkeys(WORDS_KEPT, 0) | WORDS_KEPT_IN_TESTS


_REGISTRIES = {"server/services.py", "config/config.py"}  # each has one line for a protocol


@pytest.mark.parametrize("part", ["engine", "config", "server", "base/metrics.py"])
def test_what_serves_all_protocols_names_none(part: str) -> None:
    words = re.compile(rf"(?i)(?<![a-z])({'|'.join(PROTOCOLS)})(?![a-z])")
    broker = ROOT / "broker"
    files = [broker / part] if part.endswith(".py") else (broker / part).rglob("*")
    wrong = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in files
        if path.suffix in {".py", ".pyx", ".pxd", ".pyi", ".h"}
        and path.relative_to(broker).as_posix() not in _REGISTRIES
        for match in words.finditer(path.read_text())
    ]
    assert wrong == []


def test_configuration_is_read_in_one_place() -> None:
    """Other modules neither parse TOML nor look for settings in the environment."""
    reader = re.compile(r"^\s*import tomllib|environ\[|environ\.get|getenv", re.MULTILINE)
    wrong = [name_of(path) for path in CODE if reader.search(path.read_text())]
    # The service manager's variables are no settings.
    assert set(wrong) <= {"broker.config.load", "broker.cli.notify", "broker._build"}


COLUMNS_MAX = 100


def test_lines_of_cython_and_c_are_short() -> None:
    """ruff looks after Python's."""
    long = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in TEXTS
        if path.suffix in {".pyx", ".pxd", ".h"}
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if len(line) > COLUMNS_MAX
    ]
    assert long == []


FUNCTION_LINES_MAX = 70
_CYTHON_FUNCTION = re.compile(
    r"([ \t]*)(?:cdef(?![ ]class)|cpdef|def|async def)\b[^=\n]*?(\w+)\s*\("
)


def functions(path: Path) -> Iterator[tuple[str, int]]:
    """Name and number of lines of each function."""
    source = path.read_text()
    if path.suffix == ".py":
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield node.name, (node.end_lineno or 0) - node.lineno + 1
        return
    lines = source.splitlines()
    for start, line in enumerate(lines):
        match = _CYTHON_FUNCTION.match(line)
        if match is None:
            continue
        end = start
        for number in range(start + 1, len(lines)):
            text = lines[number]
            indented = len(text) - len(text.lstrip()) > len(match[1])
            if text.strip() and not indented and not text.lstrip().startswith(")"):
                break
            if text.strip():
                end = number
        yield match[2], end - start + 1


def test_functions_are_short() -> None:
    long = {
        f"{path.relative_to(ROOT)}: {name}": count
        for path in TEXTS
        if path.suffix in {".py", ".pyx"}
        for name, count in functions(path)
        # The switch of a scanner is one thought however many cases the grammar has.
        if count > FUNCTION_LINES_MAX and not name.startswith("scan")
    }
    assert long == {}


def test_modules_say_what_they_are() -> None:
    silent = [
        str(path.relative_to(ROOT))
        for path in CODE
        if path.suffix in {".py", ".pyx"}
        and not re.match(r'(?:\s*#[^\n]*\n)*\s*r?"""', path.read_text())
    ]
    assert silent == []


# A call with `True` or `False` without a keyword; ruff looks after Python's. Cython compiles a
# keyword to the same call of a C function.
_FLAG = re.compile(r"""(\w+)\((?:[^()'"#]|\([^()]*\))*?(?<![=\w])(?<!=\s)\b(?:True|False)\s*[,)]""")
_FLAG_ONLY = {
    "PyBuffer_FillInfo",
    "clone",
    "getpeercert",
    "pop",
    "get",
    "set_blocked",
    "setblocking",
    "wraparound",
}


def test_flags_have_names() -> None:
    found = [
        f"{name_of(path)}: {match[0]}"
        for path in CODE
        if path.suffix == ".pyx"
        for match in _FLAG.finditer(path.read_text())
        if match[1] not in _FLAG_ONLY
    ]
    assert found == []


# In halves, so that this file passes its own test.
UNWANTED = {
    "unfinished work": rf"\b(?:{'TO' + 'DO'}|{'FIX' + 'ME'}|{'XX' + 'X'}|{'HA' + 'CK'})\b",
    "a stub": "Not" + "ImplementedError",
    "a path of one machine": rf"(?:{'/wo' + 'rk/'}|{'/ro' + 'ot/'}|{'/ho' + 'me/'})\w",
    "a sleep in a test": r"^(?:.*\W)?time\." + r"sleep\(",
    "code for tests in the broker": r"(?i)\bfor (?:the )?tests?\b|\btests? (?:and|or) the fuzzer",
}
_ONLY_IN = {"a sleep in a test": "tests", "code for tests in the broker": "broker"}


@pytest.mark.parametrize("what", UNWANTED)
def test_unwanted_text(what: str) -> None:
    pattern = re.compile(UNWANTED[what], re.MULTILINE)
    found = [
        f"{path.relative_to(ROOT)}: {match[0].strip()}"
        for path in TEXTS
        if _ONLY_IN.get(what, path.relative_to(ROOT).parts[0]) == path.relative_to(ROOT).parts[0]
        for match in pattern.finditer(path.read_text())
    ]
    assert found == []


def test_error_codes_stand_in_one_place() -> None:
    """A client reads these texts; each protocol has one list of them."""
    quoted = re.compile(r"""["']E_[A-Z]+""")
    found = [
        name_of(path)
        for path in CODE
        if quoted.search(path.read_text())
        and path.stem != "errors"
        and part_of(name_of(path)) != "client"
    ]
    assert found == []


def test_modules_with_general_names() -> None:
    """A module is named after what it holds."""
    vague = {"utils", "util", "helpers", "helper", "misc", "common", "manager"}
    assert [name_of(path) for path in CODE if path.stem in vague] == []
