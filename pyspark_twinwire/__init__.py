"""The data source `twinwire`.

Spark imports all modules whose name begins with `pyspark_` in each session, even if the session
does not use them. So this module imports the broker's code only when it is needed.
"""

from __future__ import annotations

import importlib.util
import sys
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from broker.spark.sink.sink import BatchWriter, StreamWriter
    from broker.spark.source.batch import BatchReader
    from broker.spark.source.stream import StreamReader

__all__ = ["DefaultSource"]

# The worker that applies filters; Spark uses it only if it is configured to.
_FILTER_WORKER = "pyspark.sql.worker.data_source_pushdown_filters"


class DefaultSource(DataSource):
    """`spark.read`, `readStream`, `df.write` and `writeStream` with `.format("twinwire")`."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        # Without this check workers would fail later, with only a reset connection as the reason.
        if importlib.util.find_spec("pyarrow") is None:
            from broker.spark.errors import NO_ARROW

            raise ImportError(NO_ARROW.format(python=sys.executable))

    @classmethod
    def name(cls) -> str:
        return "twinwire"

    def schema(self) -> StructType:
        from broker.spark.schema import readable
        from broker.spark.source.options import check_readable_options

        reading = check_readable_options(self.options)
        return readable(headers=reading.headers, metadata=reading.metadata)

    def reader(self, schema: StructType) -> BatchReader:
        from broker.spark.source import batch as source
        from broker.spark.source.options import read_settings

        hands_down = _FILTER_WORKER in sys.modules or sys.argv[1:2] == [_FILTER_WORKER]
        kind = source.FilteringReader if hands_down else source.BatchReader
        return kind(read_settings(self.options, stream=False), schema)

    def streamReader(self, schema: StructType) -> StreamReader:
        from broker.spark.source.options import read_settings
        from broker.spark.source.stream import StreamReader

        return StreamReader(read_settings(self.options, stream=True), schema)

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        from broker.spark.sink.options import write_settings
        from broker.spark.sink.sink import BatchWriter

        return BatchWriter(write_settings(self.options, stream=False), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        from broker.spark.sink.options import write_settings
        from broker.spark.sink.sink import StreamWriter

        return StreamWriter(write_settings(self.options, stream=True), schema, overwrite)
