"""Machine, versions, tables, and benchmarks/results/, in which each script owns one page."""

from __future__ import annotations

import datetime
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

import servers
import summary

from broker import __version__
from broker.bench.limits import BUSY_MAX
from broker.bench.loadgen import LoadError

AS_BEFORE = 0.97  # of the performance of an earlier build
RESULTS = Path(__file__).with_name("results")


class _Named(Protocol):
    @property
    def name(self) -> str:
        """What the first cell of its line says."""


Row = TypeVar("Row", bound=_Named)


def cpu_model() -> str:
    """The name of the CPU, from the kernel."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def _first_line(*command: str) -> str:
    if shutil.which(command[0]) is None:
        return f"{command[0]} not found"
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip().partition("\n")[0] or "unknown"


def about(*originals: str) -> str:
    """Date, machine and versions, as a Markdown list; of nats-server and nsqd unless given."""
    names = originals or ("nats-server", "nsqd")
    versions = "; ".join(_first_line(name, "--version") for name in names)
    return f"{about_us()}\n- originals: {versions}"


def about_us() -> str:
    """Date, machine and the version of Twinwire."""
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    now = datetime.datetime.now(datetime.UTC)
    commit = _first_line("git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty")
    lines = {
        "date": f"{now:%Y-%m-%d %H:%M} UTC",
        "machine": f"{os.cpu_count()} cores, {cpu_model()}, {memory_bytes / 2**30:.0f} GiB",
        "kernel": f"Linux {platform.release()}",
        "ours": f"twinwire {__version__} ({commit}), Python {platform.python_version()}",
    }
    return "\n".join(f"- {name}: {value}" for name, value in lines.items())


def table(head: list[str], rows: list[list[str]]) -> str:
    """A Markdown table that also reads well in a terminal."""
    lines = [head, *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]

    def draw(cells: list[str]) -> str:
        padded = (cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
        return "| " + " | ".join(padded) + " |"

    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([draw(head), rule, *(draw(row) for row in rows)])


def measured(
    rows: Iterable[Row], measure: Callable[[Row], list[str]], wanted: str
) -> tuple[list[list[str]], list[str]]:
    """The line of each row whose name contains `wanted`, and notes on those that failed."""
    found: list[list[str]] = []
    notes: list[str] = []
    for row in rows:
        if wanted.lower() not in row.name.lower():
            continue
        try:
            found.append(measure(row))
        except (LoadError, servers.ServerError) as error:
            print(error, file=sys.stderr)
            notes.append(f"failed: {row.name}: {str(error).partition(chr(10))[0]}")
            continue
        print(" ".join(found[-1]), file=sys.stderr)
    return found, notes


def spread(values: list[float]) -> str:
    """The smallest and the largest."""
    digits = 2 if max(values) < 100 else 0
    return f"{min(values):,.{digits}f}-{max(values):,.{digits}f}"


@dataclass(frozen=True)
class Goal:
    """A bound on a ratio, ours to the other's."""

    bound: float
    least: bool = True  # whether more is better

    def cells(self, ratio: float) -> list[str]:
        """The goal, and whether it is met."""
        sign = ">=" if self.least else "<="
        return [f"{sign} {self.bound:.3g}", verdict(ratio, self.bound, least=self.least)]

    def as_before(self) -> Goal:
        """The goal of a build that is compared with an earlier one."""
        return Goal(AS_BEFORE if self.least else 1 / AS_BEFORE, self.least)


def busy(share: float) -> str:
    """The generator's share of one core, and whether it may be what limits the result."""
    return f"{share:.0%}" + (", the limit" if share > BUSY_MAX else "")


def verdict(value: float, goal: float, *, least: bool = True) -> str:
    """Whether a goal is met: at least that much, or at most."""
    return "met" if (value >= goal if least else value <= goal) else "MISSED"


def show(
    name: str,
    method: str,
    head: list[str],
    rows: list[list[str]],
    *,
    write: bool,
    title: str = "",
) -> None:
    """Print a table about Twinwire alone; with `write` also write it to its page. The title is the
    page's name unless given."""
    heading = f"## {title or name[0].upper() + name[1:]}"
    whole = "\n\n".join([heading, about_us(), method, table(head, rows)])
    print(whole)
    if write:
        write_section(name, whole)


def section(name: str) -> str:
    """The page of this name; empty if there is none."""
    page = RESULTS / f"{slug(name)}.md"
    return page.read_text() if page.exists() else ""


def write_section(name: str, text: str) -> None:
    """Replace the page of this name, and write the summary of all pages again.

    The text's headings start at level 2, as if the page were a section.
    """
    RESULTS.mkdir(exist_ok=True)
    page = re.sub(r"^#(#+ )", r"\1", text.strip(), flags=re.MULTILINE)
    (RESULTS / f"{slug(name)}.md").write_text(page + "\n")
    summary.write()


def slug(name: str) -> str:
    """The file name of a page, without its ending."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower())
