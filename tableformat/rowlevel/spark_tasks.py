"""What Spark's tasks do for a statement: fold row ids into bitmaps, write rows, answer fragments.

Only the driver commits. A task answers with few rows, whatever it worked on:

| what     | name           | count          | payload                         |
|----------|----------------|----------------|---------------------------------|
| gone     | data file path | rows           | bitmap of positions             |
| matched  | data file path | rows           | bitmap (MERGE: matched, no action) |
| files    |                | rows written   | written data files, JSON        |
| updated, inserted | | rows                 |                                 |
| error    | kind of error  |                | its text, without a traceback   |
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64
from pyspark.sql import Row

from tableformat.errors import InvalidInputError, StoreUnavailableError, TableError
from tableformat.rowlevel.changes import ROW_ID, ActionRows, PositionSet, RowAction
from tableformat.rowlevel.rewrite import FileRewrite, RowWriter, surviving_rows
from tableformat.runtime import SystemIds
from tableformat.scan.plan import ScanPlan
from tableformat.spark.types import from_spark_batch
from tableformat.spark.worker import freeze_imports
from tableformat.spec.data_file import DataFile
from tableformat.write.fragments import decode_data_files, encode_data_files

VALUE = "__icefold_value_{}"

ANSWERS = "what string, name string, count bigint, payload binary"
_ANSWER_SCHEMA = pa.schema(
    [
        ("what", pa.string()),
        ("name", pa.string()),
        ("count", pa.int64()),
        ("payload", pa.binary()),
    ]
)
_ERRORS: dict[str, type[TableError]] = {
    each.__name__: each for each in (InvalidInputError, StoreUnavailableError)
}

ArrowMap = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


@dataclass(slots=True)
class Answers:
    """All tasks' answers, put together on the driver."""

    gone: PositionSet = field(default_factory=PositionSet)
    matched: PositionSet = field(default_factory=PositionSet)
    files: list[DataFile] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    error: TableError | None = None

    @classmethod
    def of(cls, rows: Sequence[Row]) -> Answers:
        """Read what `DataFrame.collect` gives."""
        answers = cls()
        for what, name, count, payload in rows:
            match what:
                case "gone":
                    answers.gone.add(name, BitMap64.deserialize(bytes(payload)), count)
                case "matched":
                    answers.matched.add(name, BitMap64.deserialize(bytes(payload)), count)
                case "files":
                    answers.files += decode_data_files(bytes(payload).decode())
                case "error":
                    kind = _ERRORS.get(name, InvalidInputError)
                    answers.error = kind(bytes(payload).decode())
                case _:
                    answers.counts[what] += count
        return answers


def collect_row_ids(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """A task of DELETE: rows of (`_file`, `_pos`) in, one bitmap per file out."""
    freeze_imports()
    gone = PositionSet()
    for batch in batches:
        gone.add_rows(batch.column(0), batch.column(1))
    yield from _bitmaps("gone", gone)


def row_changer(writer: RowWriter) -> ArrowMap:
    """A task of UPDATE and MERGE.

    Takes rows of `_file`, `_pos`, `_row_id`, the action, and the new value of every column; an
    INSERT has no row id, a DELETE no values.
    """

    def change(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        freeze_imports()
        folded = ActionRows()
        files: list[DataFile] = []
        try:
            files = writer.write(_new_rows(batches, writer, folded), SystemIds())
        except TableError as error:
            yield _answer("error", type(error).__name__, 0, str(error).encode())
            return
        yield from _bitmaps("gone", folded.gone)
        yield from _bitmaps("matched", folded.rows[RowAction.KEEP])
        yield _answer("updated", "", folded.counts[RowAction.UPDATE], b"")
        yield _answer("inserted", "", folded.counts[RowAction.INSERT], b"")
        yield _files_answer(files)

    return change


def file_rewriter(
    writer: RowWriter, plan: ScanPlan, groups: Sequence[Sequence[FileRewrite]]
) -> ArrowMap:
    """A task of copy-on-write: ordinals of groups in, the files of their surviving rows out."""

    def rewrite(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        freeze_imports()
        for batch in batches:
            for ordinal in batch.column(0).to_pylist():
                rows = surviving_rows(writer.store, plan, groups[ordinal])
                try:
                    files = writer.write(rows, SystemIds(), stored="kept")
                except TableError as error:
                    yield _answer("error", type(error).__name__, 0, str(error).encode())
                    return
                yield _files_answer(files)

    return rewrite


def _new_rows(
    batches: Iterable[pa.RecordBatch], writer: RowWriter, folded: ActionRows
) -> Iterator[pa.RecordBatch]:
    """Rows to write; folds the others on the way."""
    names = [each.name for each in writer.schema.fields]
    for batch in batches:
        written = folded.fold(batch)
        if written.num_rows == 0:
            continue
        values = pa.RecordBatch.from_arrays(
            [written.column(VALUE.format(ordinal)) for ordinal in range(len(names))], names=names
        )
        conformed = from_spark_batch(values, writer.schema)
        row_ids = pc.cast(written.column(ROW_ID), pa.int64())
        yield pa.RecordBatch.from_arrays(
            [*conformed.columns, row_ids], names=[*conformed.schema.names, ROW_ID]
        )


def _bitmaps(what: str, rows: PositionSet) -> Iterator[pa.RecordBatch]:
    for path, positions in rows.by_path.items():
        yield _answer(what, path, rows.counts[path], positions.serialize())


def _files_answer(files: Sequence[DataFile]) -> pa.RecordBatch:
    written = sum(file.record_count for file in files)
    return _answer("files", "", written, encode_data_files(files).encode())


def _answer(what: str, name: str, count: int, payload: bytes) -> pa.RecordBatch:
    columns = [[what], [name], [count], [payload]]
    arrays = [
        pa.array(column, each.type) for column, each in zip(columns, _ANSWER_SCHEMA, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=_ANSWER_SCHEMA)
