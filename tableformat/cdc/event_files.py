"""Change events from local files: batches of them, and how far a query has read.

Each batch says how many events of the files end with it, with a digest of the last line or of the
Parquet file. The next run passes over as many, however they were cut into batches, and goes on
behind them; files that do not begin with those events are refused.

A run that was killed between the two commits of a batch leaves bad records whose changes nobody has
staged. The dead-letter table says in the same way where they end: a batch ends there again, and its
bad records are known, if the files still have that event there.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tableformat.catalog.base import TableState
from tableformat.cdc.batch_commit import BatchId, check_not_lost, committed
from tableformat.cdc.dead_letter import ArePutAside, letters_batch
from tableformat.cdc.events import ORDINAL, POSITION, VALUE
from tableformat.cdc.ingest import IngestResult, write_batch
from tableformat.cdc.sink import SinkPlan
from tableformat.errors import FencedError, InvalidInputError
from tableformat.spec.decimal_text import parse_decimal
from tableformat.spec.names import MAIN_BRANCH, SOURCE_EVENTS

BATCH_EVENTS = 100_000
BATCH_BYTES = 64 << 20  # of lines, or of Parquet before compression; memory is some times that
PARQUET_SUFFIX = ".parquet"
STANDARD_INPUT = Path("-")
GZIP_MAGIC = b"\x1f\x8b"
_DIGEST_BYTES = 8
_WAITING_MAX = 10 * BATCH_EVENTS  # to see whether their bad records are known
_AGAIN = "run it again: it goes on from what the table has"
_FOOTER_BYTES = 1 << 16  # of a Parquet file: bounds and places of its columns


def ingest_files(
    plan: SinkPlan,
    paths: Sequence[Path],
    *,
    query_id: str | None = None,
    batch_events: int = BATCH_EVENTS,
) -> Iterator[IngestResult]:
    """Write the events of local files, in file order, in batches.

    Args:
        plan: The sink.
        paths: JSON-lines files (one event per line; `-` is standard input; gzip is seen by
            itself), or Parquet files whose columns are the format's.
        query_id: A name for this ingestion. Running it again over the same files, which may have
            got longer, and then others, goes on where it stopped.
        batch_events: Events per commit, at most; fewer where they are large (`BATCH_BYTES`). A
            batch never spans two files.

    Yields:
        What became of each batch; the next one is written when the iteration goes on.

    Raises:
        InvalidInputError: A file cannot be read, the files do not begin with the events that the
            query has read before, or see `write_changes`.
        FencedError: Batches that were committed are gone (`check_not_lost`), or another process of
            the query cuts other batches. Running it again goes on from what the table has.
    """
    if query_id is None:
        for path in paths:
            for events in read_events(path, batch_events):
                yield write_batch(plan.refreshed(), events, None)
        return
    query = _Query.of(plan, query_id)
    for path in paths:
        for events in read_events(path, batch_events):
            passed = query.pass_over(path, events)
            if passed:
                yield IngestResult(events=passed, repeated=True)
            if passed < events.num_rows:
                yield from query.take(path, events.slice(passed))
    query.check_passed()
    yield from query.write_waiting(known=False)


@dataclass(slots=True)
class _Query:
    """How far a query is in its files.

    Attributes:
        number: Of the next batch.
        read: Events that were read.
        done: The last batch that is known to be committed, and where it ends (`_end`).
        behind: Events that a run before has read; 0: it has not said.
        letters_end: Where the events end whose bad records are put aside (`_end`).
        waiting: Events in front of that end.
    """

    plan: SinkPlan
    query_id: str
    number: int = 0
    read: int = 0
    done: tuple[BatchId, str] | None = None
    behind: int = 0
    letters_end: str = ""
    waiting: list[tuple[Path, pa.Table]] = field(default_factory=list)

    @classmethod
    def of(cls, plan: SinkPlan, query_id: str) -> _Query:
        """As the table says; what an older release wrote only has its number."""
        query = cls(plan, query_id)
        state = plan.environment.catalog.load_table(plan.identifier)
        found = committed(state, plan.branch, query_id)
        end = "" if found is None else found.source.get(SOURCE_EVENTS, "")
        behind = _events_before(end)
        if plan.dead_letter is not None:
            uuid = state.metadata.table_uuid
            letters = letters_batch(BatchId(query_id, 0), uuid, plan.branch)
            table = plan.environment.catalog.load_table(plan.dead_letter)
            aside = committed(table, MAIN_BRANCH, letters.query_id)
            query.letters_end = "" if aside is None else aside.source.get(SOURCE_EVENTS, "")
        if found is not None and behind is not None:
            query.done = BatchId(query_id, found.number), end
            query.number, query.behind = found.number + 1, behind
        return query

    def pass_over(self, path: Path, events: pa.Table) -> int:
        """How many of the next events of a file a run before has read."""
        passed = min(max(self.behind - self.read, 0), len(events))
        self.read += passed
        if passed and self.read == self.behind:
            assert self.done is not None
            if _end(path, events.slice(0, passed), self.read) != self.done[1]:
                raise self._other_files()
        return passed

    def check_passed(self) -> None:
        """Refuse files that are shorter than what was read before."""
        if self.read < self.behind:
            raise self._other_files()

    def _other_files(self) -> InvalidInputError:
        return InvalidInputError(
            f"the files do not begin with the {self.behind:,} events that this query has read",
            action="give the files of before, then new ones; or other files another query id",
            table=".".join(self.plan.identifier),
            query_id=self.query_id,
        )

    def take(self, path: Path, events: pa.Table) -> Iterator[IngestResult]:
        """Stage the next events, as soon as it is known whether their bad records are put aside."""
        waiting = sum(each.num_rows for _, each in self.waiting)
        end = _events_before(self.letters_end) or 0
        ahead = max(end - self.read - waiting, 0)
        first, rest = events.slice(0, ahead), events.slice(ahead)
        if first.num_rows:
            self.waiting.append((path, first))
            if ahead == first.num_rows:
                yield from self.write_waiting(known=_end(path, first, end) == self.letters_end)
            elif waiting > _WAITING_MAX:  # they were read before, but the branch was moved back
                yield from self.write_waiting(known=False)
        if rest.num_rows:
            yield self._write(path, rest, known=False)

    def write_waiting(self, *, known: bool) -> Iterator[IngestResult]:
        """Stage what waits, whose bad records are put aside if they are known."""
        for path, events in self.waiting:
            yield self._write(path, events, known=known)
        self.waiting.clear()

    def _write(self, path: Path, events: pa.Table, *, known: bool) -> IngestResult:
        batch, begin = BatchId(self.query_id, self.number), self.read
        self.read += events.num_rows
        end = _end(path, events, self.read)
        plan = self.plan.refreshed()

        def known_letters(source: Mapping[str, str]) -> ArePutAside | None:
            said = source.get(SOURCE_EVENTS, "")
            if said == end or (known and said == self.letters_end):
                return lambda positions: pa.repeat(True, len(positions))
            if said == self.letters_end or (_events_before(said) or 0) <= begin:
                return None
            raise self._overtaken()

        result = write_batch(
            plan, events, batch,
            summary={SOURCE_EVENTS: end}, known_letters=known_letters, check=self._check,
        )  # fmt: skip
        if result.bad_records and not known:
            self.letters_end = end
        self.number += 1
        self.done = batch, end
        if result.commit is None:  # it was there by then: our own, or one of another process
            self._check(plan.environment.catalog.load_table(plan.identifier))
        return result

    def _check(self, state: TableState) -> None:
        if self.done is None:
            return
        batch, end = self.done
        check_not_lost(state, self.plan.branch, batch, action=_AGAIN)
        found = committed(state, self.plan.branch, self.query_id)
        if found is None:
            return
        said = found.source.get(SOURCE_EVENTS, end)
        is_behind = (_events_before(said) or 0) < (_events_before(end) or 0)
        if said != end and (found.number == batch.number or is_behind):
            raise self._overtaken()

    def _overtaken(self) -> FencedError:
        return FencedError(
            "another process of this query reads other files, or in other batches",
            action=f"end it; then {_AGAIN}",
            table=".".join(self.plan.identifier),
            query_id=self.query_id,
            batch_id=self.number,
        )


def _events_before(end: str) -> int | None:
    return parse_decimal(end.partition(" ")[0])


def _end(path: Path, events: pa.Table, read: int) -> str:
    """Where a batch ends: how many events were read, and a digest of what the last one is of."""
    if path.suffix == PARQUET_SUFFIX:
        with path.open("rb") as source:
            source.seek(-min(path.stat().st_size, _FOOTER_BYTES), os.SEEK_END)
            last = source.read()
    else:
        last = events[VALUE][-1].as_py() or b""
    return f"{read} {hashlib.blake2b(last, digest_size=_DIGEST_BYTES).hexdigest()}"


def read_events(path: Path, batch_events: int) -> Iterator[pa.Table]:
    """The events of one file in batches, with file and line (or row) as their position.

    Raises:
        InvalidInputError: The file does not exist or cannot be read.
    """
    if batch_events < 1:
        raise InvalidInputError("a batch needs at least one event", batch_events=batch_events)
    read = _parquet_rows if path.suffix == PARQUET_SUFFIX else _json_lines
    first = 0
    try:
        for events in read(path, min(batch_events, sys.maxsize)):
            yield _placed(events, path, first)
            first += events.num_rows
    except UnicodeEncodeError as error:
        raise InvalidInputError("cannot read events: the name is not UTF-8", file=path) from error
    except (OSError, EOFError, zlib.error, pa.ArrowInvalid) as error:
        why = getattr(error, "strerror", None) or error
        raise InvalidInputError(f"cannot read events: {why}", file=path) from error


def _parquet_rows(path: Path, most: int) -> Iterator[pa.Table]:
    # In nanoseconds, INT96's years beyond 2262 would be others, without a word.
    with pq.ParquetFile(path, coerce_int96_timestamp_unit="us") as source:
        groups = map(source.metadata.row_group, range(source.num_row_groups))
        size_bytes = max(sum(group.total_byte_size for group in groups), 1)
        fitting = max(BATCH_BYTES * source.metadata.num_rows // size_bytes, 1)
        for batch in source.iter_batches(batch_size=min(most, fitting)):
            yield pa.Table.from_batches([batch])


def _json_lines(path: Path, most: int) -> Iterator[pa.Table]:
    with _open_lines(path) as lines:
        while values := [line.rstrip(b"\r\n") or None for line in islice(_fitting(lines), most)]:
            yield pa.table({VALUE: pa.array(values, pa.binary())})


def _fitting(lines: IO[bytes]) -> Iterator[bytes]:
    """The next lines, until they are `BATCH_BYTES`."""
    size_bytes = 0
    for line in lines:
        yield line
        size_bytes += len(line)
        if size_bytes >= BATCH_BYTES:
            return


@contextmanager
def _open_lines(path: Path) -> Iterator[IO[bytes]]:
    """A file, or standard input for `-`; decompressed if it begins as gzip does."""
    with nullcontext(_standard_input()) if path == STANDARD_INPUT else path.open("rb") as source:
        # Of a pipe, the first bytes may be looked at but not read twice.
        if source.peek(len(GZIP_MAGIC))[: len(GZIP_MAGIC)] != GZIP_MAGIC:
            yield source
            return
        with gzip.open(source) as plain:
            yield cast("IO[bytes]", plain)


def _standard_input() -> io.BufferedReader:
    stream: Any = sys.stdin.buffer
    return stream if isinstance(stream, io.BufferedReader) else io.BufferedReader(stream)


def _placed(events: pa.Table, path: Path, first: int) -> pa.Table:
    """The events with their order in the file, and their place for people, counted from 1."""
    numbers = np.arange(first, first + events.num_rows, dtype=np.int64)
    texts = pa.array(numbers + 1).cast(pa.string())
    name = path.name.encode(errors="backslashreplace").decode()  # it may be no UTF-8
    columns = {
        ORDINAL: pa.array(numbers),
        POSITION: pc.binary_join_element_wise(name, texts, ":"),
    }
    for added, column in columns.items():
        if added not in events.column_names:
            events = events.append_column(added, column)
    return events
