"""Which types a column may be given (spec: Schema Evolution)."""

from __future__ import annotations

from pyiceberg import types as iceberg


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
