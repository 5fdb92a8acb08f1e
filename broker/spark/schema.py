"""The columns of the source: names and types, in Spark's words and in Arrow's."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from broker.errors_spark import COLUMN_TYPE, UNKNOWN_COLUMN, OptionError

if TYPE_CHECKING:
    import pyarrow as pa

HEADERS: Final = ArrayType(
    StructType([StructField("key", StringType()), StructField("value", BinaryType())])
)
ALWAYS: Final[dict[str, DataType]] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    "subject": StringType(),
}
METADATA: Final[dict[str, DataType]] = {
    "broker": StringType(),
    "messageId": StringType(),
    "notBefore": TimestampType(),
}
READABLE: Final[dict[str, DataType]] = {**ALWAYS, "headers": HEADERS, **METADATA}


def readable(*, headers: bool, metadata: bool) -> StructType:
    """The schema of a query that does not give its own."""
    columns = dict(ALWAYS)
    if headers:
        columns["headers"] = HEADERS
    if metadata:
        columns |= METADATA
    return StructType([StructField(name, kind) for name, kind in columns.items()])


def check_readable(schema: StructType) -> None:
    """A schema that the user gave: any of our columns, in any order."""
    for column in schema.fields:
        wanted = READABLE.get(column.name)
        if wanted is None:
            raise OptionError(_unknown(column.name, READABLE))
        if not _same(column.dataType, wanted):
            raise OptionError(
                COLUMN_TYPE.format(
                    name=column.name,
                    wanted=wanted.simpleString(),
                    given=column.dataType.simpleString(),
                )
            )


def _unknown(name: str, columns: Iterable[str]) -> str:
    return UNKNOWN_COLUMN.format(name=name, known=", ".join(columns))


def _same(given: DataType, wanted: DataType) -> bool:
    """Equal but for what may be null, which differs with where a column comes from."""
    return bool(given.simpleString() == wanted.simpleString())


def arrow_schema(schema: StructType) -> pa.Schema:
    """What Spark compares our batches with: types, names and nullability alike."""
    from pyspark.sql.pandas.types import to_arrow_schema

    arrow: pa.Schema = to_arrow_schema(schema, timezone="UTC")
    return arrow
