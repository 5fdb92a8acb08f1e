"""Code that all jobs share: options, the Spark session, signals, progress, errors as one line.

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
import signal
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn, TypeVar

import click

import broker
from broker.client.bulk.errors import BulkError
from broker.spark import options as query_options
from broker.spark.errors import DOWN, BrokerDownError, DataLossError, OptionError
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
from broker.spark.jobs.tasks import error_line, is_of_spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

ENDS: Final = "{job}: stopping after this batch; repeat the signal to stop now\n"
ENDS_SOON: Final = "{job}: stopping once Spark has started; repeat the signal to stop now\n"
_NUMBERS: Final = (signal.SIGTERM, signal.SIGINT)


Reporter = Callable[[str], None]
_SIZES: Final = ("B", "KiB", "MiB", "GiB", "TiB")
SHIPPED: Final = "twinwire-code"
_SHIPPED_PATHS: Final = (
    "__init__.py", "_compiled.py", "base/*.py", "client/*.py",
    "client/*.so", "client/bulk/**/*.py", "spark/**/*.py",
)  # fmt: skip
SPARK_ERRORS: Final = (BrokerDownError, DataLossError, OptionError)
F = TypeVar("F", bound=Callable[..., Any])
_UNITS_S: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_SERVERS: Final = (
    click.option("--servers", required=True, help="Bulk APIs of the brokers: HOST:PORT,..."),
    click.option("--token-file", help="File with the token for the bulk API."),
    click.option("--tls-ca", help="File with the CA certificates to trust."),
    click.option(
        "--tls-cert", help="File with the client certificate, if the brokers require one."
    ),
    click.option("--tls-key", help="File with its key."),
    click.option(
        "--compress",
        type=click.Choice(["none", "zstd", "gzip"]),
        help="Compress the transfer from brokers to executors.",
    ),
)
_MAYBE_SERVERS: Final = (
    click.option("--servers", help="Bulk APIs of the brokers: HOST:PORT,..."),
    *_SERVERS[1:],
)
_TOPICS: Final = (
    click.option("--topics", help="Names of topics, separated by commas."),
    click.option("--pattern", help="Regular expression for topics; new topics are included."),
)
_WHICH: Final = ("topics", "pattern")
_SPARK: Final = (
    click.option("--master", help="Spark's master.  [default: local[*], or that of spark-submit]"),
    click.option(
        "--conf", multiple=True, metavar="KEY=VALUE", help="Setting of Spark; may be repeated."
    ),
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
# Defaults of each session; --conf overrides them.
_DEFAULTS: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
}
_LOCAL: Final = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
# For a JVM that only schedules tasks: the optimising compiler would take more time than it saves.
_LIGHT: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_JAVA: Final = "spark.driver.extraJavaOptions"
_LOG_PROPERTIES: Final = "log4j2.properties"
# Errors only, from the first line on. `spark.log.level` takes effect too late for the lines of the
# start, and setting it is logged. Spark logs a level of its shell that differs from the root's.
_LOG4J: Final = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = console
logger.repl.name = org.apache.spark.api.python.PythonGatewayServer
logger.repl.level = error
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex
"""


