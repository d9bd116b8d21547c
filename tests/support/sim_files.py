"""Live rows of a snapshot from its files alone, as any reader merges them on read."""

from __future__ import annotations

import io
import struct
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

import mmh3
import pyarrow.parquet as pq
from pyroaring import BitMap64

from tests.support.sim_schema import AMOUNT, FileRows, Row, TableSchema
from tests.support.table_checker import CheckedSnapshot, LiveFile, Read

Spec = tuple[tuple[int, str], ...]  # source field id and transform of every field
Place = tuple[str, int]  # a data file and a position in it
IDS_OF_A_FILE = 1_000_000  # of a data file without row ids: more than it has rows
Identities = dict[int, tuple[Row, int]]  # by row id: the row, and its last update


@dataclass(slots=True)
class View:
    """The rows of a snapshot.

    Attributes:
        checked: Its files.
        found: The live rows with their counts.
        identities: The live rows by row id.
        places: Row ids of the live rows, by where they are.
        dead: Where rows are that a delete of the snapshot deletes, in every copy of a file that is
            named twice.
        surplus: Live files of deletes that a publish leaves none of: equality deletes, and on v3
            position deletes that are no vectors.
    """

    checked: CheckedSnapshot
    found: Counter[Row] = field(default_factory=Counter)
    identities: Identities = field(default_factory=dict)
    places: dict[Place, int] = field(default_factory=dict)
    dead: set[Place] = field(default_factory=set)
    surplus: list[LiveFile] = field(default_factory=list)

    @property
    def has_deletes(self) -> bool:
        return bool(self.surplus)


@dataclass(frozen=True, slots=True)
class _EqualityDelete:
    """Values of some fields that die in older files: of its partition, or everywhere."""

    fields: tuple[int, ...]
    keys: frozenset[tuple[Any, ...]]
    sequence_number: int
    partition: tuple[int, tuple[Any, ...]] | None

    def reaches(self, file: LiveFile) -> bool:
        return file.sequence_number < self.sequence_number and (
            self.partition is None or self.partition == (file.spec_id, file.partition)
        )


