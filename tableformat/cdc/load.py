"""Files into a table as plain appends on `main`, while its changes are being staged.

Staged changes count as newer than all that `main` has when they are published, so a change wins
over a loaded row whenever it was staged, if only nothing is published until the load is through:

1. the first piece is written, so that files which do not fit fail before anything has begun; a
   table property says that a load goes on. While it stands, no change is published: `resolve`
   does nothing, and a publish that had begun is refused;
2. the pieces of the files are appended, one commit each, with the load's name and the number of
   the piece in the summary (`batch_commit`): each piece lands once, whatever is repeated. A commit
   is refused if changes were published since 1 nevertheless;
3. the property is taken away.

Killed anywhere, the same call goes on behind the last piece that landed; the files of a piece that
did not are left to orphan removal.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

import pyarrow as pa

from tableformat.catalog.base import Identifier, TableState
from tableformat.cdc.batch_commit import BatchId, check_not_lost, commit_batch, committed_batch
from tableformat.cdc.load_source import LoadSource, Part
from tableformat.cdc.row_codec import key_columns
from tableformat.commit.branch_history import snapshots_by_id
from tableformat.commit.carried_properties import load_carried
from tableformat.commit.changeset import CommitKind
from tableformat.commit.evolution import decide_properties, update_properties
from tableformat.commit.request import check_writable
from tableformat.environment import Environment
from tableformat.errors import FencedError, InvalidInputError
from tableformat.paths import data_file_locations
from tableformat.spec.constraints import immutable_columns
from tableformat.spec.data_file import DataFile
from tableformat.spec.names import LOAD, MAIN_BRANCH
from tableformat.write.data_files import write_data_files

QUERY_PREFIX = "load:"
COUNT = "count_all"


@dataclass(frozen=True, slots=True)
class LoadRecord:
    """What the table's property says of the load that goes on.

    `cursor`: the staged snapshot that was published last when it began; None: none was.
    """

    load: str
    cursor: str | None


@dataclass(frozen=True, slots=True)
class LoadResult:
    """What was loaded: by this call, and `skipped_pieces` by earlier ones."""

    rows: int = 0
    data_files: int = 0
    pieces: int = 0
    skipped_pieces: int = 0


def read_load(state: TableState) -> LoadRecord | None:
    """The load that goes on; None: there is none. What cannot be read is one, too."""
    text = state.metadata.properties.get(LOAD)
    if text is None:
        return None
    try:
        return LoadRecord(**json.loads(text))
    except (ValueError, TypeError):
        return LoadRecord(text, None)


def load_files(
    environment: Environment,
    identifier: Identifier,
    source: LoadSource,
    *,
    assume_new_keys: bool = False,
    progress: Callable[[LoadResult], None] = lambda _: None,
) -> LoadResult:
    """Append the rows of files to `main`; see the module's text.

    Args:
        environment: Catalog, store, clock.
        identifier: A table with a primary key.
        source: The files.
        assume_new_keys: No key of the files is in the table, or was deleted by a published change.
            Without it the table must be empty, and no change published.
        progress: Told after each piece.

    Raises:
        InvalidInputError: The table is not empty; another load is unfinished; a key is twice in a
            piece; a row does not fit. Nothing is begun where the columns of a file do not fit, or
            a row of the first piece: the corrected files can be loaded.
        FencedError: Changes were published since the load began, or pieces of it are gone.
        TableError: The store or catalog failed. The same call goes on.

    Effects: see the module's text.
    """
    state = environment.catalog.load_table(identifier)
    _check_table(state)
    record = read_load(state)
    former = QUERY_PREFIX + source.former_fingerprint()
    done = committed_batch(state, MAIN_BRANCH, former)
    is_former = done is not None if record is None else record.load == former
    query = former if is_former else QUERY_PREFIX + source.fingerprint()
    if not is_former:
        done = committed_batch(state, MAIN_BRANCH, query)
    pieces = source.pieces(state.metadata.schema() if record is None and done is None else None)
    result = LoadResult(skipped_pieces=0 if done is None else done + 1)
    left = pieces[result.skipped_pieces :]
    ahead: list[DataFile] | None = None
    if record is None:
        if done is not None and not left:
            return LoadResult(skipped_pieces=len(pieces))
        if not assume_new_keys:
            _check_empty(state)
        if left:
            ahead = _write(environment, state, source, left[0])
        record = _begin(environment, identifier, query, done, assume_new_keys=assume_new_keys)
    if record.load != query:
        raise InvalidInputError(
            "a load of other files is unfinished on the table",
            action="run that one again with the files as they were, or end it with --abandon",
            table=state.name,
            load=record.load,
        )
    for number, piece in enumerate(left, result.skipped_pieces):
        result = _load_piece(
            environment, identifier, source, piece, record, number, result, written=ahead
        )
        ahead = None
        progress(result)
    environment.runtime.fail_point("load.before_end")
    _end(environment, identifier, record, len(pieces))
    return result


def _begin(
    environment: Environment,
    identifier: Identifier,
    query: str,
    done: int | None,
    *,
    assume_new_keys: bool,
) -> LoadRecord:
    def decide(now: TableState) -> tuple[Mapping[str, str], Sequence[str]]:
        if read_load(now) is not None:  # begun by another process meanwhile
            return {}, ()
        if committed_batch(now, MAIN_BRANCH, query) != done:
            raise _overtaken(now, query)
        if not assume_new_keys:
            _check_empty(now)
        return {LOAD: json.dumps(asdict(LoadRecord(query, _cursor(now))))}, ()

    record = read_load(decide_properties(environment, identifier, decide))
    assert record is not None
    environment.runtime.fail_point("load.begun")
    return record


def _end(environment: Environment, identifier: Identifier, record: LoadRecord, pieces: int) -> None:
    def decide(now: TableState) -> tuple[Mapping[str, str], Sequence[str]]:
        if read_load(now) != record:  # abandoned, and perhaps another one has begun
            return {}, ()
        _check_goes_on(now, record, pieces)
        return {}, (LOAD,)

    decide_properties(environment, identifier, decide)


def abandon_load(environment: Environment, identifier: Identifier) -> bool:
    """Let changes be published again; what was loaded stays. False: no load was unfinished."""
    state = environment.catalog.load_table(identifier)
    if LOAD not in state.metadata.properties:
        return False
    update_properties(environment, identifier, removals=[LOAD])
    return True


def _load_piece(
    environment: Environment,
    identifier: Identifier,
    source: LoadSource,
    piece: Sequence[Part],
    record: LoadRecord,
    number: int,
    before: LoadResult,
    *,
    written: list[DataFile] | None,
) -> LoadResult:
    state = environment.catalog.load_table(identifier)
    _check_goes_on(state, record, number)
    files = _write(environment, state, source, piece) if written is None else written
    environment.runtime.fail_point("load.before_commit")
    commit_batch(
        environment,
        identifier,
        branch=MAIN_BRANCH,
        kind=CommitKind.APPEND,
        batch=BatchId(record.load, number),
        data_files=files,
        check=lambda now: _check_goes_on(now, record, number),
        is_mark=True,
    )
    environment.runtime.fail_point("load.after_commit")
    return LoadResult(
        rows=before.rows + sum(each.record_count for each in files),
        data_files=before.data_files + len(files),
        pieces=before.pieces + 1,
        skipped_pieces=before.skipped_pieces,
    )


def _write(
    environment: Environment, state: TableState, source: LoadSource, piece: Sequence[Part]
) -> list[DataFile]:
    metadata = state.metadata
    key = key_columns(metadata.schema())
    keys: list[pa.RecordBatch] = []

    def rows() -> Iterator[pa.RecordBatch]:
        for batch in source.rows(piece, metadata.schema()):
            if set(key) <= set(batch.schema.names):
                keys.append(batch.select(key))
            yield batch

    files = write_data_files(
        environment.store,
        rows(),
        schema=metadata.schema(),
        spec=metadata.spec(),
        properties=metadata.properties,
        location_for=data_file_locations(metadata, environment.runtime.ids),
    )
    _check_unique(keys, key, piece)
    return files


def _check_unique(keys: list[pa.RecordBatch], key: Sequence[str], piece: Sequence[Part]) -> None:
    if not keys:
        return
    table = pa.Table.from_batches(keys)
    groups = table.group_by(list(key)).aggregate([([], COUNT)])
    if groups.num_rows < table.num_rows:
        twice = groups.filter(pa.compute.greater(groups.column(COUNT), 1)).slice(0, 1)
        raise InvalidInputError(
            "a key is in the files more than once",
            action="write each row once",
            key=twice.drop_columns([COUNT]).to_pylist()[0],
            file=piece[0].path,
        )


def _check_table(state: TableState) -> None:
    check_writable(state.metadata, table=state.name)
    state.required_key_ids("load into")
    constraint = immutable_columns(state.metadata)
    if constraint is not None and constraint.enforced:
        raise InvalidInputError(
            "rows of a load are not compared with others, and the IMMUTABLE constraint is enforced",
            table=state.name,
            constraint=constraint.name,
        )


def _check_empty(state: TableState) -> None:
    head = state.head(MAIN_BRANCH)
    summary = {} if head is None or head.summary is None else head.summary.additional_properties
    is_empty = head is None or summary.get("total-records") == "0"
    if is_empty and _cursor(state) is None:
        return
    raise InvalidInputError(
        "the table has rows or published changes, which loaded rows would not give way to"
        if is_empty
        else "the table has rows, and a load does not look for older rows of its keys",
        action="load into a new table, stage the rows, or say --assume-new-keys if no key is there "
        "or was deleted",
        table=state.name,
    )


def _cursor(state: TableState) -> str | None:
    head = state.head(MAIN_BRANCH)
    head_id = None if head is None else head.snapshot_id
    return load_carried(snapshots_by_id(state.metadata), head_id).marker


def _check_goes_on(state: TableState, record: LoadRecord, number: int) -> None:
    """`number`: so many pieces have landed."""
    if read_load(state) != record:
        raise _overtaken(state, record.load)
    if _cursor(state) != record.cursor:
        raise FencedError(
            "changes were published since the load began: loaded rows could replace newer ones",
            action="end it with --abandon, and load into a new table",
            table=state.name,
        )
    check_not_lost(
        state,
        MAIN_BRANCH,
        BatchId(record.load, number - 1) if number else None,
        action="run the same load again: it goes on behind the last piece that is there",
    )


def _overtaken(state: TableState, query: str) -> FencedError:
    return FencedError(
        "another process has ended the load, or abandoned it, or begun another one",
        action="run the same load again: it does nothing if all is there",
        table=state.name,
        load=query,
    )
