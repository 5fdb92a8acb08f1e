"""Cost of delivery events: PUB to FIN without them, with them, and with another build.

    python benchmarks/delivery_events.py [--rounds 5] [--before "PYTHON -m broker ..."]

The broker's CPU time per message is compared; rounds alternate, ratios are taken within a round.
`--before` is the command of another build, as in compare.py: it shows the cost when switched off.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from dataclasses import replace
from pathlib import Path

import report
import servers

from broker.bench.scenarios import NsqFlowPlan, run_nsq_flow

PLANS = {
    "PUB to FIN, 200 B": NsqFlowPlan(address=("", 0), batch=1, window=200, topic="bench"),
    "MPUB of 200 to FIN": NsqFlowPlan(address=("", 0), batch=200, window=8, topic="bench"),
}
TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def sample(plan: NsqFlowPlan, command: str, seconds: float) -> float:
    """Microseconds of the broker's CPU per message."""
    with servers.running(command, ("nsq",)) as server:
        plan = replace(plan, address=server.nsq)
        run_nsq_flow(replace(plan, seconds=0.2))
        before = cpu_seconds(server.pid)
        result = run_nsq_flow(replace(plan, seconds=seconds))
        used = cpu_seconds(server.pid) - before
    return used * 1e6 / (result.msgs_per_second * result.seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--before", default="", help="another build, without any delivery events")
    parser.add_argument("--write", action="store_true", help="write the page in results/")
    options = parser.parse_args()
    commands = {
        "off": f"env TWINWIRE_EVENTS_TOPIC= {servers.OURS}",
        "on": f"env TWINWIRE_EVENTS_TOPIC=events {servers.OURS}",
    }
    if options.before:
        commands["before"] = options.before
    table = []
    for name, plan in PLANS.items():
        found: dict[str, list[float]] = {kind: [] for kind in commands}
        for turn in range(options.rounds):
            order = list(commands) if turn % 2 else list(reversed(commands))
            for kind in order:
                found[kind].append(sample(plan, commands[kind], options.seconds))
        ratios = {
            kind: statistics.median(a / b for a, b in zip(found[kind], found["off"], strict=True))
            for kind in commands
        }
        for kind, values in found.items():
            table.append([name, kind, f"{statistics.median(values):.3f}", f"{ratios[kind]:.3f}"])
        print(table[-len(commands) :], file=sys.stderr)
    head = ["row", "events", "us CPU/message", "x off"]
    method = f"The broker's processor time, {options.rounds} rounds of {options.seconds} s, median."
    report.show("delivery events", method, head, table, write=options.write)


if __name__ == "__main__":
    main()