class Files:
    """Reads data files, deletion vectors and deletes; each once."""

    def __init__(self, read: Read) -> None:
        self.read = read
        self._files: dict[str, FileRows] = {}
        self._rows: dict[tuple[str, int], list[Row]] = {}
        self._vectors: dict[tuple[int, str], BitMap64] = {}
        self._positions: dict[str, dict[str, set[int]]] = {}
        self._numbers: dict[str, int] = {}  # of data files without row ids
        self.computed: int | None = None  # field id of the computed column

    @property
    def memoized(self) -> int:
        """How many files it knows under how many schemas: never the same before a new one."""
        return len(self._rows)

    def file(self, path: str) -> FileRows:
        if path not in self._files:
            self._files[path] = FileRows.read(self.read(path))
        return self._files[path]

    def rows_of(self, path: str, schema: TableSchema) -> list[Row]:
        """A data file's rows under a schema, dead ones too."""
        at = (path, schema.schema_id)
        if at not in self._rows:
            self._rows[at] = self.file(path).rows(schema)
        return self._rows[at]

    def row_id(self, file: LiveFile, position: int) -> int:
        stored = self.file(file.path).row_ids[position]
        return self._first_row_id(file) + position if stored is None else stored

    def _first_row_id(self, file: LiveFile) -> int:
        """On v2 a number in their place: a row is known by where it is."""
        if file.first_row_id is not None:
            return file.first_row_id
        return self._numbers.setdefault(file.path, len(self._numbers)) * IDS_OF_A_FILE

    def vector(self, file: LiveFile) -> BitMap64:
        assert file.offset is not None
        return self.bitmap(file.path, file.offset, file.size)

    def bitmap(self, path: str, offset: int, size: int) -> BitMap64:
        at = (offset, path)
        if at not in self._vectors:
            blob = self.read(path)[offset : offset + size]
            assert blob[4:8] == bytes([0xD1, 0xD3, 0x39, 0x64]), "not a deletion vector"
            self._vectors[at] = BitMap64.deserialize(blob[8:-4])
        return self._vectors[at]

    def vectors(self, checked: CheckedSnapshot) -> dict[str, BitMap64]:
        """By data file."""
        return {
            f.referenced: self.vector(f)
            for f in checked.live
            if f.offset is not None and f.referenced is not None
        }

    def position_file(self, path: str) -> dict[str, set[int]]:
        if path not in self._positions:
            columns = pq.read_table(io.BytesIO(self.read(path))).to_pydict()
            found: dict[str, set[int]] = defaultdict(set)
            for of, position in zip(columns["file_path"], columns["pos"], strict=True):
                found[of].add(position)
            self._positions[path] = found
        return self._positions[path]

    def view(self, checked: CheckedSnapshot, metadata: dict[str, Any], schema: TableSchema) -> View:
        """The live rows under a schema; checks row ids, counts and partitions."""
        view = View(checked)
        vectors = self.vectors(checked)
        foreign = [f for f in checked.live if f.content != 0 and f.offset is None]
        equality = [self._equality(f, metadata) for f in foreign if f.content == 2]
        positional = [f for f in foreign if f.content == 1]
        is_v2 = metadata["format-version"] == 2
        view.surplus = [f for f in foreign if f.content == 2] if is_v2 else foreign
        for file in checked.live:
            if file.content != 0:
                continue
            rows, stored = self.rows_of(file.path, schema), self.file(file.path)
            assert stored.count == file.record_count, file
            check_partition(rows, file, spec_of(metadata, file.spec_id))
            gone: Any = vectors.get(file.path, ())
            if positional and file.path not in vectors:
                gone = self._gone_by_files(file, positional)
            keyed = [
                ([schema.fields.index(f) for f in each.fields], each.keys)
                for each in equality
                if each.reaches(file)
            ]
            for at, row in enumerate(rows):
                if at in gone or any(
                    tuple(row[place] for place in places) in keys for places, keys in keyed
                ):
                    view.dead.add((file.path, at))
                    continue
                view.found[row] += 1
                row_id, updated = self.row_id(file, at), stored.updates[at]
                assert row_id not in view.identities, f"row id {row_id} twice"
                view.places[file.path, at] = row_id
                view.identities[row_id] = (
                    row, file.sequence_number if updated is None else updated
                )  # fmt: skip
        view.dead -= view.places.keys()
        return view

    def check_computed(self, view: View, schema: TableSchema) -> None:
        """The stored computed column of every live row is twice its amount."""
        if self.computed is None:
            return
        amount = schema.fields.index(AMOUNT)
        for (path, at), row_id in view.places.items():
            row = view.identities[row_id][0]
            expected = None if row[amount] is None else 2 * row[amount]
            found = self.file(path).columns[self.computed][at]
            assert found == expected, f"{found} is stored as computed in {row}"

    def _gone_by_files(self, file: LiveFile, deletes: list[LiveFile]) -> set[int]:
        gone: set[int] = set()
        for each in deletes:
            reaches = (each.spec_id, each.partition) == (file.spec_id, file.partition)
            if reaches and each.sequence_number >= file.sequence_number:
                gone |= self.position_file(each.path).get(file.path, set())
        return gone

    def _equality(self, file: LiveFile, metadata: dict[str, Any]) -> _EqualityDelete:
        columns = self.file(file.path).columns
        keys = zip(*(columns[each] for each in file.equality_ids), strict=True)
        is_global = all(t == "void" for _, t in spec_of(metadata, file.spec_id))
        where = None if is_global else (file.spec_id, file.partition)
        return _EqualityDelete(file.equality_ids, frozenset(keys), file.sequence_number, where)


def spec_of(metadata: dict[str, Any], spec_id: int) -> Spec:
    """A partition spec from metadata JSON."""
    spec = next(each for each in metadata["partition-specs"] if each["spec-id"] == spec_id)
    return tuple((each["source-id"], each["transform"]) for each in spec["fields"])


def check_partition(rows: list[Row], file: LiveFile, spec: Spec) -> None:
    """Every row of a file is in the partition that the file says it is in."""
    for row in rows:
        assert is_of(row, file.partition, spec), f"{row} is not of its partition: {file}"


def is_of(row: Row, partition: tuple[Any, ...], spec: Spec) -> bool:
    """Whether a row is of a partition."""
    return partition == partition_of(row, spec)


def partition_of(row: Row, spec: Spec) -> tuple[Any, ...]:
    """The partition of a row."""
    return tuple(_transformed(row[source - 1], t) for source, t in spec)


def _transformed(value: Any, transform: str) -> Any:
    if value is None or transform == "void":
        return None
    if transform == "identity":
        return value
    name, width = transform.rstrip("]").split("[")
    if name == "bucket":
        return (mmh3.hash(struct.pack("<q", value)) & 0x7FFFFFFF) % int(width)
    assert name == "truncate", transform
    return value[: int(width)]
