"""Rows of the campaign's table in docs/operate/reliability.md, and the findings."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from broker import __version__

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "operate" / "reliability.md"
HEAD = ["part", "what was done", "result", "command", "date, version"]


@dataclass
class Row:
    """The result of one part. It is good if it has no findings."""

    part: str
    did: str
    result: str
    command: str
    findings: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        """Whether there are no findings."""
        return not self.findings


def version() -> str:
    """The broker's version, with the commit."""
    done = subprocess.run(
        ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--exclude", "*"],
        capture_output=True,
        text=True,
        check=False,
    )
    return f"{__version__} ({done.stdout.strip() or 'no commit'})"


def machine() -> str:
    """The machine of the run."""
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return (
        f"{os.cpu_count()} cores, {memory_bytes / 2**30:.0f} GiB, Linux {platform.release()},"
        f" Python {platform.python_version()}"
    )


def show(row: Row) -> None:
    """Print how a part ended."""
    print(f"{row.part}: {row.did}: {row.result}", flush=True)
    for finding in row.findings:
        print(f"{row.part}: FINDING: {finding}", flush=True)


def write(rows: list[Row], page: Path = PAGE) -> None:
    """Replace the row of each part."""
    now = datetime.datetime.now(datetime.UTC)
    text = page.read_text()
    for row in rows:
        result = row.result if row.good else f"**{len(row.findings)} findings**; {row.result}"
        cells = [row.part, row.did, result, f"`{row.command}`"]
        cells.append(f"{now:%Y-%m-%d}, {version()}; {machine()}")
        text = put(text, row.part, "| " + " | ".join(cells) + " |")
    page.write_text(text)


def put(text: str, part: str, line: str) -> str:
    """The table between its marks with this line for the part; the order of parts stays."""
    begin, end = "<!-- campaign -->", "<!-- end of campaign -->"
    before, _, rest = text.partition(begin)
    table, _, after = rest.partition(end)
    lines = [old for old in table.strip().splitlines() if old.strip()]
    if not lines:
        lines = ["| " + " | ".join(HEAD) + " |", "|" + "---|" * len(HEAD)]
    names = [old.split("|")[1].strip() for old in lines]
    if part in names:
        lines[names.index(part)] = line
    else:
        lines.append(line)
    return before + begin + "\n" + "\n".join(lines) + "\n" + end + after
