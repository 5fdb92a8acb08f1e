"""`twinwire export`: writes topics to Parquet, Arrow or JSON files, through the bulk API.

Reading changes nothing at the broker: no channel, no consumer, no progress.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from broker.client.bulk import BulkError, Connection, Damaged, Gap, Options, Tls, Trimmed
from broker.client.bulk.options import parse_server

if TYPE_CHECKING:
    import pyarrow as pa

    from broker.cli.tools.export_files import LogFiles
    from broker.client.bulk.reading import Piece

NEEDS: Final = "export needs PyArrow: pip install 'twinwire[arrow]'"
DEFAULT_COLUMNS: Final = "offset,timestamp,subject,value,headers,messageId,notBefore"
FILE_RECORDS: Final = 1_000_000
_UNITS_S: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_NO_PLACE: Final = (
    "invalid position {value!r}: expected a seq, a time such as 2026-01-31T12:00Z, or an age (6h)"
)
_FILES: Final = click.Path(path_type=Path, dir_okay=False)


class _Server(click.ParamType[str]):
    name = "host:port"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            parse_server(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        return str(value)


class _SeqOrTime(click.ParamType["int | datetime"]):
    name = "seq|time"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> int | datetime:
        if isinstance(value, int | datetime):
            return value
        if re.fullmatch(r"[0-9]{1,19}", value):
            return int(value)
        if (ago := re.fullmatch(r"([0-9]{1,6})([smhd])", value)) is not None:
            return datetime.now(UTC) - timedelta(seconds=int(ago[1]) * _UNITS_S[ago[2]])
        try:
            at = datetime.fromisoformat(value)
        except ValueError:
            self.fail(_NO_PLACE.format(value=value), param, ctx)
        return at if at.tzinfo is not None else at.replace(tzinfo=UTC)


@click.command("export")
@click.argument("topics", metavar="TOPIC...", nargs=-1, required=True)
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), required=True)
@click.option(
    "--bulk-address",
    "servers",
    type=_Server(),
    multiple=True,
    default=["127.0.0.1:4171"],
    show_default=True,
    help="Bulk API of a broker. May be repeated.",
)
@click.option(
    "--from",
    "start",
    type=_SeqOrTime(),
    help="First record: a seq, a time (UTC without a zone), or an age such as 6h.",
)
@click.option(
    "--to", "end", type=_SeqOrTime(), help="End of the range, exclusive; default: the current end."
)
@click.option(
    "--format", "kind", type=click.Choice(["parquet", "arrow", "ndjson"]), default="parquet"
)
@click.option("--columns", default=DEFAULT_COLUMNS, show_default=True)
@click.option("--key-header", help="Header whose value becomes the column `key`.")
@click.option(
    "--subject-filter", help="Only matching subjects; * is one token, > at the end one or more."
)
@click.option(
    "--file-records",
    type=click.IntRange(1),
    default=FILE_RECORDS,
    help="Sequence numbers per file.",
)
@click.option(
    "--on-gap",
    type=click.Choice(["stop", "skip"]),
    default="stop",
    show_default=True,
    help="If records cannot be read: stop, or report and skip them (exit code 3).",
)
@click.option(
    "--compress", type=click.Choice(["zstd", "gzip"]), help="Compress the transfer, for slow links."
)
@click.option("--token-file", type=_FILES, help="File with the token.")
@click.option(
    "--tls-ca",
    type=_FILES,
    help="CA certificates to trust; with this option, or with https://, TLS is used.",
)
@click.option("--tls-cert", type=_FILES)
@click.option("--tls-key", type=_FILES)
@click.option("--tls-server-name", help="Expected name in the certificate.")
@click.option("--quiet", is_flag=True, help="No progress bar.")
def export(
    topics: tuple[str, ...],
    out: Path,
    servers: tuple[str, ...],
    start: int | datetime | None,
    end: int | datetime | None,
    file_records: int,
    on_gap: str,
    quiet: bool,
    **given: Any,
) -> None:
    """Write the content of topics to files in a folder.

    Run it again after an interruption, or for new records: complete files are not written again.
    """
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        click.echo(NEEDS, err=True)
        sys.exit(1)
    from broker.cli.tools.export_files import FolderError

    job = Job(out, given, file_records, skip=on_gap == "skip")
    try:
        with ExitStack() as stack:
            options = options_of(given)
            connections = [stack.enter_context(Connection(server, options)) for server in servers]
            pieces = job.plan(connections, dict.fromkeys(topics), start, end)
            job.run(pieces, quiet)
    except (BulkError, FolderError, OSError) as error:
        click.echo(f"export: {error}", err=True)
        if isinstance(error, Damaged | Trimmed):
            click.echo("use --on-gap skip to continue without these records", err=True)
        sys.exit(1)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    sys.exit(3 if job.gaps else 0)


def options_of(given: dict[str, Any]) -> Options:
    """The options of connections, from the flags."""
    flags = ("tls_ca", "tls_cert", "tls_key", "tls_server_name")
    ca, cert, key, name = (str(given[flag] or "") for flag in flags)
    tls = Tls(ca, cert, key, name) if ca or cert or key or name else None
    token_file = str(given["token_file"] or "")
    return Options(token_file=token_file, tls=tls, compress=given["compress"] or "")


class Planned(NamedTuple):
    """The work for one log."""

    piece: Piece
    log_files: LogFiles
    files: list[tuple[int, int]]  # missing ones
    skipped: int


class Job:
    """One call of the command."""

    def __init__(
        self, out: Path, given: dict[str, Any], file_records: int, *, skip: bool = False
    ) -> None:
        self.out = out
        self.kind: str = given["kind"]
        self.columns = [name.strip() for name in given["columns"].split(",") if name.strip()]
        self.key_header: str | None = given["key_header"]
        self.subject_filter: str | None = given["subject_filter"]
        self.file_records = file_records
        self.skip = skip
        self.gaps = 0

    @property
    def description(self) -> dict[str, Any]:
        """The options that must stay the same between runs."""
        return {
            "columns": self.columns,
            "format": self.kind,
            "key_header": self.key_header,
            "subject_filter": self.subject_filter,
        }

    def plan(
        self,
        connections: list[Connection],
        topics: dict[str, None],
        start: int | datetime | None,
        end: int | datetime | None,
    ) -> list[Planned]:
        """Plan the work, and record its options in the folder."""
        from broker.cli.tools.export_files import FolderError, LogFiles, claim
        from broker.client.bulk.arrow import schema_of
        from broker.client.bulk.reading import locate

        schema_of(self.columns)
        planned: list[Planned] = []
        logs: dict[str, dict[str, str]] = {}
        for topic in topics:
            found = [
                p
                for connection in connections
                if (p := locate(connection, topic, start, end)) is not None
            ]
            if not found:
                raise BulkError(f"no broker has the topic {topic}")
            for piece in found:
                log_files = LogFiles(self.out, topic, piece.partition, self.kind)
                if log_files.stem in logs:
                    raise FolderError(
                        f"two brokers have the topic {topic} as partition {piece.partition}: give "
                        "each its own number (bulk.partition)"
                    )
                log = {"broker_id": piece.broker_id, "incarnation": piece.incarnation}
                logs[log_files.stem] = log
                planned.append(Planned(piece, log_files, [], 0))
        self.out.mkdir(parents=True, exist_ok=True)
        claim(self.out, self.description, logs)
        return [self._with_files(p) for p in planned]

    def _with_files(self, planned: Planned) -> Planned:
        piece, log_files = planned.piece, planned.log_files
        files = list(log_files.missing(piece.start, piece.end, self.file_records))
        complete = [a for a, b in log_files.complete() if a < piece.end and b > piece.start]
        return planned._replace(files=files, skipped=len(complete))

    def run(self, planned: list[Planned], quiet: bool) -> None:
        """Write all missing files."""
        seqs = sum(end - first for p in planned for first, end in p.files)
        stream = sys.stderr
        with click.progressbar(length=seqs, label="exporting", file=stream, hidden=quiet) as bar:
            counted = [(p, self._write(p, bar.update)) for p in planned]
        for p, rows in counted:
            written = f"{len(p.files)} files with {rows} records"
            skipped = f", {p.skipped} already complete" if p.skipped else ""
            click.echo(f"{p.piece.topic} of {p.piece.broker}: {written}{skipped}", err=True)

    def _write(self, planned: Planned, seen: Callable[[int], None]) -> int:
        from broker.cli.tools.export_files import write_file
        from broker.client.bulk.arrow import schema_of

        rows = 0
        for first, end in planned.files:
            piece = planned.piece._replace(start=first, end=end)
            path = planned.log_files.path(first, end)
            batches = self._batches(piece, seen)
            rows += write_file(path, self.kind, schema_of(self.columns), batches)
        return rows

    def _batches(self, piece: Piece, seen: Callable[[int], None]) -> Iterator[pa.RecordBatch]:
        from broker.client.bulk.reading import batches_of_piece

        return batches_of_piece(
            piece,
            self.columns,
            key_header=self.key_header,
            subject_filter=self.subject_filter,
            on_gap="skip" if self.skip else "raise",
            told_gap=self._report_gap,
            told_seqs=seen,
        )

    def _report_gap(self, broker: str, topic: str, gap: Gap) -> None:
        self.gaps += 1
        click.echo(f"export: {topic} of {broker}: {gap}: skipped", err=True)
