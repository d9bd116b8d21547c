"""IMMUTABLE columns of changes that are committed directly: statements, appends, picked snapshots.

```
files that come ─> key, IMMUTABLE columns ─┐
                                           ├─> all rows of a key agree, or refused
live rows of these keys in the head ───────┘
live rows that go ─> their key comes, or refused where deletes are forbidden
```

Held against the head that the change was planned on, and again before each attempt against the one
that it is to follow. Staged changes are held against each other when they are published
(`resolver.immutable_check`), by the same comparison.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from pyiceberg.table.snapshots import Operation, Snapshot

from tableformat.array_types import Int64s
from tableformat.catalog.base import TableState
from tableformat.codec.puffin.deletion_vector import Positions, build_positions, position_array
from tableformat.codec.puffin.dv_file import read_deletion_vectors
from tableformat.commit.branch_history import SnapshotChanges, head_of
from tableformat.commit.changeset import Changeset
from tableformat.commit.engine import CommitResult, commit
from tableformat.commit.swap import check_same_table
from tableformat.environment import Environment
from tableformat.errors import CommitConflictError, InvalidInputError, TableError
from tableformat.integer_order import distinct, stable_order
from tableformat.lookup.keys import KeyColumns, parse_keys
from tableformat.lookup.live_rows import live_rows_of_keys
from tableformat.lookup.locator import LiveRows
from tableformat.lookup.snapshot_rows import RowCaches, RowsOfFile, SnapshotRows
from tableformat.lookup.written_rows import number_keys, read_written
from tableformat.scan.plan import plan_scan
from tableformat.spec.arrow_arrays import python_rows
from tableformat.spec.constraints import ImmutableColumns, immutable_columns
from tableformat.spec.data_file import DataFile, FileContent
from tableformat.write.partitioning import encode_values


def enforced_columns(state: TableState) -> ImmutableColumns | None:
    """The table's IMMUTABLE constraint if it is enforced."""
    constraint = immutable_columns(state.metadata)
    return constraint if constraint is not None and constraint.enforced else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ImmutableCheck:
    """Rows that come and go, held against the rows that a branch has.

    Memory: the key and the IMMUTABLE columns of all rows that come, and of the rows of their keys.

    Attributes:
        environment: Where files and the index are.
        state: The table that the change was planned on.
        branch: The branch that changes.
        files: Data files of rows that come.
        gone: Positions of rows that go, by data file path.
    """

    environment: Environment
    state: TableState
    branch: str
    files: Sequence[DataFile]
    gone: Mapping[str, Positions] = field(default_factory=dict)

    def check(self) -> None:
        """Hold the change against the branch as it was planned on.

        Raises:
            InvalidInputError: A value would change, or a row go where deletes are forbidden. The
                files are safe to delete.
        """
        constraint = enforced_columns(self.state)
        if constraint is None:
            return
        try:
            self._hold(self.state, constraint)
        except TableError as error:
            error.files_safe_to_delete = True  # no commit was begun
            raise

    def check_head(self, state: TableState) -> None:
        """Hold it against the branch's head, if that or the constraint is another one by now.

        Raises:
            CommitConflictError: The constraint was declared meanwhile, what landed excludes it, or
                it is another table.
        """
        check_same_table(state, self.state.metadata.table_uuid)
        constraint, planned = enforced_columns(state), enforced_columns(self.state)
        if constraint is None:
            return
        where = {"table": state.name, "branch": self.branch, "action": "run it again"}
        if planned is None or _meaning(planned) != _meaning(constraint):
            raise CommitConflictError("the IMMUTABLE constraint was changed meanwhile", **where)
        if head_of(state, self.branch) == head_of(self.state, self.branch):
            return
        try:
            self._hold(state, constraint)
        except InvalidInputError as error:
            raise CommitConflictError(
                "IMMUTABLE columns would change, with what landed since the scan", **where
            ) from error

    def _hold(self, state: TableState, constraint: ImmutableColumns) -> None:
        schema, head = state.metadata.schema(), head_of(state, self.branch)
        ids = sorted(schema.identifier_field_ids)
        key = KeyColumns.of(schema, ids, what="the primary key")
        columns = KeyColumns.of(schema, [*{*ids, *constraint.field_ids}], what="the constraint")
        come = read_written(self.environment, state.metadata, columns, self.files)
        keys = parse_keys(come.select(list(key.names)), key)
        number = number_keys(keys)
        versions = [come]
        if head is not None:
            plan = plan_scan(self.environment, state, snapshot_id=head.snapshot_id, schema=schema)
            caches = RowCaches(self.environment, cache_bytes=1)
            try:
                stored = SnapshotRows(self.environment, plan, caches)
                numbers = distinct(number)
                rows = self._live(state, head, key, keys.take(pa.array(numbers)))
                if constraint.forbids_deletes:
                    self._check_deletes(state, constraint, stored, rows, key)
                found = stored.by_file(rows.paths, rows.file, rows.position)
                assert found is not None  # both are of one snapshot
                there, ordinal = _read(stored, found, columns)
            finally:
                caches.close()
            versions = [there, come]
            number = np.concatenate([numbers[rows.key[ordinal]], number])
        together = {name: _one(versions, name) for name in columns.names}
        check_versions(
            state,
            constraint,
            number,
            together,
            problem="the change breaks the IMMUTABLE constraint; nothing was committed",
            repair="correct the rows",
        )

    def _live(self, state: TableState, head: Snapshot, key: KeyColumns, keys: pa.Table) -> LiveRows:
        if keys.num_rows:
            return live_rows_of_keys(self.environment, state, head, self.branch, key, keys)
        none = np.empty(0, dtype=np.int64)
        return LiveRows(key=none, file=none, position=none, paths=())

    def _check_deletes(
        self,
        state: TableState,
        constraint: ImmutableColumns,
        stored: SnapshotRows,
        comes_back: LiveRows,
        key: KeyColumns,
    ) -> None:
        """What is not live any more is the commit's own concern."""
        ordinal = {path: i for i, path in enumerate(comes_back.paths)}
        for path, gone in self.gone.items():
            known = comes_back.position[comes_back.file == ordinal.get(path, -1)]
            at = position_array(gone - build_positions(known))
            task = stored.task(path)
            if task is None or not (alive := stored.live(task, at)).any():
                continue
            one = RowsOfFile(task, at[alive][:1], np.zeros(1, dtype=np.int64))
            raise deleted_row_error(
                state,
                constraint,
                python_rows(_read(stored, [one], key)[0])[0],
                problem="the change deletes a row, and the IMMUTABLE constraint is enforced; "
                "nothing was committed",
                repair="keep the row",
            )


