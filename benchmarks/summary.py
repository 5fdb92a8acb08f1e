"""benchmarks/RESULTS.md: one page with every goal of the tables in results/.

    python benchmarks/summary.py        write it again

Every script that measures writes its own page and then calls this.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
PAGES = HERE / "results"
SUMMARY = HERE / "RESULTS.md"
MISSED = "MISSED"

# The column that a goal is about: the first of these that a table has.
RESULT = (
    "ratio",
    "reached",
    "CPU / import asyncio, ssl",
    "p99 us",
    "as fast as without",
    "longest, reloading (ms)",
    "peak MB",
    "x idle",
    "median",
    "M rows/s",
    "k rows/s",
)
BESIDE = ("metric", "server")  # columns that belong to the name of a row


class Group(NamedTuple):
    """A page of results/ and how the summary introduces it."""

    page: str
    title: str
    meaning: str


MAIN = (
    Group(
        "compare",
        "NATS and NSQ against the originals",
        "The ratio of Twinwire to nats-server or nsqd on the same load: for `msgs/s` more is\n"
        "better, for `us` less. `1:4` is one publisher and four subscribers. `PUB to FIN` is\n"
        "published, delivered and finished; Twinwire has each message in its log file before it\n"
        "answers OK, nsqd keeps it in memory.",
    ),
    Group(
        "stan",
        "NATS Streaming against nats-streaming-server",
        "Both write to files and sync before each acknowledgement.",
    ),
    Group(
        "jetstream",
        "JetStream against nats-server",
        "Twinwire syncs before each PubAck; nats-server every two minutes, or in rows with\n"
        "`both synced` before each one too.",
    ),
    Group(
        "jetstream-scale",
        "JetStream at scale",
        "Many keys, consumers and messages. Twinwire syncs before each answer, nats-server every\n"
        "two minutes. Rows with a unit are Twinwire's own numbers, others ratios to nats-server.",
    ),
)
OTHERS = (
    Group("ceilings", "What a plain C server reaches", "what one thread can reach at all"),
    Group("nats-tls", "NATS over TLS", "messages and memory, ratio to nats-server"),
    Group("leaf", "Leaf nodes", "ratio to two nats-servers joined the same way"),
    Group("nsq-upgrades", "NSQ with TLS and compression", "PUB to FIN, ratio to nsqd"),
    Group("lookups", "nsqlookupd", "lookups a second"),
    Group("start", "Start", "processor time until ready, in units of `import asyncio, ssl`"),
    Group("memory", "Memory", "peak of the process in MB"),
    Group("scale", "NSQ at scale", "idle cost of many topics, fairness among consumers"),
    Group("stan-scale", "NATS Streaming at scale", "time of a start, and memory"),
    Group("growth", "Growth of cost", "whether a cost grows faster than what causes it"),
    Group("latency-under-writing", "Latency during writing", "ratio to the idle server"),
    Group("tail", "A consumer far behind", "its rate; latency of others, ratio to idle"),
    Group("archive", "Archive by Spark", "ratio to one process of PyArrow; live latency"),
    Group("spark-source-and-sink", "Spark source and sink", "thousands of rows a second"),
    Group("bulk-api", "Bulk API", "one client, from the page cache"),
    Group("bulk-decode", "Bulk decoding", "millions of rows a second on one core"),
    Group("delivery-events", "Delivery events", "their cost for the broker, per message"),
    Group("nats-guarded", "Permissions", "ratio to Twinwire without accounts and permissions"),
    Group("nats-reload", "Reload", "the longest pause for 10,000 clients, in ms"),
    Group("nats-scaling", "NATS clients' cost", "growth of cost for loads of n and 2n"),
    Group("console", "Console", "server time and load"),
    Group("console-hour", "Console, left open", "memory in the browser"),
)

HEAD = """\
# Results

How fast Twinwire is beside nats-server, nsqd and nats-streaming-server, and what it costs. This
page has each row with a goal. [results/](results/) has the complete tables with dates, machines,
versions and commands. [README.md](README.md) says how they are measured, and
[bounds.md](bounds.md) what bounds the rows that miss their goals.

- A ratio is Twinwire/original. Both are measured in turn, on one machine in one run, each time in
  a new process.
- Loads are varied unless a row says uniform: thousands of subjects and sizes in an order that
  looks random. Uniform traffic repeats one message; servers gain from that, and real traffic has
  little of it.
- `MISSED`: the goal is not reached. Goals are our own and often far beyond the original: a ratio
  of 1.4 with a goal of 3 is missed, and still faster than the original.
