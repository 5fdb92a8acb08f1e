"""Run the campaign, or some parts of it.

    python tests/campaign [--parts kill,bytes] [--minutes N] [--seed N] [--write]

Each part takes at most its share of the minutes. The exit code is 1 if there is a finding; the
evidence is printed, and kept below build/campaign.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from campaign import calls, connections, damage, fuzzing, kill, report, slow_disk, soak  # noqa: E402

KEPT = ROOT / "build" / "campaign"
MINUTES = 510.0
Part = Callable[[argparse.Namespace, float], report.Row]


def _kill(options: argparse.Namespace, minutes: float) -> report.Row:
    return kill.run(
        options.seed,
        minutes,
        options.out,
        era=options.era,
        slots=options.slots,
        kills=options.count,
    )


def _bytes(options: argparse.Namespace, minutes: float) -> report.Row:
    return damage.run(options.seed, minutes, options.out, case=options.case)


def _calls(options: argparse.Namespace, minutes: float) -> report.Row:
    return calls.run(options.seed, minutes, options.out, case=options.case)


def _plain(run: Callable[[int, float, Path], report.Row]) -> Part:
    return lambda options, minutes: run(options.seed, minutes, options.out)


# Each with its share of the time.
PARTS: dict[str, tuple[Part, float]] = {
    "kill": (_kill, 70),
    "bytes": (_bytes, 30),
    "calls": (_calls, 30),
    "slow": (_plain(slow_disk.run), 5),
    "connections": (_plain(connections.run), 15),
    "fuzz": (_plain(fuzzing.run), 270),
    "soak": (_plain(soak.run), 90),
}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="tests/campaign", description=__doc__)
    parser.add_argument("--parts", default="", help=f"some of {','.join(PARTS)}; all by default")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="for all parts together")
    parser.add_argument("--seed", type=int, default=int(time.time()) % 1_000_000)
    parser.add_argument(
        "--write", action="store_true", help="put the rows into docs/operate/reliability.md"
    )
    parser.add_argument("--out", type=Path, default=KEPT, help="where findings are kept")
    parser.add_argument("--era", type=int, help="kill: this era alone")
    parser.add_argument("--case", default="", help="bytes: this case alone, as a finding names it")
    parser.add_argument("--slots", type=int, default=kill.SLOTS, help="kill: brokers at a time")
    parser.add_argument("--count", type=int, default=0, help="kill: end after so many kills")
    options = parser.parse_args(argv)
    logging.getLogger("asyncio").setLevel(logging.ERROR)  # clients write to brokers that are gone
    names = options.parts.split(",") if options.parts else list(PARTS)
    if wrong := set(names) - set(PARTS):
        parser.error(f"no such part: {', '.join(sorted(wrong))}")
    options.out.mkdir(parents=True, exist_ok=True)
    shares = sum(PARTS[name][1] for name in names)
    rows = []
    for name in names:
        part, share = PARTS[name]
        print(f"{name}: seed {options.seed}", flush=True)
        row = part(options, options.minutes * share / shares)
        report.show(row)
        rows.append(row)
        if options.write:
            report.write([row])
    return 0 if all(row.good for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