def commit_rows(environment: Environment, state: TableState, changeset: Changeset) -> CommitResult:
    """Commit data files that bring whole rows, unless that breaks an enforced constraint.

    Args:
        environment: Catalog, store, clock.
        state: The table that the change was planned on.
        changeset: An append or an overwrite. That an overwrite deletes is its caller's concern.

    Raises:
        InvalidInputError: A value of an IMMUTABLE column would change; the files are deleted.
        TableError: See `commit`.
    """
    check = ImmutableCheck(
        environment=environment,
        state=state,
        branch=changeset.branch,
        files=changeset.added_data_files,
    )
    try:
        check.check()
    except TableError:
        environment.store.delete([file.file_path for file in check.files])
        raise
    return commit(environment, state.identifier, changeset, check=check.check_head)


def check_picked(
    environment: Environment, branch: str, state: TableState, changes: SnapshotChanges
) -> None:
    """Refuse to take over a snapshot that breaks an enforced constraint on `branch`.

    Rewrites change no row and are not read.

    Raises:
        InvalidInputError: It does; or deletes are forbidden, and it has some whose rows only a
            publish finds.
    """
    constraint = enforced_columns(state)
    if constraint is None or changes.operation == Operation.REPLACE:
        return
    others = [each for each in changes.added_deletes if not each.data_file.is_dv]
    if others and constraint.forbids_deletes:
        raise InvalidInputError(
            "cannot pick a snapshot with equality or position deletes: the IMMUTABLE constraint is "
            "enforced",
            table=state.name,
            snapshot_id=changes.snapshot.snapshot_id,
            constraint=constraint.name,
            action="stage the change and run resolve",
        )
    ImmutableCheck(
        environment=environment,
        state=state,
        branch=branch,
        files=[each.data_file for each in changes.added_data],
        gone=_gone(environment, changes) if constraint.forbids_deletes else {},
    ).check()