def ends_with_signals(stop: threading.Event, job: str) -> None:
    """Set `stop` at the first SIGINT or SIGTERM, so that the job ends after its batch; the second
    one ends it at once. PySpark's own handler for SIGINT would cancel running tasks."""

    def handler(_number: int, _frame: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()
        # print() is not used, because the signal may have interrupted it.
        os.write(2, ENDS.format(job=job).encode())

    for number in _NUMBERS:
        signal.signal(number, handler)


@contextlib.contextmanager
def until_started(job: str) -> Iterator[None]:
    """Delay signals until Spark has started, because an orphaned Java process would never end."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    arrived = threading.Event()

    def handler(_number: int, _frame: FrameType | None) -> None:
        if arrived.is_set():
            raise KeyboardInterrupt
        arrived.set()
        os.write(2, ENDS_SOON.format(job=job).encode())

    before = {number: signal.signal(number, handler) for number in _NUMBERS}
    try:
        yield
    finally:
        for number, had in before.items():
            if signal.getsignal(number) is handler:  # PySpark sets one of its own
                signal.signal(number, had)
        if arrived.is_set():  # also replaces Spark's own error if the signal reached Java too
            raise KeyboardInterrupt


def print_line(text: str) -> None:
    print(f"{datetime.now(UTC):%H:%M:%S} {text}", file=sys.stderr, flush=True)


def size(n: float) -> str:
    """Bytes with a unit."""
    for unit in _SIZES[:-1]:
        if n < 1024:
            return f"{n:.0f} {unit}" if unit == "B" else f"{n:.1f} {unit}"
        n /= 1024
    return f"{n:.1f} {_SIZES[-1]}"


class Done(NamedTuple):
    """The result of a batch; `lag` is the number of records not read yet."""

    records: int
    bytes: int
    seconds: float
    lag: int

    def line(self, job: str, number: int) -> str:
        rate = self.records / max(self.seconds, 1e-3)
        return (
            f"{job}: batch {number}: {self.records:,} records, {size(self.bytes)}, "
            f"{self.seconds:.1f} s ({rate:,.0f}/s), lag {self.lag:,}"
        )


def _shipped_files() -> Iterator[tuple[Path, str]]:
    """(file, name in the archive)."""
    package = Path(broker.__file__).parent
    for pattern in _SHIPPED_PATHS:
        for path in sorted(package.glob(pattern)):
            yield path, str(Path("broker") / path.relative_to(package))
    source = package.parent / "pyspark_twinwire"
    for path in sorted(source.glob("*.py")):
        yield path, str(Path(source.name) / path.name)


def pack_code(folder: Path) -> Path:
    """Write the archive into a folder; return its path."""
    path = folder / f"{SHIPPED}.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file, name in _shipped_files():
            archive.write(file, name)
    return path


def shipped_settings(path: Path) -> dict[str, str]:
    """Settings of Spark that send the archive to executors and put it on their path."""
    return {"spark.archives": f"{path}#{SHIPPED}", "spark.executorEnv.PYTHONPATH": SHIPPED}


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
        """A copy with a setting of Spark, which --conf may override."""
        return replace(self, conf=((key, value), *self.conf))

    def trigger(self, writer: DataStreamWriter) -> DataStreamWriter:
        if self.every_s is None:
            return writer.trigger(availableNow=True)
        return writer.trigger(processingTime=f"{self.every_s * 1000:.0f} milliseconds")

    def repeat(self, stop: threading.Event, work: Callable[[], Sequence[str]]) -> None:
        """Call `work` once, or every `every_s` seconds until `stop` is set.

        It returns the brokers that it did not reach. BrokerDownError for these if it runs only
        once; a later call may reach them.
        """
        while True:
            began = time.monotonic()
            down = work()
            if self.every_s is None:
                if down:
                    raise BrokerDownError(DOWN.format(servers="; ".join(down)))
                return
            rest = self.every_s - (time.monotonic() - began)
            if stop.wait(max(rest, 0.0)):
                return

    def check(self) -> None:
        """Check the options before Spark starts, which takes seconds. OptionError."""
        if self.servers:
            _ = self.access
        if self.topics:
            _ = self.wanted

    @property
    def access(self) -> query_options.Access:
        known = (*query_options.SHARED, "fetchBytes", "fetchCompression")
        return query_options.access(query_options.ParsedOptions(self.servers, known))

    @property
    def wanted(self) -> query_options.Wanted:
        return query_options.wanted(
            query_options.ParsedOptions(self.topics, query_options.SUBSCRIPTIONS)
        )


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
    """A time in UTC, or an age."""

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


_TIMES: Final = (
    click.option("--once", is_flag=True, help="Process the records that exist now; the default."),
    click.option("--every", type=Duration(), help="Repeat at this interval: 60s, 15m, 6h."),
)
_CHECKPOINT: Final = click.option(
    "--checkpoint", metavar="DIR", help="Folder for the query's offsets."
)


def job_options(
    *,
    servers: bool | None = True,
    topics: bool = False,
    times: bool = False,
    checkpoint: bool = False,
) -> Callable[[F], F]:
    """Add the common options to a command, which gets them as `job`. `servers`: None = optional.
    `checkpoint`: the command may be a query of Spark, which stores its offsets."""

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
                raise click.ClickException(error_line(str(error))) from error

        chosen = (
            *({True: _SERVERS, False: (), None: _MAYBE_SERVERS}[servers]),
            *(_TOPICS if topics else ()),
            *(_TIMES if times else ()),
            *((_CHECKPOINT,) if checkpoint else ()),
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
    """Split KEY=VALUE. click.UsageError."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise click.UsageError(BAD_PAIR.format(option=option, text=text))
    return key, value


def run(command: click.Command, argv: Sequence[str]) -> NoReturn:
    """Run a command as the main program, under spark-submit."""
    command.main(args=list(argv), prog_name=command.name)


def needs(module: str) -> None:
    """JobError if a module of the extra `spark` is not installed."""
    if importlib.util.find_spec(module) is None:
        raise JobError(NO_EXTRA.format(module=module))


@contextlib.contextmanager
def session(job: Job, name: str, *, light: bool = False) -> Iterator[SparkSession]:
    """A Spark session, on this machine unless a master is configured. It is stopped at the end if
    this function created it.

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
    # By default workers run the python3 of PATH, which may lack PyArrow.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    logging.getLogger().addFilter(_is_no_echo)
    builder = SparkSession.builder.appName(f"twinwire-{name}")
    with tempfile.TemporaryDirectory(prefix="twinwire-") as folder:
        query_options = settings(job, submitted=submitted, light=light)
        if not submitted:
            query_options[_JAVA] = java_options(query_options.get(_JAVA, ""), Path(folder))
        if job.ship_code:
            query_options |= shipped_settings(pack_code(Path(folder)))
        for key, value in query_options.items():
            builder = builder.config(key, value)
        try:
            with until_started(name):
                spark = builder.getOrCreate()
        except Exception as error:
            if not isinstance(error, PySparkException) and not _is_java_gone(error):
                raise
            raise JobError(NO_SPARK.format(text=error_line(str(error)))) from error
        try:
            yield spark
        except Exception as error:
            if not _is_java_gone(error):
                raise
            raise JobError(SPARK_GONE) from error
        finally:
            with contextlib.suppress(Exception):  # it may have ended already
                spark.stop()


def _is_no_echo(record: logging.LogRecord) -> bool:
    """Drop errors that Py4J both raises and logs with a stack trace on the root logger."""
    return "while sending command" not in str(record.msg)


def _is_java_gone(error: Exception) -> bool:
    """Whether Java has ended. A signal to all processes, as systemd sends it, ends Java at once."""
    return type(error) is ConnectionRefusedError or (
        type(error).__module__.startswith("py4j") and "Network" in type(error).__name__
    )


def settings(job: Job, *, submitted: bool, light: bool = False) -> dict[str, str]:
    """Spark's configuration."""
    found = dict(_DEFAULTS)
    if submitted:
        found["spark.log.level"] = "ERROR"  # its Java runs already
    if job.master is not None or not submitted:
        found["spark.master"] = job.master or "local[*]"
        if found["spark.master"].startswith("local"):
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
            found |= {**_LOCAL, _JAVA: _LIGHT} if light else _LOCAL
    return found | dict(job.conf)


def java_options(chosen: str, folder: Path) -> str:
    """The options of the driver's Java with a log of errors only, unless they choose another one.
    Its configuration is written into that folder."""
    if "log4j" in chosen:
        return chosen
    path = folder / _LOG_PROPERTIES
    path.write_text(_LOG4J)
    return f"{chosen} -Dlog4j2.configurationFile={path.as_uri()}".strip()


def read_stream(
    spark: SparkSession, job: Job, schema: str, options: Mapping[str, str]
) -> DataFrame:
    """The job's topics as a stream, from the earliest record on."""
    from pyspark_twinwire import DefaultSource

    spark.dataSource.register(DefaultSource)
    reader = spark.readStream.format("twinwire").schema(schema).options(**job.servers)
    return reader.options(**{"startingOffsets": "earliest", **job.topics, **options}).load()


def await_query(query: StreamingQuery, name: str) -> None:
    """Report each batch until the query ends or a signal arrives. JobError."""
    from pyspark.errors import StreamingQueryException

    stop = threading.Event()
    ends_with_signals(stop, name)
    last = -1  # the batch that was reported last
    try:
        ended = False
        while not ended:
            ended = bool(query.awaitTermination(PROGRESS_S))
            for batch in query.recentProgress:
                if batch.batchId > last:
                    last = batch.batchId
                    seconds = batch.durationMs.get("triggerExecution", 0) / 1000
                    print_line(
                        f"{name}: batch {last}: {batch.numInputRows:,} records, {seconds:.1f} s"
                    )
            if stop.is_set() and not ended:
                query.stop()  # not by the handler: it may run in the middle of a call to Java
    except StreamingQueryException as error:
        raise JobError(QUERY_FAILED.format(text=error_line(str(error)))) from error
