"""Cost of accounts and permissions: the NATS rows on a server with them and on one without.

    python benchmarks/nats_guarded.py [--rounds 3] [--seconds 1] [--write]

The generator sends no credentials and becomes a user of an account (no_auth_user). The user's
permissions have an allow and a deny list in each direction, and every subject is checked.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

import report
from compare import UNIFORM, sample

PLAIN = "{python} -m broker nats-server -a 127.0.0.1 -p {nats}"
GOAL = 0.85
METHOD = (
    "{} rounds, alternating, {:g} s each, ours against ours; the ratio of a latency is inverted:"
    " 1 is as fast, below 1 is slower."
)
CONFIG = """
no_auth_user: bench
accounts {
  BENCH: {
    users: [ {
      user: bench, password: bench
      permissions: {
        publish: {allow: ["bench.>", "bench", "_INBOX.>", ">"], deny: ["secret.>", "bench.*.no"]}
        subscribe: {allow: ["bench.>", "bench", "_INBOX.>", ">"], deny: ["secret.>", "*.*.no"]}
      }
    } ]
  }
  OTHER: { users: [ {user: other, password: other} ] }
}
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--write", action="store_true", help="write the page in results/")
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory(prefix="twinwire-bench-") as folder:
        config = Path(folder) / "guarded.conf"
        config.write_text(CONFIG)
        guarded = f"{PLAIN} -c {config}"
        for row in (row for row in UNIFORM if row.protocol == "nats"):
            ratios: dict[str, list[float]] = {}
            for turn in range(options.rounds):
                pair = [guarded, PLAIN] if turn % 2 == 0 else [PLAIN, guarded]
                found = {c: sample(row, c, options.seconds, None).values for c in pair}
                for metric, goal in row.goals.items():
                    ratio = found[guarded][metric] / found[PLAIN][metric]
                    ratios.setdefault(metric, []).append(ratio if goal.least else 1 / ratio)
                print(f"{row.name}: round {turn + 1}", file=sys.stderr)
            for metric, values in ratios.items():
                middle = statistics.median(values)
                spread = f"{min(values):.2f}-{max(values):.2f}"
                met = "met" if middle >= GOAL else "MISSED"
                rows.append([row.name, metric, f"{middle:.2f}", spread, f">= {GOAL}", met])
    head = ["row", "metric", "as fast as without", "spread", "goal", ""]
    whole = "\n\n".join(
        [
            "## NATS with accounts and permissions",
            report.about(),
            METHOD.format(options.rounds, options.seconds),
            report.table(head, rows),
        ]
    )
    print(whole)
    if options.write:
        report.write_section("nats_guarded", whole)
    return 0


if __name__ == "__main__":
    sys.exit(main())
