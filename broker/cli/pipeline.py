"""`twinwire pipeline NAME`: the Spark jobs, on this machine or on a cluster.

It is separate because each command is a module; the jobs are in `broker.spark.jobs`.
"""

from __future__ import annotations

from typing import ClassVar

import click

from broker.cli.commands import Commands

_JOBS = "broker.spark.jobs"


class Pipelines(Commands):
    """The jobs by name; only the called one is imported."""

    groups: ClassVar[dict[str, tuple[str, ...]]] = {}
    known: ClassVar[dict[str, tuple[str, str]]] = {
        "archive": (f"{_JOBS}.archive:command", "Write topics to Parquet files, each record once."),
        "compact": (
            f"{_JOBS}.compact:command",
            "Merge the hour files of an archive into day files.",
        ),
        "replay": (f"{_JOBS}.replay:command", "Publish records of an archive again, each once."),
        "windows": (f"{_JOBS}.windows:command", "An example: count records by subject and window."),
        "rollup": (
            f"{_JOBS}.rollup:command",
            "Count records and deliveries by window; write a report.",
        ),
        "triage": (f"{_JOBS}.triage:command", "Group dead letters; send groups back."),
    }


@click.command("pipeline", cls=Pipelines)
def pipeline() -> None:
    """Run a Spark job. spark-submit can run the same modules: broker/spark/jobs/NAME.py.

    Needs `pip install 'twinwire[spark]'` and Java 17 or later.
    """
