"""What all jobs have in common: options, the Spark session, errors in one line.

@click.command("archive")
@job_options(topics=True)
def command(job: Job, ...) -> None:
    with session(job, "archive") as spark:
        build(spark, ...)

def main(argv): run(command, argv)
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import logging
import os
import re
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

import click

from broker.client.bulk.errors import BulkError
from broker.spark import options as given
from broker.spark.errors import BrokerDownError, DataLossError, OptionError
from broker.spark.jobs import shipping
from broker.spark.jobs.errors import (
    BAD_DURATION,
    BAD_PAIR,
    BAD_TIME,
    NO_EXTRA,
    NO_JAVA,
    NO_SPARK,
    QUERY_FAILED,
    SPARK_GONE,
    WHICH_TOPICS,
    JobError,
)
from broker.spark.jobs.limits import PROGRESS_S
from broker.spark.jobs.progress import tell
from broker.spark.jobs.signals import ends_with_signals, until_started
from broker.spark.jobs.tasks import is_of_spark, telling_line

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

SPARK_ERRORS: Final = (BrokerDownError, DataLossError, OptionError)
F = TypeVar("F", bound=Callable[..., Any])
_UNITS_S: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


@dataclass(frozen=True, slots=True)
class Job:
    """The options that every job has."""

    servers: Mapping[str, str]  # as options of the Spark source
    topics: Mapping[str, str]
    master: str | None = None
    conf: tuple[tuple[str, str], ...] = ()
    checkpoint: str | None = None
    every_s: float | None = None  # None: once
    ship_code: bool = False

    def with_conf(self, key: str, value: str) -> Job:
        """With a setting of Spark that --conf may overrule."""
        return replace(self, conf=((key, value), *self.conf))

    def trigger(self, writer: DataStreamWriter) -> DataStreamWriter:
        if self.every_s is None:
            return writer.trigger(availableNow=True)
        return writer.trigger(processingTime=f"{self.every_s * 1000:.0f} milliseconds")

    def check(self) -> None:
        """What can be seen to be wrong before Spark starts, which takes seconds."""
        if self.servers:
            _ = self.access
        if self.topics:
            _ = self.wanted

    @property
    def access(self) -> given.Access:
        known = (*given.SHARED, "fetchBytes", "fetchCompression")
        return given.access(given.Words(self.servers, known))

    @property
    def wanted(self) -> given.Wanted:
        return given.wanted(given.Words(self.topics, given.SUBSCRIPTIONS))


class Duration(click.ParamType[float]):
    """Seconds, as 90s, 15m, 6h or 2d."""

    name = "duration"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        if isinstance(value, int | float):
            return float(value)
        match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", value)
        if match is None:
            self.fail(BAD_DURATION.format(text=value), param, ctx)
        return float(match[1]) * _UNITS_S[match[2]]


class Time(click.ParamType[datetime]):
    """A time in UTC, or so long ago."""

    name = "time"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> datetime:
        if isinstance(value, datetime):
            return value
        match = re.fullmatch(r"(\d+)([smhd])", value)
        if match is not None:
            return datetime.now(UTC) - timedelta(seconds=int(match[1]) * _UNITS_S[match[2]])
        try:
            at = datetime.fromisoformat(value)
        except ValueError:
            self.fail(BAD_TIME.format(text=value), param, ctx)
        return at if at.tzinfo else at.replace(tzinfo=UTC)


_SERVERS: Final = (
    click.option("--servers", required=True, help="Bulk doors, HOST:PORT with commas between."),
    click.option("--token-file", help="Holds the token for the doors."),
    click.option("--tls-ca", help="Certificates that sign those of the doors."),
    click.option("--tls-cert", help="Our own certificate, if the doors ask for one."),
    click.option("--tls-key", help="Its key."),
    click.option("--compress", type=click.Choice(["none", "zstd", "gzip"]), help="On the way."),
)
_MAYBE_SERVERS: Final = (
    click.option("--servers", help="Bulk doors, HOST:PORT with commas between."),
    *_SERVERS[1:],
)
_TOPICS: Final = (
    click.option("--topics", help="Names with commas between."),
    click.option("--pattern", help="A regular expression; topics that appear later are taken too."),
)
_WHICH: Final = ("topics", "pattern")
_TIMES: Final = (
    click.option("--once", is_flag=True, help="Up to what there is now; the default."),
    click.option("--every", type=Duration(), help="Again and again, so often: 60s, 15m, 6h."),
    click.option("--checkpoint", metavar="DIR", help="Where Spark keeps its place."),
)
_SPARK: Final = (
    click.option("--master", help="Spark's master.  [default: local[*], or that of spark-submit]"),
    click.option("--conf", multiple=True, metavar="KEY=VALUE", help="Of Spark; may be repeated."),
    click.option(
        "--ship-code", is_flag=True, help="Send this package to executors that do not have it."
    ),
)
_NAMES: Final = {
    "servers": "servers",
    "token_file": "tokenFile",
    "tls_ca": "tls.ca",
    "tls_cert": "tls.cert",
    "tls_key": "tls.key",
    "compress": "fetchCompression",
}


def job_options(
    *, servers: bool | None = True, topics: bool = False, times: bool = False
) -> Callable[[F], F]:
    """Adds the common options to a command, which gets them as `job`. `servers`: None = may be."""

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def command(**options: Any) -> Any:
            job = _take(options, topics)
            try:
                job.check()
                return function(job=job, **options)
            except BrokenPipeError:
                raise
            except (JobError, BulkError, OSError, *SPARK_ERRORS) as error:
                raise click.ClickException(str(error)) from error
            except Exception as error:
                if not is_of_spark(error):
                    raise
                raise click.ClickException(telling_line(str(error))) from error

        chosen = (
            *({True: _SERVERS, False: (), None: _MAYBE_SERVERS}[servers]),
            *(_TOPICS if topics else ()),
            *(_TIMES if times else ()),
            *_SPARK,
        )
        for option in reversed(chosen):
            command = option(command)
        return command  # type: ignore[return-value]

    return decorate


def _take(options: dict[str, Any], topics: bool) -> Job:
    servers = {name: options.pop(option, None) for option, name in _NAMES.items()}
    names, pattern = (options.pop(name) for name in _WHICH) if topics else (None, None)
    if topics and bool(names) == bool(pattern):
        raise click.UsageError(WHICH_TOPICS)
    every, once = options.pop("every", None), options.pop("once", False)
    if once and every is not None:
        raise click.UsageError("give --once or --every, and not both")
    conf = tuple(pair_of(text, "--conf") for text in options.pop("conf"))
    subscription = {"subscribe": names, "subscribePattern": pattern}
    return Job(
        {name: value for name, value in servers.items() if value is not None},
        {name: value for name, value in subscription.items() if value},
        options.pop("master"),
        conf,
        options.pop("checkpoint", None),
        every,
        options.pop("ship_code"),
    )


def pair_of(text: str, option: str) -> tuple[str, str]:
    """KEY=VALUE."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise click.UsageError(BAD_PAIR.format(option=option, text=text))
    return key, value


