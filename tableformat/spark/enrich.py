"""Lookup join: a stream or a frame gets the columns of a table's rows with the same key.

```
rows ──> tasks: key columns ─> Lookup (index on this machine, else a pruned scan) ─> rows + columns
```

No state is kept for the join and nothing is shuffled: each task asks for the keys of its rows.
Tasks of one Python worker share open files and caches. A batch frame is joined with the snapshot
that the table had when `enrich` was called; a stream with the head at the moment of each lookup, or
one that was the head not longer ago than allowed. Lookups of several batches of rows are under way
at the same time; rows keep their order.

On several machines the index must be where the tasks run: without one, tasks scan the files that
may hold their keys, which is right and slower.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Literal, Protocol, cast

import numpy as np
import pyarrow as pa
from pyiceberg.schema import Schema
from pyspark.sql import DataFrame
from pyspark.sql import types as spark
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from tableformat.backend import open_backend
from tableformat.catalog.base import Catalog, Identifier, TableState
from tableformat.catalog.pinned import PinnedCatalog
from tableformat.environment import Environment
from tableformat.errors import InvalidInputError, StoreUnavailableError, error_context
from tableformat.integer_order import stable_order
from tableformat.lookup.result import LookupResult
from tableformat.lookup.session import Lookup
from tableformat.spark.arrow_scan import check_reachable
from tableformat.spark.types import spark_schema, to_spark_batch
from tableformat.spec.secondary_indexes import secondary_indexes
from tableformat.store.base import ObjectStore

How = Literal["left", "inner"]
LOOKUPS_MAX = 4  # kept per worker, with their caches
_WAIT_S = (0.1, 5.0)  # first and longest pause between tries


class LookedUp(Protocol):
    """What is asked of the table that is looked up: a `Table`."""

    @property
    def environment(self) -> Environment:
        """Catalog and store."""

    @property
    def state(self) -> TableState:
        """As last loaded."""

    def refresh(self) -> LookedUp:
        """Load the state anew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Join:
    """What a task needs. Pickles.

    Attributes:
        identifier: The table.
        pinned: Its version; None: the head when a task runs.
        store: Reads the pinned version's files.
        catalog: Name and properties of the catalog, to ask for the head.
        index: The secondary index; None: the primary key's.
        on: Key column by column of the frame.
        schema: The table's columns wanted, all optional.
        names: Their names in the result.
        how: `left` keeps rows without a match.
        concurrency: Lookups of a task that are under way at the same time.
        retries: How often a lookup is tried again while a store does not answer.
        head_age_max_ms: How long ago the version that is read may have been the head.
    """

    identifier: Identifier
    pinned: PinnedCatalog | None
    store: ObjectStore | None
    catalog: tuple[str, Mapping[str, str]] | None
    index: str | None
    on: Mapping[str, str]
    schema: Schema
    names: tuple[str, ...]
    how: How
    concurrency: int
    retries: int
    head_age_max_ms: int

    def environment(self) -> Environment:
        """Where a task looks up."""
        if self.pinned is not None and self.store is not None:
            return Environment(cast("Catalog", self.pinned), self.store)
        assert self.catalog is not None
        return open_backend(*self.catalog)

    @property
    def key(self) -> tuple[object, ...]:
        """What lookups that may be shared have in common."""
        place = self.pinned.state.metadata_location if self.pinned else repr(self.catalog)
        return (self.identifier, place)