- Tables of different dates may be of different machines: compare ratios, not absolute numbers.
"""


class Row(NamedTuple):
    """A line of a table that has a goal."""

    name: str
    result: str
    spread: str
    goal: str
    verdict: str


@dataclass(frozen=True)
class Page:
    """What the summary needs of a page."""

    date: str
    machine: str
    rows: list[Row]


def cells(line: str) -> list[str]:
    """The cells of a line of a Markdown table."""
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def tables(text: str) -> list[list[list[str]]]:
    """The Markdown tables of a text: head, then lines."""
    found: list[list[list[str]]] = []
    lines = text.splitlines()
    for number, line in enumerate(lines):
        if not line.startswith("|"):
            continue
        if number == 0 or not lines[number - 1].startswith("|"):
            found.append([])
        if not re.fullmatch(r"[|\-: ]+", line):
            found[-1].append(cells(line))
    return found


def rows_of(table: list[list[str]]) -> list[Row]:
    """The rows that have a goal."""
    head, *lines = table
    if "goal" not in head:
        return []
    goal = head.index("goal")
    results = [head.index(name) for name in RESULT if name in head] or [goal - 1]
    spread = head.index("spread") if "spread" in head else -1
    beside = [head.index(name) for name in BESIDE if name in head]
    rows = []
    for line in lines:
        verdict = line[goal + 1]
        if not verdict:
            continue
        name = ", ".join([line[0], *(line[at] for at in beside)])
        result = next((line[at] for at in results if line[at]), "")
        rows.append(Row(name, result, line[spread] if spread >= 0 else "", line[goal], verdict))
    return rows


def read(page: Path) -> Page:
    """The rows of a page, its date and its machine."""
    text = page.read_text()
    date = re.search(r"^- date: ([-\d]+)", text, re.MULTILINE)
    machine = re.search(r"^- machine: (.*)$", text, re.MULTILINE)
    rows = [row for table in tables(text) for row in rows_of(table)]
    return Page(date[1] if date else "", machine[1] if machine else "", rows)


def markdown(head: list[str], lines: list[list[str]]) -> str:
    """A Markdown table."""
    rule = "|".join("---" for _ in head)
    drawn = [f"| {' | '.join(head)} |", f"|{rule}|"]
    return "\n".join([*drawn, *(f"| {' | '.join(line)} |" for line in lines)])


def group_text(group: Group, page: Page) -> str:
    """The heading, the meaning and the table of a group."""
    origin = f"Measured on [{page.date}](results/{group.page}.md): {page.machine}."
    lines = [[row.name, row.result, row.spread, row.goal, _mark(row.verdict)] for row in page.rows]
    table = markdown(["row", "result", "spread", "goal", ""], lines)
    return "\n\n".join([f"## {group.title}", group.meaning, origin, table])


def others_text(pages: list[tuple[Group, Page]]) -> str:
    """One table of all other groups; a group without goals has one line."""
    lines = []
    for group, page in pages:
        link = f"[{group.title}](results/{group.page}.md)"
        lines.append([link, f"{group.meaning} ({page.date})", "", "", ""])
        lines += [["", row.name, row.result, row.goal, _mark(row.verdict)] for row in page.rows]
    return "## Everything else\n\n" + markdown(["table", "row", "result", "goal", ""], lines)


def _mark(verdict: str) -> str:
    return f"**{verdict}**" if verdict == MISSED else verdict


def losses(pages: list[tuple[Group, Page]]) -> str:
    """How many goals are met, and the rows that miss theirs."""
    every = [(group, row) for group, page in pages for row in page.rows]
    missed = [(group, row) for group, row in every if row.verdict == MISSED]
    title = "## Where a goal is missed"
    count = f"{len(every) - len(missed)} of {len(every)} goals are met."
    if not missed:
        return f"{title}\n\n{count}"
    reasons = "The others, and [what bounds them](bounds.md):"
    lines = [[group.title, row.name, row.result, row.goal] for group, row in missed]
    table = markdown(["table", "row", "result", "goal"], lines)
    return f"{title}\n\n{count} {reasons}\n\n{table}"


def text_of(folder: Path) -> str:
    """The whole summary of the pages in this folder."""
    unknown = {page.stem for page in folder.glob("*.md")} - {g.page for g in (*MAIN, *OTHERS)}
    if unknown:
        raise ValueError(f"summary.py does not name results/{min(unknown)}.md")
    main, others = (
        [(group, read(path)) for group in groups if (path := folder / f"{group.page}.md").exists()]
        for groups in (MAIN, OTHERS)
    )
    parts = [HEAD.strip(), losses(main + others), *(group_text(*each) for each in main)]
    return "\n\n".join([*parts, others_text(others)]) + "\n"


def write() -> None:
    """Write RESULTS.md again."""
    SUMMARY.write_text(text_of(PAGES))


if __name__ == "__main__":
    write()
