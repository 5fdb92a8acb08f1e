"""No exception vanishes in a compiled function that cannot raise.

What is raised in a `noexcept` function is printed ("Exception ignored in ...") and forgotten, and
the rest of the function is left out. So whatever fails with the disk or with a file is called there
within `try` only. This looks at the text: names of the calls are known, types are not.

Left out are calls that fail only when no memory is left for a few bytes (Turn.arm, Worker.job,
Inflight.make): there is no reasonable way on from there. Python objects that are called back
(consumers, watchers, links) guard themselves.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

BROKER = Path(__file__).parents[2] / "broker"
SOURCES = sorted(BROKER.rglob("*.pyx"))

# Functions of ours that raise OSError, and what opens, makes, renames or removes files.
RAISING = re.compile(
    r"""
    \.(new_segment | open_batch | save | skip_to_new | map | locate | widen | rewrite | open_log
       | open_cursor | delete_log | delete_cursor | scan | make_channel | put_sub | add_client
       | remove_client)\(
    | journal\.discard\(
    | \b(awaken | write_header | snapshot | save_meta | load_meta | has_meta | open)\(
    | \bos\.(?!strerror|fsencode|fsdecode|path\.(join|basename|dirname|exists)\()
      [a-z_]+(\.[a-z_]+)?\(
    | \braise\b
    """,
    re.VERBOSE,
)
HEAD = re.compile(r"( *)cdef [^=]*\bnoexcept\b[^=]*:$")


def functions(text: str) -> list[tuple[str, list[str]]]:
    """The first line of each function that cannot raise, and the lines of its body."""
    found: list[tuple[str, list[str]]] = []
    lines = text.splitlines()
    at = 0
    while at < len(lines):
        start, head = at, lines[at]
        at += 1
        if not head.lstrip().startswith("cdef ") or "(" not in head:
            continue
        while not head.rstrip().endswith(":") and at < len(lines) and ")" not in head:
            head += " " + lines[at].strip()
            at += 1
        while "noexcept" in head and not head.rstrip().endswith(":") and at < len(lines):
            head += " " + lines[at].strip()
            at += 1
        match = HEAD.match(head)
        if match is None:
            continue
        indent = len(match[1])
        body = []
        while at < len(lines) and (
            not lines[at].strip() or len(lines[at]) - len(lines[at].lstrip()) > indent
        ):
            body.append(lines[at])
            at += 1
        found.append((f"{start + 1}: {head.strip()}", body))
    return found


def unguarded(body: list[str]) -> list[str]:
    """Lines that may raise and do not stand in a `try`."""
    found = []
    tries: list[int] = []
    in_text = False
    for line in body:
        code = line.split("#")[0].rstrip()
        if code.count('"""') == 1:
            in_text = not in_text
            continue
        if in_text or not code.strip() or '"""' in code:
            continue
        indent = len(code) - len(code.lstrip())
        while tries and indent <= tries[-1]:
            tries.pop()  # its except, or what follows
        if code.strip() == "try:":
            tries.append(indent)
        elif not tries and RAISING.search(code) and not code.strip().startswith("cdef "):
            found.append(code.strip())
    return found


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(BROKER)))
def test_what_cannot_raise_calls_nothing_that_does(path: Path) -> None:
    wrong = [
        f"{head}: {line}" for head, body in functions(path.read_text()) for line in unguarded(body)
    ]
    assert wrong == []


def test_the_check_sees_what_it_should() -> None:
    text = (
        "cdef void enforce(Log log) noexcept:\n"
        "    if log.active:\n"
        "        log.new_segment(1, 0)\n"
        "    try:\n"
        "        log.save()\n"
        "    except OSError:\n"
        "        log.save()\n"
        "cdef void fine(Log log):\n"
        "    log.new_segment(1, 0)\n"
    )
    (only,) = functions(text)
    assert unguarded(only[1]) == ["log.new_segment(1, 0)", "log.save()"]
