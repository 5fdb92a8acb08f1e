"""An archive job that kills itself, for test_archive_killed.py: BULK TOPIC FOLDER PLACE."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.archives import archiver
from support.fakes.spark import FakeSpark

from broker.spark.archive import write
from broker.spark.archive.manifest import Manifest

PLACES = {
    "saved": (Manifest, "save"),
    "files": (write.ParquetFile, "finish"),
    "manifest": (Manifest, "commit"),
    "end": (Manifest, "remove_saved"),
}
LIVES = {"files": 3, "manifest": 2, "end": 1}  # calls that it survives


def main(bulk: str, topic: str, folder: str, place: str) -> None:
    owner, name = PLACES[place]
    real, left = getattr(owner, name), LIVES.get(place, 0)

    def call(*arguments: Any, **named: Any) -> Any:
        nonlocal left
        if place == "saved":
            real(*arguments, **named)
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        left -= 1
        return real(*arguments, **named)

    setattr(owner, name, call)
    spark: Any = FakeSpark()
    archiver(spark, Path(folder), bulk, topic, batch_records=400, task_records=100).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
