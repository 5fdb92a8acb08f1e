"""Writes docs/reference/python-api.md from the signatures and docstrings of the package `twinwire`.

    .venv/bin/python tools/python_api.py

A test compares the page with what this would write.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "reference" / "python-api.md"
MODULES = ("nsq", "bulk", "testing")
COLUMNS = 96
NUMBER = re.compile(r"(?<=twinwire/)[0-9][\w.]*")  # of the version
HEAD = """\
# Python API

Every public name of the package `twinwire`, with its signature; for Python developers. Guides:
[NSQ client](../guides/python-client.md), [topics as Arrow tables](bulk-client.md),
[testing with Twinwire](../guides/testing-with-twinwire.md).
`tools/python_api.py` writes this page from the docstrings.

Names that begin with an underscore, and modules below `broker` other than `broker.client.nsq` and
`broker.client.bulk`, are not public and may change without notice.
"""


def page() -> str:
    """The text of the page."""
    return "\n".join([HEAD, *(line for name in MODULES for line in module_lines(name))])


def module_lines(name: str) -> Iterator[str]:
    """The part of one module."""
    module = import_module(f"twinwire.{name}")
    yield f"## twinwire.{name}\n"
    yield doc_of(module) + "\n"
    public = {each: getattr(module, each) for each in module.__all__}
    errors = {n: o for n, o in public.items() if is_class(o) and issubclass(o, BaseException)}
    functions = {n: o for n, o in public.items() if inspect.isfunction(o)}
    for each, found in public.items():
        if is_class(found) and each not in errors:
            yield from class_lines(each, found)
    for each, function in functions.items():
        yield f"### {each}\n\n```python\n{signature(each, function)}\n```\n\n{doc_of(function)}\n"
    if errors:
        yield "### Exceptions\n"
        yield "| exception | is a | meaning |\n|---|---|---|"
        for each, found in errors.items():
            bases = ", ".join(f"`{base.__name__}`" for base in found.__bases__)
            yield f"| `{each}` | {bases} | {cell(doc_of(found))} |"
        yield ""


def class_lines(name: str, found: type) -> Iterator[str]:
    """A class: its call, its docstring, its fields, its methods."""
    yield f"### {name}\n"
    fields = [f for f in dataclasses.fields(found) if f.repr or f.init] if is_data(found) else []
    if not fields and not is_tuple(found) and "For " not in (found.__init__.__doc__ or ""):
        yield f"```python\n{signature(name, found.__init__)}\n```\n"
    text = doc_of(found)
    if not is_data(found) and not is_tuple(found) and found.__init__.__doc__:
        more = inspect.cleandoc(found.__init__.__doc__)
        if found.__init__ is not object.__init__ and "For " not in more:
            text += f"\n\n{more}"
    yield text + "\n"
    if fields:
        yield "| field | type | default |\n|---|---|---|"
        yield from (f"| `{f.name}` | `{cell(kind(f.type))}` | {default(f)} |" for f in fields)
        yield ""
    members = list(members_of(found))
    if members:
        yield "| member | meaning |\n|---|---|"
        yield from (f"| `{cell(call)}` | {cell(meaning)} |" for call, meaning in members)
        yield ""


def members_of(found: type) -> Iterator[tuple[str, str]]:
    """Signature and docstring of each public method, property and annotated attribute."""
    own = [base for base in found.__mro__ if base.__module__.startswith(("broker", "twinwire"))]
    seen: set[str] = set()
    for base in own:
        names = [*base.__dict__]
        for name in names:
            member = base.__dict__[name]
            if name.startswith("_") or name in seen:
                continue
            if isinstance(member, property):
                yield name, doc_of(member)
            elif inspect.isfunction(member) and member.__name__ == name:
                word = "await " if inspect.iscoroutinefunction(member) else ""
                yield word + signature(name, member, wrap=False), doc_of(member)
            elif isinstance(member, classmethod | staticmethod):
                yield signature(name, member.__func__, wrap=False), doc_of(member)
            elif inspect.isfunction(member):
                yield f"{name}(...)", f"The same as `{member.__name__}`."
            else:
                continue
            seen.add(name)


def signature(name: str, function: Callable[..., Any], *, wrap: bool = True) -> str:
    """A call as it is written in source."""
    words = []
    star = False
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name == "self":
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not star:
            words.append("*")
            star = True
        text = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        star = star or text == "*"
        text += parameter.name
        if parameter.annotation is not parameter.empty:
            text += f": {kind(parameter.annotation)}"
        if parameter.default is not parameter.empty:
            text += f" = {parameter.default!r}" if ":" in text else f"={parameter.default!r}"
        words.append(text)
    back = inspect.signature(function).return_annotation
    tail = "" if back in {inspect.Signature.empty, "None", None} else f" -> {kind(back)}"
    line = f"{name}({', '.join(words)}){tail}"
    if not wrap or len(line) <= COLUMNS:
        return line
    inner = "".join(f"    {word},\n" for word in words)
    return f"{name}(\n{inner}){tail}"


def kind(annotation: Any) -> str:
    """A type as text."""
    return annotation if isinstance(annotation, str) else annotation.__name__


def default(field: dataclasses.Field[Any]) -> str:
    """The default of a field."""
    if field.default is dataclasses.MISSING:
        return ""
    return f"`{NUMBER.sub('VERSION', repr(field.default))}`"


def doc_of(found: object) -> str:
    """A docstring, its indented examples as code blocks."""
    text = inspect.getdoc(found) or ""
    parts, example = [], []
    for block in text.split("\n\n"):
        if all(line.startswith("    ") for line in block.splitlines()):
            example.append(textwrap.dedent(block))
            continue
        if example:
            parts.append("```python\n" + "\n\n".join(example) + "\n```")
            example = []
        parts.append(block)
    if example:
        parts.append("```python\n" + "\n\n".join(example) + "\n```")
    return "\n\n".join(parts)


def cell(text: str) -> str:
    """Text for one cell of a table."""
    return " ".join(text.split()).replace("|", "\\|")


def is_class(found: object) -> bool:
    return inspect.isclass(found)


def is_data(found: type) -> bool:
    return dataclasses.is_dataclass(found)


def is_tuple(found: type) -> bool:
    return issubclass(found, tuple)


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    PAGE.write_text(page(), encoding="utf-8")
