"""New values of a table's columns as Spark columns, under Spark's own rule for stored values.

ANSI store assignment: numbers go into numbers (a value that does not fit fails the statement),
dates and timestamps into each other, anything flat into text; nothing else is converted.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

from pyiceberg.types import NestedField, StructType
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql import types as spark
from sqlglot import exp

from tableformat.errors import InvalidInputError
from tableformat.rowlevel.spark_views import Views
from tableformat.spark.filters import spark_default
from tableformat.spark.types import spark_type
from tableformat.sql.columns import TargetColumns
from tableformat.sql.statement import Assignment, RowLevelOperation

_ANSI_MODE = "spark.sql.ansi.enabled"
_MOMENTS = (spark.DateType, spark.TimestampType, spark.TimestampNTZType)


class NewValues:
    """Builds values over one frame: the rows that an assignment may use."""

    def __init__(self, columns: TargetColumns, views: Views, scope: DataFrame) -> None:
        self._columns = columns
        self._views = views
        self._scope = scope

    def updated(self, assignments: Sequence[Assignment]) -> dict[str, Column]:
        """New values of the table columns that are assigned to; the others keep theirs.

        Raises:
            InvalidInputError: A column is unknown or a value has the wrong type.
        """
        made: dict[str, Column] = {}
        for assignment in assignments:
            path = self._columns.assigned(assignment.path)
            value = self._value(assignment, path[-1])
            name = path[0].name
            if len(path) > 1:
                inner = ".".join(_quoted(field.name) for field in path[1:])
                value = made.get(name, self.old(path[0])).withField(inner, value)
            made[name] = value
        return made

    def inserted(self, assignments: Sequence[Assignment]) -> dict[str, Column]:
        """Values of the table columns in a new row; those not named are null."""
        made = {
            field.name: _default(field)
            for field in self._columns.schema.fields
            if field.write_default is not None
        }
        for assignment in assignments:
            path = self._columns.assigned(assignment.path)
            if len(path) > 1:
                raise InvalidInputError(
                    "INSERT takes whole columns", column=".".join(assignment.path)
                )
            made[path[0].name] = self._value(assignment, path[0])
        return made

    def old(self, field: NestedField) -> Column:
        """The value in the target; null on rows that have no target row."""
        return sf.col(f"{_quoted(self._columns.alias)}.{_quoted(field.name)}")

    def from_source(
        self, source: DataFrame, alias: str, *, without: Container[str]
    ) -> tuple[Assignment, ...]:
        """`*`: every table column but some from the source's column of that name.

        Raises:
            InvalidInputError: The source lacks one.
        """
        known = {name.casefold(): name for name in source.columns}
        found = []
        for field in self._columns.schema.fields:
            if field.name in without:
                continue
            name = known.get(field.name.casefold())
            if name is None:
                raise InvalidInputError(
                    "the source of MERGE has no such column, which * needs",
                    column=field.name,
                    known=",".join(source.columns),
                )
            found.append(Assignment((field.name,), exp.column(name, table=alias, quoted=True)))
        return tuple(found)

    def _value(self, assignment: Assignment, field: NestedField) -> Column:
        if assignment.is_default and self._columns.find_tree(assignment.value) is None:
            return _default(field)
        value = self._views.column(assignment.value)
        given = self._scope.select(value.alias("value")).schema["value"].dataType
        name = ".".join(assignment.path)
        if _bare(given) == _bare(spark_type(field.field_type)):
            return value
        is_ansi = str(self._scope.sparkSession.conf.get(_ANSI_MODE)).lower() == "true"
        return _stored(value, given, field, name, is_ansi=is_ansi)


def deterministic(frame: DataFrame, operation: RowLevelOperation) -> None:
    """Refuse what gives other rows when it is asked again (a UDF says so itself).

    Raises:
        InvalidInputError: The query is not deterministic.
    """
    plan = getattr(frame, "_jdf", None)  # Spark Connect has no plans to look at
    if plan is not None and not plan.queryExecution().analyzed().deterministic():
        raise InvalidInputError(
            f"{operation.upper()} cannot use an expression that is not deterministic",
            action="compute it into a table first",
        )


def _stored(
    value: Column, given: spark.DataType, field: NestedField, name: str, *, is_ansi: bool
) -> Column:
    wanted = spark_type(field.field_type)
    numbers = isinstance(given, spark.NumericType) and isinstance(wanted, spark.NumericType)
    moments = isinstance(given, _MOMENTS) and isinstance(wanted, _MOMENTS)
    texts = isinstance(wanted, spark.StringType) and isinstance(given, spark.AtomicType)
    if isinstance(given, spark.NullType):
        return null_of(wanted)
    if numbers and (isinstance(wanted, spark.FloatType) or not is_ansi):
        return _fitting(value, wanted, name)
    if numbers or moments or texts:
        return value.cast(_nullable(wanted))
    if isinstance(given, spark.ArrayType | spark.MapType | spark.StructType) and _same_shape(
        given, wanted
    ):
        if not is_ansi:
            raise InvalidInputError(
                "a nested value of another type is only stored in ANSI mode",
                column=name,
                type=field.field_type,
                found=given.simpleString(),
                action=f"set {_ANSI_MODE} to true, or cast the value",
            )
        return value.cast(_nullable(wanted))
    raise InvalidInputError(
        "an assigned value has the wrong type",
        column=name,
        type=field.field_type,
        found=given.simpleString(),
    )


def _fitting(value: Column, wanted: spark.DataType, name: str) -> Column:
    """A number cast where Spark's cast wraps around, or gives null or infinity: it fails."""
    cast = value.try_cast(wanted)
    misfit = value.isNotNull() & cast.isNull()
    if isinstance(wanted, spark.FloatType):
        infinity = sf.lit(float("inf"))
        misfit |= (sf.abs(cast) == infinity) & (sf.abs(value.cast("double")) != infinity)
    text = f"a value does not fit the type {wanted.simpleString()} of column {name}"
    return sf.when(misfit, sf.raise_error(sf.lit(text))).otherwise(cast)