def enrich(
    frame: DataFrame,
    table: LookedUp,
    *,
    on: str | Sequence[str] | Mapping[str, str],
    columns: Sequence[str] | None = None,
    how: How = "left",
    prefix: str = "",
    concurrency: int = 4,
    retries: int = 3,
    head_age_max_ms: int = 0,
) -> DataFrame:
    """Add columns of a table to the rows of a stream or frame, found by key.

    Args:
        frame: Streaming or not.
        table: The table that is looked up; refreshed.
        on: The key columns: the primary key's, or those of a declared index. A dict maps columns of
            the frame to columns of the table where names differ.
        columns: Columns of the table to add; None: all but the key's.
        how: `left` keeps rows without a match, with NULL; `inner` drops them. A key with several
            rows gives a row for each. NULL matches nothing, as in SQL.
        prefix: Put before the names of the columns that are added.
        concurrency: Lookups of one task that are under way at the same time, one for each batch of
            rows that Spark hands over (`spark.sql.execution.arrow.maxRecordsPerBatch`); as many
            batches are in memory. Rows keep their order.
        retries: How often a lookup is tried again while the catalog or the store does not answer;
            every other error fails the task at once.
        head_age_max_ms: For streams: rows come from a version that was the head not longer ago than
            this; 0: each lookup asks the catalog for the head.

    Raises:
        InvalidInputError: The columns are no key or index of the table, a column is unknown, two
            columns of the result would have the same name, or a number is out of range.
        UnsupportedError: Tasks cannot reach the store, because it lives in this process.
    """
    _check_numbers(how, concurrency, retries, head_age_max_ms)
    if head_age_max_ms and not frame.isStreaming:
        raise InvalidInputError(
            "head_age_max_ms has no effect on a batch: it is joined with the snapshot at the call",
            action="leave it out",
        )
    environment, state = table.environment, table.refresh().state
    by_frame = _key_columns(frame, on)
    index = _index_on(state, list(by_frame.values()))
    schema = _added_schema(state.metadata.schema(), columns, set(by_frame.values()))
    names = tuple(prefix + field.name for field in schema.fields)
    _check_names(frame, names)
    catalog = (environment.catalog.name, dict(environment.catalog.properties))
    if not frame.isStreaming:
        check_reachable(environment.store)
    join = _Join(
        identifier=state.identifier,
        pinned=None if frame.isStreaming else PinnedCatalog.of(*catalog, state),
        store=None if frame.isStreaming else environment.store,
        catalog=catalog if frame.isStreaming else None,
        index=index,
        on=by_frame,
        schema=schema,
        names=names,
        how=how,
        concurrency=concurrency,
        retries=retries,
        head_age_max_ms=head_age_max_ms,
    )
    fields = [
        spark.StructField(name, field.dataType, nullable=True)
        for name, field in zip(names, spark_schema(schema).fields, strict=True)
    ]
    result = spark.StructType([*frame.schema.fields, *fields])
    run: Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]] = partial(_run, join=join)
    return frame.mapInArrow(run, result)


def _check_numbers(how: str, concurrency: int, retries: int, head_age_max_ms: int) -> None:
    if how not in ("left", "inner"):
        raise InvalidInputError("enrich joins left or inner", how=repr(how))
    if concurrency < 1 or retries < 0 or head_age_max_ms < 0:
        raise InvalidInputError(
            "enrich needs a concurrency of at least 1, and retries and age of at least 0",
            concurrency=concurrency,
            retries=retries,
            head_age_max_ms=head_age_max_ms,
        )


def _run(batches: Iterable[pa.RecordBatch], *, join: _Join) -> Iterator[pa.RecordBatch]:
    """Runs on a worker: each batch with the columns of its keys' rows."""
    return join_batches(batches, _lookup_of(join), join)


def join_batches(
    batches: Iterable[pa.RecordBatch], lookup: Lookup, join: _Join
) -> Iterator[pa.RecordBatch]:
    """Each batch with the table's columns, in order; `join.concurrency` of them are in memory.

    Raises:
        TableError: The first lookup, in the order of the batches, that failed for good. Those
            behind it end in the background, or never begin.
    """
    pool = ThreadPoolExecutor(join.concurrency, thread_name_prefix="icefold-enrich")
    running: deque[Future[pa.RecordBatch]] = deque()
    try:
        for batch in batches:
            if batch.num_rows:
                running.append(pool.submit(join_batch, batch, lookup, join))
            if len(running) == join.concurrency:
                yield running.popleft().result()
        while running:
            yield running.popleft().result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def join_batch(batch: pa.RecordBatch, lookup: Lookup, join: _Join) -> pa.RecordBatch:
    """One batch of the frame with the table's columns."""
    keys = {name: batch.column(column) for column, name in join.on.items()}
    complete = np.ones(batch.num_rows, dtype=np.bool_)
    for column in keys.values():
        complete &= column.is_valid().to_numpy(zero_copy_only=False)
    asked = np.flatnonzero(complete)
    taken = pa.array(asked)
    found = _find(lookup, {name: column.take(taken) for name, column in keys.items()}, join)
    left, right = asked[found.key], np.arange(len(found), dtype=np.int64)
    if join.how == "left":
        alone = np.setdiff1d(np.arange(batch.num_rows), left)
        left = np.concatenate([left, alone])
        right = np.concatenate([right, np.full(len(alone), -1, dtype=np.int64)])
        order = stable_order(left)
        left, right = left[order], right[order]
    rows = found.rows.combine_chunks().take(pa.array(right, mask=right < 0))
    added = _one_batch(rows)
    if len(left):
        added = to_spark_batch(added, join.schema)
    kept = batch.take(pa.array(left))
    return pa.RecordBatch.from_arrays(
        [*kept.columns, *added.columns], names=[*batch.schema.names, *join.names]
    )