def run(command: click.Command, argv: Sequence[str]) -> NoReturn:
    """As the main program, under spark-submit."""
    command.main(args=list(argv), prog_name=command.name)


def needs(module: str) -> None:
    """A clear word when the extra is not installed."""
    if importlib.util.find_spec(module) is None:
        raise JobError(NO_EXTRA.format(module=module))


# Sessions have these unless --conf says otherwise.
_DEFAULTS: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.log.level": "ERROR",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
}
_LOCAL: Final = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
# For Java that only hands out tasks: its optimising compiler would take more time than it saves.
_LIGHT: Final = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}


@contextlib.contextmanager
def session(job: Job, name: str, *, light: bool = False) -> Iterator[SparkSession]:
    """Spark, on this machine unless a master is named; what is started here ends here.

    `light`: no records go through Java.
    """
    needs("pyspark")
    needs("pyarrow")
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    running = SparkSession.getActiveSession()
    if running is not None:
        yield running
        return
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    if not submitted and "JAVA_HOME" not in os.environ and shutil.which("java") is None:
        raise JobError(NO_JAVA)
    # Workers would be whatever python3 is on PATH, which need not have PyArrow.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    logging.getLogger().addFilter(_is_no_echo)
    builder = SparkSession.builder.appName(f"twinwire-{name}")
    with tempfile.TemporaryDirectory(prefix="twinwire-") as folder:
        given = settings(job, submitted=submitted, light=light)
        if job.ship_code:
            given |= shipping.settings(shipping.pack(Path(folder)))
        for key, value in given.items():
            builder = builder.config(key, value)
        try:
            with until_started(name):
                spark = builder.getOrCreate()
        except Exception as error:
            if not isinstance(error, PySparkException) and not _is_java_gone(error):
                raise
            raise JobError(NO_SPARK.format(text=telling_line(str(error)))) from error
        try:
            yield spark
        except Exception as error:
            if not _is_java_gone(error):
                raise
            raise JobError(SPARK_GONE) from error
        finally:
            with contextlib.suppress(Exception):  # it may have ended before us
                spark.stop()


def _is_no_echo(record: logging.LogRecord) -> bool:
    """Py4J logs with a trace what it raises as well, on the root logger."""
    return "while sending command" not in str(record.msg)


def _is_java_gone(error: Exception) -> bool:
    """A signal to all processes of a job, as systemd sends it, ends Java at once."""
    return type(error) is ConnectionRefusedError or (
        type(error).__module__.startswith("py4j") and "Network" in type(error).__name__
    )


def settings(job: Job, *, submitted: bool, light: bool = False) -> dict[str, str]:
    """Spark's configuration."""
    found = dict(_DEFAULTS)
    if job.master is not None or not submitted:
        found["spark.master"] = job.master or "local[*]"
        if found["spark.master"].startswith("local"):
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
            found |= {**_LOCAL, **_LIGHT} if light else _LOCAL
    return found | dict(job.conf)


def read_stream(
    spark: SparkSession, job: Job, schema: str, options: Mapping[str, str]
) -> DataFrame:
    """The job's topics as a stream, from the earliest record on."""
    from pyspark_twinwire import DefaultSource

    spark.dataSource.register(DefaultSource)
    reader = spark.readStream.format("twinwire").schema(schema).options(**job.servers)
    return reader.options(**{"startingOffsets": "earliest", **job.topics, **options}).load()


def await_query(query: StreamingQuery, name: str) -> None:
    """Tell of each batch until the query ends, or is ended by a signal."""
    from pyspark.errors import StreamingQueryException

    stop = threading.Event()
    ends_with_signals(stop, name)
    told = -1
    try:
        ended = False
        while not ended:
            ended = bool(query.awaitTermination(PROGRESS_S))
            for batch in query.recentProgress:
                if batch.batchId > told:
                    told = batch.batchId
                    seconds = batch.durationMs.get("triggerExecution", 0) / 1000
                    tell(f"{name}: batch {told}: {batch.numInputRows:,} records, {seconds:.1f} s")
            if stop.is_set() and not ended:
                query.stop()  # not by the handler: it may run in the middle of a call to Java
    except StreamingQueryException as error:
        raise JobError(QUERY_FAILED.format(text=telling_line(str(error)))) from error