def _same_shape(given: spark.DataType, wanted: spark.DataType) -> bool:
    """Nested values need the same names; their numbers may widen, null types fit everything."""
    if isinstance(given, spark.StructType) and isinstance(wanted, spark.StructType):
        return [f.name for f in given.fields] == [f.name for f in wanted.fields] and all(
            _same_shape(left.dataType, right.dataType)
            for left, right in zip(given.fields, wanted.fields, strict=True)
        )
    if isinstance(given, spark.ArrayType) and isinstance(wanted, spark.ArrayType):
        return _same_shape(given.elementType, wanted.elementType)
    if isinstance(given, spark.MapType) and isinstance(wanted, spark.MapType):
        return _same_shape(given.keyType, wanted.keyType) and _same_shape(
            given.valueType, wanted.valueType
        )
    numbers = isinstance(given, spark.NumericType) and isinstance(wanted, spark.NumericType)
    return isinstance(given, spark.NullType) or numbers or _bare(given) == _bare(wanted)


def _bare(kind: spark.DataType) -> str:
    """The type without nullability."""
    return str(kind.simpleString())


def _nullable(kind: spark.DataType) -> spark.DataType:
    """The type as a cast may produce it: anything may be null."""
    if isinstance(kind, spark.StructType):
        return spark.StructType(
            [spark.StructField(f.name, _nullable(f.dataType), True) for f in kind.fields]
        )
    if isinstance(kind, spark.ArrayType):
        return spark.ArrayType(_nullable(kind.elementType), True)
    if isinstance(kind, spark.MapType):
        return spark.MapType(_nullable(kind.keyType), _nullable(kind.valueType), True)
    return kind


def _default(field: NestedField) -> Column:
    kind = spark_type(field.field_type)
    if field.write_default is None or isinstance(field.field_type, StructType):
        return null_of(kind)
    return _cast(spark_default(field.write_default, field.field_type), kind)


def null_of(kind: spark.DataType) -> Column:
    """A null of a type."""
    return _cast(sf.lit(None), kind)


def _cast(value: Column, kind: spark.DataType) -> Column:
    """A cast; Spark has TIME columns, but refuses casts to TIME."""
    return value if "time(" in _bare(kind) else value.cast(_nullable(kind))


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"
