"""Which types a column may be given (spec: Schema Evolution)."""

from __future__ import annotations

from collections.abc import Mapping

from pyiceberg import types as iceberg

ELEMENT = "element"  # the name of a list's items in a path


def is_wider(have: iceberg.IcebergType, want: iceberg.IcebergType) -> bool:
    """Whether `want` is a type that Iceberg can promote `have` to.

    Without `date` to `timestamp`, which would change what partition transforms give.
    """
    match have, want:
        case (iceberg.IntegerType(), iceberg.LongType()) | (
            iceberg.FloatType(),
            iceberg.DoubleType(),
        ):
            return True
        case (iceberg.DecimalType(), iceberg.DecimalType()):
            return have.scale == want.scale and have.precision < want.precision
    return False


def wider_parts(
    have: iceberg.IcebergType, want: iceberg.IcebergType
) -> Mapping[tuple[str, ...], iceberg.IcebergType]:
    """The parts of a type that `want` has wider, by their paths; the type itself has the path `()`.

    Lists are compared by their items and structs by the fields that both have: a list is no wider
    than another, but its items may be. Parts of unrelated types are left out.
    """
    if is_wider(have, want):
        return {(): want}
    match have, want:
        case iceberg.ListType(), iceberg.ListType():
            pairs = {ELEMENT: (have.element_type, want.element_type)}
        case iceberg.StructType(), iceberg.StructType():
            theirs = {each.name: each.field_type for each in want.fields}
            mine = (each for each in have.fields if each.name in theirs)
            pairs = {each.name: (each.field_type, theirs[each.name]) for each in mine}
        case _:
            return {}
    return {
        (name, *path): kind
        for name, pair in pairs.items()
        for path, kind in wider_parts(*pair).items()
    }
