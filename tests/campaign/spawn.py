"""Start brokers quickly: import everything once, then fork a process for each.

    python tests/campaign/spawn.py

Reads commands from standard input, one JSON object per line, and answers each with one:

    {"run": ["serve", ...], "log": FILE}    {"pid": N}
    {"wait": N}                             {"status": N} of a child that has ended, or null

A child is a process of its own with its own copy of everything; what is saved is the second that
Python takes to import the broker. It ends with the parent.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import signal
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT)]

import broker.bulk.service  # noqa: E402
import broker.cli.serve  # noqa: E402
import broker.protocols.nsq.lookup.service  # noqa: E402
import broker.protocols.nsq.service  # noqa: E402
import broker.protocols.stan.service  # noqa: E402
import broker.server.server  # noqa: E402, F401
from broker.cli.commands import main as command_line  # noqa: E402

PR_SET_PDEATHSIG = 1
CRASHED = 99


def run(arguments: list[str], log: str) -> None:
    """Be a broker; never returns."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    nothing = os.open(os.devnull, os.O_RDONLY)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for number, descriptor in ((0, nothing), (1, output), (2, output)):
        os.dup2(descriptor, number)
    os.close(nothing)
    os.close(output)
    code = CRASHED
    try:
        command_line(args=arguments, prog_name="twinwire")
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else CRASHED
    except BaseException:
        sys.excepthook(*sys.exc_info())
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def ended(pid: int) -> int | None:
    """The exit status of a child, in the words of subprocess; None while it runs."""
    found, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if found else None


def main() -> None:
    orders = sys.stdin.buffer
    answers = os.dup(1)
    os.set_inheritable(answers, False)
    gc.collect()
    gc.freeze()
    while line := orders.readline():
        order = json.loads(line)
        if "run" in order:
            pid = os.fork()
            if pid == 0:
                os.close(answers)
                run(order["run"], order["log"])
            answer = {"pid": pid}
        else:
            answer = {"status": ended(order["wait"])}
        os.write(answers, json.dumps(answer).encode() + b"\n")


if __name__ == "__main__":
    main()
