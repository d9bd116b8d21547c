"""What one cycle has to resolve, read from the staged files: keys, orders, scopes.

The same shape serves both modes. On a separate staging branch the order of a commit is its staged
ordinal and the target's rows have `TARGET_ORDER`; where staging is the target, orders are data
sequence numbers and every row is already in the index.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from pyiceberg.table.metadata import TableMetadata
from pyroaring import BitMap64

from resolver.key_reader import FileKeys, KeyReader, file_keys, small_integers
from resolver.keys import EncodedKeys, KeySchema
from resolver.match import Int64s
from resolver.merge_deletes import DeadPositions
from resolver.position_files import read_position_file
from resolver.runner import LocalRunner, Runner, reading
from resolver.scopes import Scopes
from resolver.staged_snapshots import StagedSnapshot
from tableformat.codec.puffin.dv_file import read_deletion_vectors
from tableformat.environment import Environment
from tableformat.spec.data_file import DataFile
from tableformat.store.locations import requests_of
from tableformat.write.delete_scope import immutable_field_ids


@dataclass(frozen=True, slots=True)
class OrderedFile:
    """A file and the order of the commit it came with.

    Attributes:
        one_spec: Every file that was live with it has its partition spec.
        sequence_number: Of that commit, where it is a staged one.
        again: Orders of later commits that name the file, too: a writer that was not told of its
            success. Their own deletes do not reach the file's rows.
    """

    file: DataFile
    order: int
    one_spec: bool = False
    sequence_number: int = 0
    again: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedDeletes:
    """Equality deletes of one set of columns.

    Attributes:
        key: The columns.
        keys: n keys.
        order: Shape `(n,)`: order of the commit each came with.
        scope: Shape `(n,)`: where each reaches (`Scopes`).
        files: The delete files; `keys` are those of the first file, then of the next, and so on.
    """

    key: KeySchema
    keys: EncodedKeys
    order: Int64s
    scope: Int64s
    files: tuple[DataFile, ...] = ()

    def without(self, paths: Collection[str]) -> KeyedDeletes:
        """The deletes of the other files."""
        kept = np.array([file.file_path not in paths for file in self.files], dtype=np.bool_)
        if kept.all():
            return self
        rows = np.repeat(kept, [file.record_count for file in self.files])
        return replace(
            self,
            keys=self.keys.take(np.flatnonzero(rows)),
            order=self.order[rows],
            scope=self.scope[rows],
            files=tuple(file for file, keep in zip(self.files, kept, strict=True) if keep),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedPositions:
    """What one staged snapshot deletes by position in one data file.

    Attributes:
        path: The data file.
        positions: All positions of its deletion vector, or those of a position delete file.
        staged: The snapshot; a vector repeats what the one that it replaced deletes.
    """

    path: str
    positions: BitMap64
    staged: StagedSnapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class CycleInput:
    """Everything a cycle resolves.

    Attributes:
        deletes: Equality deletes on the indexed key.
        other_deletes: Equality deletes on other columns, one per set of columns.
        rows: Keys of the staged data files' rows.
        staged: The staged snapshots; empty in place.
        files: The staged data files, by `rows.file`.
        scopes: Numbers of the partitions that deletes are scoped to.
        positions: Positions of staged data files that staged DVs and position delete files delete.
        own_positions: The same, each with the staged snapshot that deletes it.
        target_positions: What those delete in files that came before the batch.
        equality_delete_files: How many files the equality deletes came in.
    """

    deletes: KeyedDeletes
    other_deletes: tuple[KeyedDeletes, ...]
    rows: FileKeys
    staged: tuple[StagedSnapshot, ...]
    files: tuple[OrderedFile, ...]
    scopes: Scopes
    positions: DeadPositions
    own_positions: tuple[StagedPositions, ...]
    target_positions: tuple[StagedPositions, ...]
    equality_delete_files: int

    def part(self, rows: Int64s | slice, deletes: Int64s | slice) -> CycleInput:
        """Some of the rows and of the deletes on the key, by their ordinals; with wide integers."""

        def wide(values: Int64s, which: Int64s | slice) -> Int64s:
            return values[which].astype(np.int64, copy=False)

        def keys(of: EncodedKeys, which: Int64s | slice) -> EncodedKeys:
            return of if isinstance(which, slice) else of.take(which)

        return replace(
            self,
            rows=FileKeys(
                keys=keys(self.rows.keys, rows),
                file=wide(self.rows.file, rows),
                position=wide(self.rows.position, rows),
            ),
            deletes=replace(
                self.deletes,
                keys=keys(self.deletes.keys, deletes),
                order=wide(self.deletes.order, deletes),
                scope=wide(self.deletes.scope, deletes),
            ),
        )

    @property
    def paths(self) -> frozenset[str]:
        """The staged data files."""
        return frozenset(each.file.file_path for each in self.files)

    @property
    def file_order(self) -> Int64s:
        """Order per staged file."""
        return np.array([each.order for each in self.files], dtype=np.int64)

    @property
    def file_scope(self) -> Int64s:
        """Row scope per staged file."""
        return self.scopes.of_files(each.file for each in self.files)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadInput:
    """What one cycle has to resolve, before the keys are read.

    Attributes:
        batch: All but keys: no rows, no deletes.
        deletes: The files of `batch.deletes`.
        other_deletes: Equality deletes on other columns, by those.
    """

    batch: CycleInput
    deletes: tuple[OrderedFile, ...]
    other_deletes: Mapping[tuple[int, ...], Sequence[OrderedFile]]

    @property
    def key_count(self) -> int:
        """Rows and deletes on the key that are read."""
        return sum(each.file.record_count for each in (*self.batch.files, *self.deletes))

    def read(
        self, environment: Environment, metadata: TableMetadata, runner: Runner | None = None
    ) -> CycleInput:
        """Read the keys; by the runner, or in this process.

        Raises:
            CorruptDataError: A file is damaged.
        """
        batch, ids = self.batch, self.batch.deletes.key.field_ids

        def deletes(ids: Sequence[int], files: Sequence[OrderedFile]) -> KeyedDeletes:
            return _read_deletes(environment, metadata, batch.scopes, ids, files, runner)

        def read_rows() -> FileKeys:
            files = [each.file for each in batch.files]
            return KeyReader(environment.store, metadata, ids).read_files(files, runner)

        other = [partial(deletes, *each) for each in sorted(self.other_deletes.items())]
        reads: list[Callable[[], Any]] = [read_rows, partial(deletes, ids, self.deletes), *other]
        here = runner is None or isinstance(runner, LocalRunner)
        at_once = requests_of(metadata.location) if here else 1
        rows, own, *others = environment.runtime.each(lambda read: read(), reads, at_once=at_once)
        return replace(batch, deletes=own, other_deletes=tuple(others), rows=rows)


def plan_cycle_input(
    environment: Environment,
    metadata: TableMetadata,
    key_ids: Sequence[int],
    *,
    equality_deletes: Iterable[OrderedFile],
    staged: Sequence[StagedSnapshot] = (),
) -> UnreadInput:
    """List the files of a backlog, and read what it deletes by position.

    Args:
        environment: Where files are read.
        metadata: Schemas and specs.
        key_ids: Field ids of the indexed key.
        equality_deletes: To resolve.
        staged: The snapshots whose data files, deletion vectors and position delete files are
            taken, oldest first; none in place, where all rows are in the index.

    Raises:
        CorruptDataError: A file is damaged.
    """
    groups: dict[tuple[int, ...], list[OrderedFile]] = defaultdict(list)
    equality_deletes = list(equality_deletes)
    for each in equality_deletes:
        groups[tuple(sorted(each.file.equality_ids or ()))].append(each)
    primary = tuple(sorted(key_ids))
    deletes = tuple(groups.pop(primary, ()))
    files = tuple(staged_files(staged, "data_files"))
    paths = frozenset(each.file.file_path for each in files)
    found = [
        StagedPositions(path=path, positions=positions, staged=each)
        for each, path, positions in _staged_positions(environment, metadata, staged)
    ]
    own = tuple(each for each in found if each.path in paths)
    none = np.empty(0, dtype=np.int64)
    batch = CycleInput(
        deletes=KeyedDeletes(
            key=KeyReader(environment.store, metadata, primary).key,
            keys=EncodedKeys.empty(),
            order=none,
            scope=none,
            files=tuple(each.file for each in deletes),
        ),
        other_deletes=(),
        rows=file_keys(()),
        staged=tuple(staged),
        files=files,
        scopes=Scopes(metadata.specs(), frozenset(immutable_field_ids(metadata))),
        positions=dead_positions(own),
        own_positions=own,
        target_positions=tuple(each for each in found if each.path not in paths),
        equality_delete_files=len(equality_deletes),
    )
    return UnreadInput(batch=batch, deletes=deletes, other_deletes=groups)


def dead_positions(staged: Iterable[StagedPositions]) -> DeadPositions:
    """What some staged snapshots delete by position, together."""
    found = DeadPositions()
    for each in staged:
        found.add(each.path, each.positions)
    return found


def staged_files(staged: Iterable[StagedSnapshot], kind: str) -> list[OrderedFile]:
    """The `data_files` or `equality_deletes` of staged snapshots with their orders.

    A file that several snapshots name takes effect once, where the first of them has it.
    """
    found: dict[str, OrderedFile] = {}
    for each in staged:
        for entry in getattr(each, kind):
            file = entry.data_file
            known = found.get(file.file_path)
            found[file.file_path] = (
                OrderedFile(
                    file,
                    each.order,
                    one_spec=each.spec_ids == {file.spec_id},
                    sequence_number=entry.sequence_number or 0,
                )
                if known is None
                else replace(known, again=(*known.again, each.order))
            )
    return list(found.values())


def _read_deletes(
    environment: Environment,
    metadata: TableMetadata,
    scopes: Scopes,
    ids: Sequence[int],
    files: Sequence[OrderedFile],
    runner: Runner | None,
) -> KeyedDeletes:
    reader = KeyReader(environment.store, metadata, ids)
    runner = reading(runner, metadata.location)
    parts = runner.run(reader.read_filed, [each.file for each in files])
    found = file_keys([keys for keys, _ in parts])
    at_home = np.concatenate([np.empty(0, dtype=np.bool_), *(filed for _, filed in parts)])
    rows = len(found.keys)
    last = max((each.order for each in files), default=0)
    order = np.array([each.order for each in files], dtype=small_integers(rows, last))
    reach = [scopes.of_delete(each.file, one_spec=each.one_spec) for each in files]
    small = small_integers(rows, len(scopes) + len(files))
    scope = np.array(reach, dtype=small)
    own_scope = scope.copy()  # a key that is filed elsewhere reaches that partition only
    for at, each in enumerate(files):
        if not parts[at][1].all():
            own_scope[at] = scopes.of_delete(each.file)
    return KeyedDeletes(
        key=reader.key,
        keys=found.keys,
        order=order[found.file],
        scope=np.where(at_home, scope[found.file], own_scope[found.file]),
        files=tuple(each.file for each in files),
    )


def _staged_positions(
    environment: Environment, metadata: TableMetadata, staged: Sequence[StagedSnapshot]
) -> Iterator[tuple[StagedSnapshot, str, BitMap64]]:
    vectors = [(each, entry.data_file) for each in staged for entry in each.dvs]
    found = read_deletion_vectors(environment.store, [(dv, None) for _, dv in vectors])
    for (each, dv), positions in zip(vectors, found, strict=True):
        assert dv.referenced_data_file is not None
        yield each, dv.referenced_data_file, positions
    for each in staged:
        for entry in each.removed:
            file = entry.data_file
            if file.record_count:
                yield each, file.file_path, BitMap64(range(file.record_count))
        for entry in each.position_deletes:
            by_path = read_position_file(environment.store, metadata, entry.data_file)
            yield from ((each, path, positions) for path, positions in by_path.items())
