"""The columns of source and sink: names and types, for Spark and for Arrow."""

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

from broker.spark.errors import (
    COLUMN_MISSING,
    COLUMN_TYPE,
    ID_MISSING,
    KEY_NEEDS_HEADER,
    TOPIC_MISSING,
    UNKNOWN_COLUMN,
    OptionError,
)
from broker.spark.sink.options import DEDUPE, WriteSettings

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

WRITABLE: Final[dict[str, tuple[DataType, ...]]] = {
    "value": (BinaryType(), StringType()),
    "topic": (StringType(),),
    "subject": (StringType(),),
    "key": (BinaryType(), StringType()),
    "headers": (HEADERS,),
    "notBefore": (TimestampType(),),
    "messageId": (StringType(),),
}


def readable(*, headers: bool, metadata: bool) -> StructType:
    """The schema of a query without a schema of its own."""
    columns = dict(ALWAYS)
    if headers:
        columns["headers"] = HEADERS
    if metadata:
        columns |= METADATA
    return StructType([StructField(name, kind) for name, kind in columns.items()])


def check_readable(schema: StructType) -> None:
    """Check a schema of the user: any of the known columns, in any order. OptionError."""
    for column in schema.fields:
        wanted = READABLE.get(column.name)
        if wanted is None:
            raise OptionError(_unknown(column.name, READABLE))
        if not _same_type(column.dataType, wanted):
            raise OptionError(
                COLUMN_TYPE.format(
                    name=column.name,
                    wanted=wanted.simpleString(),
                    given=column.dataType.simpleString(),
                )
            )


def check_writable(schema: StructType, settings: WriteSettings) -> None:
    """Check the columns of a data frame to be written. OptionError."""
    for column in schema.fields:
        types = WRITABLE.get(column.name)
        if types is None:
            raise OptionError(_unknown(column.name, WRITABLE))
        if not any(_same_type(column.dataType, kind) for kind in types):
            wanted = " or ".join(kind.simpleString() for kind in types)
            given = column.dataType.simpleString()
            raise OptionError(COLUMN_TYPE.format(name=column.name, wanted=wanted, given=given))
    names = schema.fieldNames()
    if "value" not in names:
        raise OptionError(COLUMN_MISSING.format(name="value"))
    if "topic" not in names and settings.topic is None:
        raise OptionError(TOPIC_MISSING)
    if "key" in names and settings.key_header is None:
        raise OptionError(KEY_NEEDS_HEADER)
    if settings.delivery == DEDUPE and "messageId" not in names:
        raise OptionError(ID_MISSING)


def _unknown(name: str, columns: Iterable[str]) -> str:
    return UNKNOWN_COLUMN.format(name=name, known=", ".join(columns))


def _same_type(given: DataType, wanted: DataType) -> bool:
    """Whether two types are equal except for nullability, which depends on the origin of a
    column."""
    return bool(given.simpleString() == wanted.simpleString())


def arrow_schema(schema: StructType) -> pa.Schema:
    """The schema that Spark compares batches with: types, names and nullability."""
    from pyspark.sql.pandas.types import to_arrow_schema

    arrow: pa.Schema = to_arrow_schema(schema, timezone="UTC")
    return arrow
