"""What a lookup gives."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
import pyarrow as pa

from tableformat.array_types import Int64s
from tableformat.spec.arrow_arrays import python_rows


class LookupSource(StrEnum):
    """How the rows were found. Append-only: values are part of the interface."""

    INDEX = "index"  # the index is at the snapshot that was read
    FOLLOWED = "followed"  # the index is at another one, the difference is held in memory
    SCAN = "scan"  # files that may hold a key were read; `reason` says why


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LookupResult:
    """The rows of some keys in one snapshot.

    Attributes:
        rows: The rows, ordered by key; several or none per key.
        key: Shape `(rows,)`: for each row the ordinal of its key among those asked for.
        key_count: How many keys were asked for.
        source: How the rows were found.
        reason: Why no index was used, or what the index is behind; None when it is current.
        snapshot_id: The snapshot that was read; None for an empty table.
    """

    rows: pa.Table
    key: Int64s
    key_count: int
    source: LookupSource
    reason: str | None
    snapshot_id: int | None

    @property
    def missing(self) -> Int64s:
        """Ordinals of the keys that have no row."""
        return np.setdiff1d(np.arange(self.key_count, dtype=np.int64), self.key)

    def to_arrow(self) -> pa.Table:
        """The rows."""
        return self.rows

    def to_pylist(self) -> list[dict[str, Any]]:
        """The rows as dicts."""
        return python_rows(self.rows)

    def __len__(self) -> int:
        return int(self.rows.num_rows)
