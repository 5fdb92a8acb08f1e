"""A job of the pipeline that is killed at a chosen place, its Java process with it.

    python crashing_job.py '{"job": "archive", "at": "manifest", "servers": ..., "folder": ...,
                             "topic": ...}'

Without a place it runs to its end, or until its process group is killed.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from broker.client.bulk.connection import Connection
from broker.spark.archive.manifest import Manifest
from broker.spark.archive.replay import ReplaySelection
from broker.spark.jobs.command import Job
from broker.spark.jobs.compact import Compacter, CompactOptions
from broker.spark.jobs.replay import ReplayOptions, build
from support.archives import archiver
from support.live.spark import make_session

BATCH, TASK, EPOCH = 400, 100, 40


def _any(*_: Any) -> bool:
    return True


# place -> whose method, after how many calls that count, after or before that one, which count
PLACES: dict[str, tuple[Any, str, int, bool, Callable[..., bool]]] = {
    "saved": (Manifest, "save", 0, True, _any),  # the batch is known, nothing of it is done
    "manifest": (Manifest, "commit", 1, False, _any),  # its files are there and do not count
    "end": (Manifest, "remove_saved", 1, False, _any),  # they count, and the plan is still there
    "swap": (Manifest, "commit", 0, False, _any),  # new files are there and do not count
    "remove": (Compacter, "_remove", 0, False, lambda _, paths: bool(list(paths))),
    "commit": (Connection, "commit", 1, False, _any),  # an epoch is staged
    "committed": (Connection, "commit", 1, True, _any),  # it is published, and not saved
}


def watch(place: str) -> None:
    """Kill this process group at the place."""
    owner, name, left, after, counts = PLACES[place]
    real = getattr(owner, name)

    def call(*arguments: Any, **named: Any) -> Any:
        nonlocal left
        mine = counts(*arguments)
        if mine and left == 0 and not after:
            os.killpg(0, signal.SIGKILL)
        found = real(*arguments, **named)
        if mine and left == 0:
            os.killpg(0, signal.SIGKILL)
        left -= mine
        return found

    setattr(owner, name, call)


def main(plan: dict[str, str]) -> None:
    folder, topic = Path(plan["folder"]), plan["topic"]
    if plan.get("at"):
        watch(plan["at"])
    with make_session(folder.parent) as spark:
        if plan["job"] == "archive":
            archiver(
                spark, folder, plan["servers"], topic, batch_records=BATCH, task_records=TASK
            ).run()
        elif plan["job"] == "compact":
            # When all days there are will be over, and once more when replaced files may go.
            now, args = datetime.now(UTC) + timedelta(days=2), CompactOptions(str(folder))
            Compacter(spark, args).run(now)
            Compacter(spark, args).run(now + timedelta(seconds=args.grace_s + 1))
        else:
            selection = ReplaySelection("{topic}-again", epoch_records=EPOCH)
            replaying = ReplayOptions(str(folder), topic, selection, {"to": selection.to})
            build(spark, Job({"servers": plan["servers"]}, {}), replaying).run()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
