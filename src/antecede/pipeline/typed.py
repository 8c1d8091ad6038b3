"""The columns of a DataFrame against the types of a trace, which are strict: a decimal is no clock, a number no name.

Exact equivalents are taken: a timestamp for ``time``, an integer for ``message``, and for ``index`` what Spark makes of
an unsigned integer, a decimal of 20 digits. A name in other case stands for its column where that is unambiguous.

A type speaks for all rows of its column; what single rows may still have wrong (a null among destinations, a negative
index) is asked in :func:`antecede.pipeline.stages.events`.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as fn
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DecimalType,
    IntegralType,
    MapType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from antecede.trace.schema import case_matched

_texts = ("process", "kind", "message", "domain", "instance", "operation", "parent", "type", "replays")


def has_type(name: str, kind: DataType) -> bool:
    """Whether a column has the type of the contract, or an exact equivalent."""
    if name == "message" and isinstance(kind, IntegralType):
        return True
    if name == "time" and isinstance(kind, TimestampType | TimestampNTZType):
        return True
    if name == "index" and isinstance(kind, DecimalType):
        return (kind.precision, kind.scale) == (20, 0)
    if name in _texts:
        return isinstance(kind, StringType)
    if name == "to":
        return isinstance(kind, ArrayType) and isinstance(kind.elementType, StringType)
    if name == "clock":
        entries = isinstance(kind, MapType) and isinstance(kind.valueType, IntegralType)
        return entries and isinstance(kind, MapType) and isinstance(kind.keyType, StringType)
    return kind.typeName() == "boolean" if name in ("dead", "assumed") else isinstance(kind, IntegralType)


def named(df: DataFrame) -> DataFrame:
    """The same rows, with the names of a trace's columns where they are given in other case."""
    other = case_matched(df.columns)
    return df.toDF(*(other.get(name, name) for name in df.columns)) if other else df


def entries_of(kind: DataType) -> Column:
    """A clock that is a structure, as ``spark.read.json`` makes it, as a map: without the names that a row does not
    mention, and with a null for what is no integer."""
    assert isinstance(kind, StructType)
    pairs = []
    for field in kind.fields:
        said = fn.col("`clock`").getField(field.name)
        entry = said.cast("bigint") if isinstance(field.dataType, IntegralType) else fn.lit(None).cast("bigint")
        pairs.append(fn.struct(said.isNotNull(), fn.lit(field.name).alias("name"), entry.alias("entry")))
    mentioned = fn.filter(fn.array(*pairs), lambda pair: pair.getField("col1"))
    entries = fn.transform(mentioned, lambda pair: fn.struct(pair.getField("name"), pair.getField("entry")))
    return fn.when(fn.col("`clock`").isNotNull(), fn.map_from_entries(entries))
