"""Writing: `df.write.format("twinwire")` and `df.writeStream.format("twinwire")`.

`transactional`: each task stages its rows at the broker under (writer, epoch, topic, part, attempt)
and reports to the driver, whose `commit` names the successful attempts. The broker publishes those
of a topic together and remembers the epoch, so a batch that runs again, with its rows in any order,
publishes nothing more.

    stream   writer = query id of the checkpoint, epoch = number of the batch
    batch    writer = a new id for this write, epoch 0; or the options `writerId` and `epoch`

Spark creates a new writer of a stream for each batch and for its commit. The commit receives no
query id, so the messages of the tasks contain it.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from broker.client.bulk.connection import Committed, Connection
from broker.spark import schema
from broker.spark.errors import (
    NO_QUERY,
    OLD_CHECKPOINT,
    OVERWRITE,
    UNCOMMITTED,
    OptionError,
    UncommittedError,
)
from broker.spark.memory import keep_memory
from broker.spark.sink.options import TRANSACTIONAL, WriteSettings
from broker.spark.sink.upload import Transaction, Upload

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"


@dataclass
class Staged(WriterCommitMessage):
    """The result of a task: the number of bytes staged for each topic at each server."""

    transaction: Transaction | None
    part: int
    attempt: str
    rows: int
    bytes: dict[int, dict[str, int]] = field(default_factory=dict)


class Writer:
    """Base class of the writers of batches and of streams."""

    def __init__(self, settings: WriteSettings, columns: StructType, overwrite: bool) -> None:
        if overwrite:
            raise OptionError(OVERWRITE)
        schema.check_writable(columns, settings)
        self.settings = settings

    def _write(self, batches: Iterator[pa.RecordBatch], transaction: Transaction) -> Staged:
        """Upload the rows of one task. Each attempt has its own name, in all runs."""
        keep_memory()
        context = TaskContext.get()
        part, attempt = context.partitionId() if context else 0, uuid.uuid4().hex
        staged = transaction if self.settings.delivery == TRANSACTIONAL else None
        with Upload(self.settings, staged, part, attempt) as upload:
            for batch in batches:
                upload.add(batch)
            upload.flush()
            return Staged(staged, part, attempt, upload.rows, upload.staged)

    def _commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Commit on the driver, one broker after another. If one fails, the batch runs again;
        brokers that have committed it already publish nothing more."""
        done = [message for message in messages if isinstance(message, Staged)]
        if len(done) < len(messages):
            raise UncommittedError(UNCOMMITTED)
        winners: dict[int, dict[str, list[tuple[int, str, int]]]] = {}
        for one in sorted(done, key=lambda message: message.part):
            for server, topics in one.bytes.items():
                for topic, size in topics.items():
                    names = winners.setdefault(server, {}).setdefault(topic, [])
                    names.append((one.part, one.attempt, size))
        for server in sorted(winners):
            transaction = done[0].transaction
            assert transaction is not None
            with self._connection(server) as connection:
                found = connection.commit(transaction.writer, transaction.epoch, winners[server])
                self._check(connection, transaction, found)

    def _check(
        self, connection: Connection, transaction: Transaction, found: Mapping[str, Committed]
    ) -> None:
        """Check the outcome for each topic."""

    def _abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Drop the staged blocks now; the broker would keep them for an hour."""
        staged = [one for one in messages if isinstance(one, Staged) and one.transaction]
        for server in sorted({server for one in staged for server in one.bytes}):
            transaction = staged[0].transaction
            assert transaction is not None
            with self._connection(server) as connection:
                connection.drop_staged(transaction.writer, transaction.epoch)

    def _connection(self, server: int) -> Connection:
        access = self.settings.access
        return Connection(access.servers[server], access.options)


class BatchWriter(Writer, DataSourceArrowWriter):
    """One batch write; the driver's object is copied to the tasks."""

    def __init__(self, settings: WriteSettings, columns: StructType, overwrite: bool) -> None:
        super().__init__(settings, columns, overwrite)
        name, epoch = settings.writer_id, settings.epoch
        if name is not None and epoch is not None:
            self.transaction = Transaction(name, epoch)
        else:
            unique = f"spark-{uuid.uuid4().hex}"
            self.transaction = Transaction(f"{name}.{unique}" if name else unique, 0)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._write(iterator, self.transaction)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._commit(messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self._abort(messages)


class StreamWriter(Writer, DataSourceStreamArrowWriter):
    """One batch of a stream."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        query = context.getLocalProperty(_QUERY_ID) if context else None
        batch = context.getLocalProperty(_BATCH_ID) if context else None
        if query is None or batch is None:
            raise RuntimeError(NO_QUERY)
        name = self.settings.writer_id
        writer = f"{name}.{query}" if name else query
        return self._write(iterator, Transaction(writer, int(batch)))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002
        self._commit(messages)

    def _check(
        self, connection: Connection, transaction: Transaction, found: Mapping[str, Committed]
    ) -> None:
        """UncommittedError: later batches were published before this one. Spark does not begin a
        batch before the last one is committed, so the checkpoint was replaced by an old copy. Then
        a batch with the same number may have other rows."""
        writer, epoch = transaction
        for topic, one in found.items():
            if one.already and not one.records:  # the broker has counts only for the last epoch
                last = connection.committed(writer)["topics"][topic]["epoch"]
                if last > epoch:
                    text = OLD_CHECKPOINT.format(epoch=epoch, topic=topic, last=last)
                    raise UncommittedError(text)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002
        self._abort(messages)
