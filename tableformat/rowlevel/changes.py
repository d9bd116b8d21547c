"""What evaluating a statement gives: rows that go, by file and position, and files that come.

Row ids travel as `_file` and `_pos`; the spec and the partition of a row are those of its file, as
the scan planned it. Tasks send one bitmap per file, so the driver's work grows with files and
compressed bits, not with rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
import pyarrow as pa

from tableformat.codec.puffin.deletion_vector import Positions, build_positions
from tableformat.errors import InternalError, InvalidInputError
from tableformat.integer_order import stable_order
from tableformat.spec.data_file import DataFile

FILE, POSITION, ROW_ID = "_file", "_pos", "_row_id"
LAST_UPDATED = "_last_updated_sequence_number"
ACTION = "_action"
# Metadata columns that tell a live row; `_deleted` is none: it would bring dead rows along.
ROW_COLUMNS = frozenset({FILE, POSITION, ROW_ID, LAST_UPDATED, "_spec_id", "_partition"})


class RowAction(IntEnum):
    """What becomes of a row; the values of `_action`.

    KEEP: nothing. DELETE: it goes. UPDATE: it goes, and comes back with other values and its id.
    INSERT: it is new. COPY: it is written again as it is, and its file need not stay for it.
    """

    KEEP = 0
    DELETE = 1
    UPDATE = 2
    INSERT = 3
    COPY = 4

    @property
    def goes(self) -> bool:
        """Whether the row at `_file`, `_pos` dies."""
        return self in (RowAction.DELETE, RowAction.UPDATE, RowAction.COPY)

    @property
    def comes(self) -> bool:
        """Whether a row is written."""
        return self in (RowAction.UPDATE, RowAction.INSERT, RowAction.COPY)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowChanges:
    """The outcome of a statement's query; nothing is committed.

    Attributes:
        positions: Rows that go (deleted or replaced), by data file path.
        files: Written data files with rows that come (updated or inserted).
        deleted_rows: Rows that go without a successor.
        updated_rows: Rows that go and come back changed.
        inserted_rows: Rows that come anew.
    """

    positions: Mapping[str, Positions] = field(default_factory=dict)
    files: tuple[DataFile, ...] = ()
    deleted_rows: int = 0
    updated_rows: int = 0
    inserted_rows: int = 0

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to commit."""
        return not self.positions and not self.files


@dataclass(slots=True)
class PositionSet:
    """Collects row ids; tells when one came twice."""

    by_path: dict[str, Positions] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)

    def add_rows(self, paths: pa.Array, positions: pa.Array) -> None:
        """Add (`_file`, `_pos`) pairs."""
        for path, part in split_by_path(paths, positions):
            self.add(path, build_positions(part), len(part))

    def add(self, path: str, positions: Positions, count: int) -> None:
        """Add positions of one file that `count` rows had."""
        known = self.by_path.get(path)
        self.by_path[path] = positions if known is None else known | positions
        self.counts[path] = self.counts.get(path, 0) + count

    def add_set(self, other: PositionSet) -> None:
        """Add all that `other` has."""
        for path, positions in other.by_path.items():
            self.add(path, positions, other.counts[path])

    @property
    def distinct(self) -> int:
        """Row ids, each counted once."""
        return sum(len(positions) for positions in self.by_path.values())

    def repeated_path(self) -> str | None:
        """A file with a row that was added more than once."""
        for path, count in self.counts.items():
            if count != len(self.by_path[path]):
                return path
        return None


@dataclass(slots=True)
class ActionRows:
    """Rows with an action, folded: existing rows as positions, rows that come as a batch."""

    counts: dict[RowAction, int] = field(default_factory=lambda: dict.fromkeys(RowAction, 0))
    rows: dict[RowAction, PositionSet] = field(
        default_factory=lambda: {action: PositionSet() for action in RowAction}
    )

    def fold(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Note the rows that exist by `_file` and `_pos`; those that come, as they were given."""
        actions = np.asarray(batch.column(ACTION))
        comes = np.zeros(len(actions), dtype=np.bool_)
        for action in RowAction:
            chosen = actions == action
            count = int(np.count_nonzero(chosen))
            if not count:
                continue
            self.counts[action] += count
            if action != RowAction.INSERT:
                mask = pa.array(chosen)
                paths, positions = batch.column(FILE), batch.column(POSITION)
                self.rows[action].add_rows(paths.filter(mask), positions.filter(mask))
            if action.comes:
                comes |= chosen
        return batch if comes.all() else batch.filter(pa.array(comes))

    @property
    def gone(self) -> PositionSet:
        """Rows that go."""
        found = PositionSet()
        for action, rows in self.rows.items():
            if action.goes:
                found.add_set(rows)
        return found


def split_by_path(
    paths: pa.Array, positions: pa.Array
) -> Iterator[tuple[str, np.ndarray[tuple[int], np.dtype[np.int64]]]]:
    """Positions by path; one sort, no work per row."""
    if len(paths) == 0:
        return
    encoded = paths.dictionary_encode()
    codes = np.asarray(encoded.indices)
    ordinals = np.asarray(positions).astype(np.int64, copy=False)
    names = encoded.dictionary.to_pylist()
    if len(names) == 1:
        yield names[0], ordinals
        return
    order = stable_order(codes)
    starts = np.searchsorted(codes[order], np.arange(len(names) + 1))
    for code, name in enumerate(names):
        yield name, ordinals[order[starts[code] : starts[code + 1]]]


def refuse_ambiguous(pairs: PositionSet) -> None:
    """A target row that several source rows match has no defined outcome.

    Raises:
        InvalidInputError: There is one.
    """
    path = pairs.repeated_path()
    if path is not None:
        raise InvalidInputError(
            "MERGE is ambiguous: several source rows match one row of the target",
            action="make the source unique on the columns of ON",
            location=path,
        )


def check_known(positions: Mapping[str, Positions], planned: Iterable[str]) -> None:
    """Every row id must be of a file that the scan planned."""
    unknown = positions.keys() - set(planned)
    if unknown:
        raise InternalError("row ids of a file that was not planned", location=min(unknown))