def _find(lookup: Lookup, keys: Mapping[str, pa.Array], join: _Join) -> LookupResult:
    attempts_max = 1 + join.retries
    retrying = Retrying(
        stop=stop_after_attempt(attempts_max),
        wait=wait_random_exponential(multiplier=_WAIT_S[0], max=_WAIT_S[1]),
        retry=retry_if_exception_type(StoreUnavailableError),
        reraise=True,
    )
    with error_context(table=".".join(join.identifier)):
        try:
            return retrying(
                lookup.find,
                keys,
                [field.name for field in join.schema.fields],
                index=join.index,
                head_age_max_ms=join.head_age_max_ms,
            )
        except StoreUnavailableError as error:
            raise error.with_context(lookups_tried=attempts_max) from error.__cause__


def _one_batch(table: pa.Table) -> pa.RecordBatch:
    columns = [
        column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
        for column in table.columns
    ]
    # Rows without a match have NULL, also in required columns.
    schema = pa.schema([field.with_nullable(True) for field in table.schema])
    return pa.RecordBatch.from_arrays(columns, schema=schema)


_lookups: OrderedDict[tuple[object, ...], Lookup] = OrderedDict()


def _lookup_of(join: _Join) -> Lookup:
    """The worker's lookup of a table; kept between tasks."""
    found = _lookups.pop(join.key, None)
    if found is None:
        found = Lookup(join.environment(), join.identifier)
    _lookups[join.key] = found
    while len(_lookups) > LOOKUPS_MAX:
        _, oldest = _lookups.popitem(last=False)
        oldest.close()
    return found


def _key_columns(frame: DataFrame, on: str | Sequence[str] | Mapping[str, str]) -> dict[str, str]:
    if isinstance(on, str):
        on = [on]
    pairs = dict(on) if isinstance(on, Mapping) else {name: name for name in on}
    for name in pairs:
        if name not in frame.columns:
            raise InvalidInputError(
                f"the frame has no column {name!r}", columns=", ".join(frame.columns)
            )
    return pairs


def _index_on(state: TableState, columns: list[str]) -> str | None:
    """The index on exactly these columns; None for the primary key's."""
    wanted, schema = sorted(columns), state.metadata.schema()
    ids = sorted(schema.identifier_field_ids)
    key = [schema.find_column_name(field_id) or str(field_id) for field_id in ids]
    if wanted == sorted(key):
        return None
    declared = secondary_indexes(state.metadata)
    for index in declared.values():
        if sorted(index.columns) == wanted:
            return index.name
    known = [", ".join(key), *(", ".join(i.columns) for i in declared.values())]
    raise InvalidInputError(
        f"there is no index on {', '.join(columns)}",
        table=state.name,
        indexed=" | ".join(known),
        action="declare one with add_index, or join on the primary key",
    )


def _added_schema(table: Schema, columns: Sequence[str] | None, key: set[str]) -> Schema:
    by_name = {field.name: field for field in table.fields}
    names = [n for n in by_name if n not in key] if columns is None else list(columns)
    for name in names:
        if name not in by_name:
            raise InvalidInputError(f"there is no column {name!r}", columns=", ".join(by_name))
    fields = [by_name[name].model_copy(update={"required": False}) for name in names]
    return Schema(*fields)


def _check_names(frame: DataFrame, added: Sequence[str]) -> None:
    taken = [name.lower() for name in frame.columns]
    for name in added:
        if name.lower() in taken:
            raise InvalidInputError(
                f"two columns of the result would be called {name!r}",
                action="choose columns, or give a prefix",
            )
        taken.append(name.lower())
