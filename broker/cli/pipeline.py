"""`twinwire pipeline NAME`: the Spark jobs, on this machine or on a cluster.

It stands alone as every command does; the jobs are in `broker.spark.jobs`.
"""

from __future__ import annotations

from typing import ClassVar

import click

from broker.cli import Commands

_JOBS = "broker.spark.jobs"


class Pipelines(Commands):
    """The jobs by name; only the one that is asked for is read."""

    known: ClassVar[dict[str, tuple[str, str]]] = {
        "archive": (f"{_JOBS}.archive:command", "Topics to Parquet files, each record once."),
        "compact": (f"{_JOBS}.compact:command", "Hour files of an archive to day files."),
        "replay": (f"{_JOBS}.replay:command", "Records of an archive to a topic, each once."),
        "windows": (f"{_JOBS}.windows:command", "An example: counts by subject and window."),
        "rollup": (f"{_JOBS}.rollup:command", "Counts by topic and window, with a report."),
        "triage": (f"{_JOBS}.triage:command", "Dead letters in groups, and their way back."),
    }


@click.command("pipeline", cls=Pipelines)
def pipeline() -> None:
    """Run a Spark job. spark-submit runs the same modules: broker/spark/jobs/NAME.py.

    Needs `pip install 'twinwire[spark]'` and Java 17 or later.
    """