def check_versions(
    state: TableState,
    constraint: ImmutableColumns,
    number: Int64s,
    columns: Mapping[str, pa.Array],
    *,
    problem: str,
    repair: str,
) -> None:
    """Refuse rows of one key that differ in an IMMUTABLE column; null is a value like others.

    Args:
        state: The table.
        constraint: Its constraint.
        number: Shape `(rows,)`: equal for rows of one key; of these the first one is the oldest.
        columns: Key columns and IMMUTABLE ones by name, of the same rows.
        problem: What is wrong then.
        repair: What to do.

    Raises:
        InvalidInputError: Names the first key, the columns and values.
    """
    schema = state.metadata.schema()
    key = [str(schema.find_column_name(i)) for i in sorted(schema.identifier_field_ids)]
    compared = [name for name in constraint.columns if name not in key]
    if not compared or not len(number):
        return
    order = stable_order(number)
    is_first = np.r_[True, number[order][1:] != number[order][:-1]]
    first = order[is_first][np.cumsum(is_first) - 1]  # the oldest known row of each row's key
    wrong = {
        name: _codes(columns[name], order) != _codes(columns[name], first) for name in compared
    }
    differs = np.logical_or.reduce(list(wrong.values()))
    if not differs.any():
        return
    at = int(np.flatnonzero(differs)[0])
    old, new = int(first[at]), int(order[at])
    names = [name for name in compared if wrong[name][at]]
    raise InvalidInputError(
        problem,
        action=f"{repair}, or stop enforcing: icefold table immutable {state.name} --columns "
        f"{','.join(constraint.columns)} --not-enforced",
        table=state.name,
        constraint=constraint.name,
        key={name: columns[name][new].as_py() for name in key},
        column=",".join(names),
        old=[columns[name][old].as_py() for name in names],
        new=[columns[name][new].as_py() for name in names],
        keys_broken=len(distinct(number[order][differs])),
    )


def deleted_row_error(
    state: TableState,
    constraint: ImmutableColumns,
    key: Mapping[str, object],
    *,
    problem: str,
    repair: str,
) -> InvalidInputError:
    """The error for a row that goes where the constraint forbids it."""
    return InvalidInputError(
        problem,
        action=f"{repair}, or enforce it except for deletes: icefold table immutable {state.name} "
        f"--columns {','.join(constraint.columns)} --enforced-except-delete",
        table=state.name,
        constraint=constraint.name,
        key=dict(key),
    )


def _codes(column: pa.Array, rows: Int64s) -> Int64s:
    codes: Int64s = encode_values(column)[0][rows]
    return codes


def _meaning(constraint: ImmutableColumns) -> tuple[object, ...]:
    return constraint.field_ids, constraint.forbids_deletes


def _read(
    stored: SnapshotRows, rows: Sequence[RowsOfFile], columns: KeyColumns
) -> tuple[pa.Table, Int64s]:
    found, ordinal = stored.read(rows, columns.roots)
    leaves = [columns.leaf(found, i) for i in range(len(columns.names))]
    return pa.table(leaves, names=list(columns.names)), ordinal


def _one(versions: Sequence[pa.Table], name: str) -> pa.Array:
    """A column of all versions; its type is that of the first."""
    kind = versions[0].schema.field(name).type
    chunks = [chunk for each in versions for chunk in each.column(name).chunks]
    return (
        pa.concat_arrays([chunk if chunk.type == kind else chunk.cast(kind) for chunk in chunks])
        if chunks
        else pa.nulls(0, kind)
    )


def _gone(environment: Environment, changes: SnapshotChanges) -> dict[str, Positions]:
    """Rows of older files that a snapshot kills, by its vectors and by dropping files."""
    came = {each.data_file.file_path for each in changes.added_data}
    dead: dict[str, Positions] = {}
    for entry in changes.removed:
        file = entry.data_file
        if file.content == FileContent.DATA:
            dead[file.file_path] = build_positions(np.arange(file.record_count))
    vectors = [each.data_file for each in changes.added_deletes if each.data_file.is_dv]
    read = read_deletion_vectors(environment.store, [(each, None) for each in vectors])
    for file, positions in zip(vectors, read, strict=True):
        path = str(file.referenced_data_file)
        if path not in came:
            dead[path] = positions
    return dead
