"""A task of a write: converts rows to blocks and uploads them to the broker of their topic."""

from __future__ import annotations

from typing import NamedTuple, Self

import pyarrow as pa

from broker.client.bulk.encode import blocks
from broker.spark.brokers import Brokers
from broker.spark.errors import ID_NULL, RowError
from broker.spark.limits import UPLOAD_BYTES
from broker.spark.sink.options import DEDUPE, WriteSettings, server_of


class Transaction(NamedTuple):
    """The identity of a batch, the same if it is written again."""

    writer: str
    epoch: int


class Upload:
    """The rows of one attempt of a task. Small batches are collected, because with many topics each
    would become many small blocks."""

    def __init__(
        self, settings: WriteSettings, transaction: Transaction | None, part: int, attempt: str
    ) -> None:
        """`transaction` None: rows are published at once."""
        self.settings = settings
        self.transaction = transaction
        self.part = part
        self.attempt = attempt
        self.rows = 0
        self.staged: dict[int, dict[str, int]] = {}  # server -> topic -> bytes
        self._brokers = Brokers(settings.access)
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._brokers.close()

    def add(self, batch: pa.RecordBatch) -> None:
        if self.settings.delivery == DEDUPE and batch.column("messageId").null_count:
            raise RowError(ID_NULL)
        self.rows += batch.num_rows
        self._waiting.append(batch)
        self._waiting_bytes += batch.nbytes
        if self._waiting_bytes >= UPLOAD_BYTES:
            self.flush()

    def flush(self) -> None:
        """Upload the collected rows."""
        waiting, self._waiting, self._waiting_bytes = self._waiting, [], 0
        if not waiting:
            return
        settings = self.settings
        for batch in pa.Table.from_batches(waiting).combine_chunks().to_batches():
            for topic, block in blocks(batch, topic=settings.topic, key_header=settings.key_header):
                self._send(topic, block)

    def _send(self, topic: str, block: bytes) -> None:
        settings = self.settings
        server = server_of(topic, settings.access.servers, settings.routing)
        connection = self._brokers.at(server)
        if self.transaction is None:
            connection.append(topic, block, dedupe=settings.delivery == DEDUPE)
            return
        sizes = self.staged.setdefault(server, {})
        sizes[topic] = connection.stage(
            *self.transaction, topic, self.part, self.attempt, block, sizes.get(topic, 0)
        )
