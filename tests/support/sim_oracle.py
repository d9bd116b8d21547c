"""What a run must look like: a fold over what the actors asked for. Shares no code with icefold.

It sees every swap as it happens, reads metadata as JSON, manifests with fastavro, Parquet with
pyarrow and the bitmap of a deletion vector with pyroaring. A snapshot belongs to the operation that
drew its id, so also those are known whose answer was lost or whose process died.
"""

from __future__ import annotations

import io
import struct
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import mmh3
import pyarrow.parquet as pq
from pyroaring import BitMap64

from tests.support.sim_schema import (
    FileRows,
    Named,
    Row,
    SchemaHistory,
    TableSchema,
    in_schema,
    moved,
    rewritten,
)
from tests.support.sim_world import Violation, World
from tests.support.table_checker import (
    CheckedSnapshot,
    LiveFile,
    Read,
    check_snapshot,
    read_metadata,
)

MARKER = "equality-convert-staging-snapshot"


Spec = tuple[tuple[int, str], ...]  # source field id and transform of every field


@dataclass(eq=False, slots=True)
class Operation:
    """What an actor asked for. `keys` die in rows staged before, `rows` come.

    `typed` are the columns it names, with the types it takes them for; those of `rows` come first.
    `becomes` is the meaning of an SQL statement: what a row is after it, None when it goes; what
    `inserts`, given the keys that are there, gives comes anew.
    `shows` says whether a schema and a partition spec are as a change of structure wants them.
    """

    actor: str
    kind: str  # stage | append | publish | statement | rewrite | rollback | expire | clean | evolve
    rows: tuple[Row, ...] = ()
    keys: frozenset[int] = frozenset()
    typed: dict[str, str] = field(default_factory=dict)
    replaced: tuple[Row, ...] = ()  # given, too, and not there any more at its end
    ids: list[int] = field(default_factory=list)
    outcome: str = "running"
    becomes: Callable[[Named], Named | None] | None = None
    inserts: Callable[[set[int]], tuple[Row, ...]] | None = None
    shows: Callable[[TableSchema, Spec], bool] | None = None
    text: str = ""  # for the log
    since: int = 0  # swaps seen when it began
    shown: bool = False
    bound: tuple[TableSchema, tuple[Row, ...]] | None = None  # what a stage has landed as

    def rows_under(
        self, schema: TableSchema, rows: tuple[Row, ...] | None = None
    ) -> list[Row] | None:
        """`rows`, by default its own, written under `schema`; None: they cannot be."""
        if not schema.takes(self.typed):
            return None
        rows = self.rows if rows is None else rows
        given = (*rows, *self.replaced)
        bound = schema.bound(list(self.typed)[: len(given[0])] if given else (), given)
        return None if bound is None else [schema.row(row) for row in bound[: len(rows)]]


Identities = dict[int, tuple[Row, int]]  # by row id: the row, and its last update


@dataclass(frozen=True, slots=True)
class Change:
    """What a statement did: `of` every row of its parent, under the schema `before`, and anew."""

    before: TableSchema
    of: Callable[[Row], Row | None]
    rows: Identities
    inserted: Counter[Row]


@dataclass(frozen=True, slots=True)
class MainState:
    """Rows of a main snapshot, how many staged snapshots are in them, and who changed them."""

    rows: Counter[Row]
    published: int
    schema: TableSchema
    change: Change | None = None


class Oracle:
    """Checks every swap; raises nothing into the product, but ends the run."""

    def __init__(self, world: World, read: Read) -> None:
        self.world = world
        self.read = read
        self.operation_of: dict[int, Operation] = {}
        self.landed: dict[int, dict[str, Any]] = {}
        self.staged: list[int] = []
        self.main: dict[int, MainState] = {}
        self.refs: dict[str, int] = {}
        self.location = ""
        self.next_row_id = 0
        self.swaps = 0
        self.schemas = SchemaHistory()
        self.spec: Spec = ()
        self.metadata: dict[str, Any] = {}
        self.identities: dict[int, Identities] = {}
        self.head_keys: dict[tuple[str, int], int] = {}  # of the snapshot read last, by position
        self.head_dead: set[tuple[str, int]] = set()
        self.evolving: list[Operation] = []
        self._files: dict[str, FileRows] = {}
        self._rows: dict[tuple[str, int], list[Row]] = {}
        self._vectors: dict[tuple[int, str], BitMap64] = {}

    @property
    def waiting(self) -> int:
        """Staged snapshots that main does not have."""
        return len(self.staged) - self.state_of(self.refs.get("main")).published

    def state_of(self, snapshot_id: int | None) -> MainState:
        if snapshot_id is None:
            return MainState(Counter(), 0, self.schemas.current)
        return self.main[snapshot_id]

    def start(self, location: str) -> None:
        """The table as it was created."""
        self.metadata = read_metadata(self.read, location)
        self.schemas.see(self.metadata, 0)
        self.spec = spec_of(self.metadata, self.metadata["default-spec-id"])

    def spec_fields(self) -> dict[str, tuple[int, str]]:
        """Source and transform by name of the default spec's fields."""
        specs, default = self.metadata["partition-specs"], self.metadata["default-spec-id"]
        spec = next(each for each in specs if each["spec-id"] == default)
        return {each["name"]: (each["source-id"], each["transform"]) for each in spec["fields"]}

    def begin(self, operation: Operation) -> None:
        """An operation starts."""
        operation.since = self.swaps
        if operation.shows is not None:
            operation.shown = operation.shows(self.schemas.current, self.spec)
            self.evolving.append(operation)

    def may_refuse(self, operation: Operation) -> bool:
        """Whether some schema that it may have met cannot take its columns."""
        return any(
            operation.rows_under(schema) is None for schema in self.schemas.since(operation.since)
        )

    def on_swap(self, location: str) -> None:
        self.swaps += 1
        try:
            self._see(read_metadata(self.read, location), location)
        except Exception as error:  # whatever it is, the product must not see it
            self.world.fail(f"{type(error).__name__}: {error} (at {location})")

    def settle(self, operation: Operation, outcome: str) -> None:
        """An operation has ended; check what it said against what is there (I9)."""
        operation.outcome = outcome
        if operation.shows is not None:
            self.evolving.remove(operation)
            if outcome == "ok" and not operation.shown:
                self.world.fail(f"acknowledged and not to be seen: {operation}")
        self.world.outcomes[f"{operation.kind} {outcome}"] += 1
        landed = [each for each in operation.ids if each in self.landed]
        if outcome == "ok" and operation.kind in {"stage", "append"} and not landed:
            self.world.fail(f"acknowledged and missing: {operation}")
        is_definite = outcome in {"CommitConflictError", "FencedError"} or (
            operation.kind in {"stage", "append"} and outcome not in {"ok", "CommitUnknownError"}
        )
        if is_definite and landed:
            self.world.fail(f"said {outcome}, but landed: {operation}")

    def _see(self, metadata: dict[str, Any], location: str) -> None:
        self.location, self.metadata = location, metadata
        self.schemas.see(metadata, self.swaps)
        self.spec = spec_of(metadata, metadata["default-spec-id"])
        for operation in self.evolving:
            operation.shown |= operation.shows is not None and operation.shows(
                self.schemas.current, self.spec
            )
        assert metadata["next-row-id"] >= self.next_row_id, "next-row-id went back"
        self.next_row_id = metadata["next-row-id"]
        refs = {name: ref["snapshot-id"] for name, ref in metadata.get("refs", {}).items()}
        old, self.refs = self.refs, refs
        fresh = [s for s in metadata["snapshots"] if s["snapshot-id"] not in self.landed]
        assert len(fresh) <= 1, "two snapshots in one swap"
        for snapshot in fresh:
            self._see_snapshot(metadata, snapshot)
        if not fresh:
            self._see_moved_refs(old, refs)

    def _see_snapshot(self, metadata: dict[str, Any], snapshot: dict[str, Any]) -> None:
        snapshot_id = snapshot["snapshot-id"]
        operation = self.operation_of.get(snapshot_id)
        assert operation is not None, f"nobody drew snapshot {snapshot_id}"
        assert not any(i in self.landed for i in operation.ids), f"landed twice: {operation}"
        if operation.outcome not in {"running", "CommitUnknownError", "crashed"}:
            raise Violation(f"landed after it had said {operation.outcome}: {operation}")
        self.landed[snapshot_id] = snapshot
        if operation.kind == "stage":
            assert self.refs["staging"] == snapshot_id
            self.staged.append(snapshot_id)
            self._bind_staged(metadata, snapshot, operation)
            return
        assert self.refs["main"] == snapshot_id
        self._see_main(metadata, snapshot, operation)

    def _bind_staged(
        self, metadata: dict[str, Any], snapshot: dict[str, Any], operation: Operation
    ) -> None:
        """Staged rows are what was asked for, under a schema that the writer may have met."""
        checked = check_snapshot(self.read, metadata, snapshot)
        own = [
            file
            for file in checked.live
            if file.snapshot_id == snapshot["snapshot-id"] and file.content == 0
        ]
        dead = self._dead_of(checked, snapshot["snapshot-id"])
        for schema in self.schemas.since(operation.since):
            rows = operation.rows_under(schema)
            if rows is not None and Counter(rows) == Counter(
                row
                for file in own
                for at, row in enumerate(self.rows_of(file, schema))
                if at not in dead.get(file.path, ())
            ):
                operation.bound = (schema, tuple(rows))
                return
        raise Violation(f"other rows were staged: {operation}")

    def _dead_of(self, checked: CheckedSnapshot, snapshot_id: int) -> dict[str, set[int]]:
        """Positions that a commit's own vectors and position deletes delete."""
        dead: dict[str, set[int]] = defaultdict(set)
        for file in checked.live:
            if file.snapshot_id != snapshot_id or file.content != 1:
                continue
            if file.offset is not None:
                assert file.referenced is not None
                dead[file.referenced].update(self._vector(file.path, file.offset, file.size))
            else:
                columns = pq.read_table(io.BytesIO(self.read(file.path))).to_pydict()
                for path, position in zip(columns["file_path"], columns["pos"], strict=True):
                    dead[path].add(position)
        return dead

    def _see_main(
        self, metadata: dict[str, Any], snapshot: dict[str, Any], operation: Operation
    ) -> None:
        """One of the states that the operation may have made is there."""
        snapshot_id = snapshot["snapshot-id"]
        parent = self.state_of(snapshot.get("parent-snapshot-id"))
        self._check_marker(parent, snapshot, operation)
        schema = self.schemas.by_schema_id[snapshot["schema-id"]]
        states = list(self._folds(parent, snapshot, operation, schema))
        assert states, f"no schema could take it, but it landed: {operation}"
        _, found, identities = self.read_rows(metadata, snapshot, schema)
        fitting = [state for state in states if state.rows == found]
        if not fitting:
            raise _different(snapshot, found, states[0].rows)
        self.identities[snapshot_id] = identities
        self.main[snapshot_id] = fitting[0]
        self._check_identities(snapshot, operation, parent.schema, fitting)

    def _check_identities(
        self,
        snapshot: dict[str, Any],
        operation: Operation,
        old: TableSchema,
        states: list[MainState],
    ) -> None:
        """Row ids are unique; a row keeps its own, and what it holds, while it lives (I7, R42)."""
        now = self.identities[snapshot["snapshot-id"]]
        stored = self.identities.get(snapshot.get("parent-snapshot-id", -1), {})
        new = states[0].schema
        if operation.becomes is not None:
            number = snapshot["sequence-number"]
            assert any(_fits(now, state, number) for state in states), f"changed {now.items()}"
            return
        before = {i: (moved(row, old, new), updated) for i, (row, updated) in stored.items()}
        if operation.kind == "rewrite":
            assert now == before, f"a rewrite changed {set(now.items()) ^ set(before.items())}"
        changed = {row_id for row_id in now.keys() & before.keys() if now[row_id] != before[row_id]}
        assert not changed, f"rows changed under their row ids {changed}"
        kept = {row for row, _ in now.values()} & {row for row, _ in before.values()}
        ids = {row_id for row_id, (row, _) in before.items() if row in kept}
        assert ids <= now.keys(), "rows got other row ids"

    def _check_marker(
        self, parent: MainState, snapshot: dict[str, Any], operation: Operation
    ) -> None:
        marker = snapshot["summary"].get(MARKER)
        carried = 0 if marker is None else self.staged.index(int(marker)) + 1
        match operation.kind:
            case "append":
                assert carried in {0, parent.published}, f"an append moved the marker to {marker}"
            case "statement" | "rewrite":
                what = f"a {operation.kind} moved the marker to {marker}"
                assert carried == parent.published, what
            case _:
                assert operation.kind == "publish", operation
                assert marker is not None, "a publish without a marker"
                assert carried > parent.published, f"published again: {marker}"

    def _folds(
        self,
        parent: MainState,
        snapshot: dict[str, Any],
        operation: Operation,
        schema: TableSchema,
    ) -> Iterator[MainState]:
        """What main may be after it: one state per schema that the operation may have met."""
        before = in_schema(parent.rows, parent.schema, schema)
        if operation.kind == "rewrite":
            yield MainState(before, parent.published, schema)
            return
        if operation.kind == "publish":
            yield self._published(before, parent.published, snapshot, schema)
            return
        for bound in self.schemas.since(operation.since):
            rows = operation.rows_under(bound)
            if rows is None:
                continue
            if operation.becomes is None:
                more = Counter(moved(row, bound, schema) for row in rows)
                yield MainState(before + more, parent.published, schema)
            else:
                new = self._inserted(operation, bound, parent, schema)
                if new is not None:
                    before, stored = self._rows_under(snapshot, parent.schema, bound)
                    changes = rewritten(operation.becomes, bound, before, schema)
                    became = (changes(row) for row, _ in stored.values())
                    after = Counter(row for row in became if row is not None)
                    change = Change(before, changes, stored, new)
                    yield MainState(after + new, parent.published, schema, change)

    def _rows_under(
        self, snapshot: dict[str, Any], known: TableSchema, bound: TableSchema
    ) -> tuple[TableSchema, Identities]:
        """The parent's rows under the schema known of it, and columns of `bound` dropped since.

        A statement that was planned before a column was dropped goes by what the column holds.
        """
        parent_id = snapshot.get("parent-snapshot-id")
        dropped = tuple(c for c in bound.columns if c.field_id not in known.by_id)
        if not dropped or parent_id is None:
            return known, self.identities.get(parent_id, {})
        both = TableSchema(-1 - len(self._rows), (*known.columns, *dropped))
        parent = next(s for s in self.metadata["snapshots"] if s["snapshot-id"] == parent_id)
        return both, self.read_rows(self.metadata, parent, both)[2]

    def _inserted(
        self, operation: Operation, bound: TableSchema, parent: MainState, schema: TableSchema
    ) -> Counter[Row] | None:
        """Rows that a statement brings; None: not under this schema."""
        if operation.inserts is None:
            return Counter()
        given = operation.inserts({row[0] for row in parent.rows})
        rows = operation.rows_under(bound, given)
        return None if rows is None else Counter(moved(row, bound, schema) for row in rows)

    def _published(
        self, before: Counter[Row], done: int, snapshot: dict[str, Any], schema: TableSchema
    ) -> MainState:
        published = self.staged.index(int(snapshot["summary"][MARKER])) + 1
        rows = Counter(before)
        for staged_id in self.staged[done:published]:
            staged = self.operation_of[staged_id]
            assert staged.bound is not None
            for row in [row for row in rows if row[0] in staged.keys]:
                del rows[row]
            bound, new = staged.bound
            rows.update(moved(row, bound, schema) for row in new)
        return MainState(rows, published, schema)

    def _see_moved_refs(self, old: dict[str, int], new: dict[str, int]) -> None:
        if new.get("main") != old.get("main"):
            assert new["main"] in self.main, "main points at a snapshot that never was on it"
        if new.get("staging") != old.get("staging"):
            state = self.main.get(new["staging"])
            assert state is not None, "staging moved to a snapshot that never was on main"
            assert state.published == len(self.staged), "the trim dropped staged changes"

    def read_rows(
        self, metadata: dict[str, Any], snapshot: dict[str, Any], schema: TableSchema
    ) -> tuple[CheckedSnapshot, Counter[Row], Identities]:
        """Live rows with counts; by row id, the row and its last update."""
        checked = check_snapshot(self.read, metadata, snapshot)
        foreign = [f.path for f in checked.live if f.content != 0 and f.offset is None]
        assert not foreign, f"equality or position deletes on main: {foreign}"
        dead = {
            f.referenced: self._vector(f.path, f.offset, f.size)
            for f in checked.live
            if f.offset is not None
        }
        found: Counter[Row] = Counter()
        identities: Identities = {}
        self.head_keys, self.head_dead = {}, set()
        for file in checked.live:
            if file.content == 0:
                rows, stored = self.rows_of(file, schema), self._files[file.path]
                _check_partition(rows, file, spec_of(metadata, file.spec_id))
                gone = dead.get(file.path, ())
                for at, row in enumerate(rows):
                    if at in gone:
                        self.head_dead.add((file.path, at))
                        continue
                    found[row] += 1
                    self.head_keys[file.path, at] = row[0]
                    kept, updated = stored.row_ids[at], stored.updates[at]
                    row_id = (file.first_row_id or 0) + at if kept is None else kept
                    assert row_id not in identities, f"row id {row_id} twice"
                    identities[row_id] = (
                        row, file.sequence_number if updated is None else updated
                    )  # fmt: skip
        return checked, found, identities

    def check_everything(self) -> None:
        """Every retained snapshot by its own files; every reachable object exists."""
        metadata = read_metadata(self.read, self.location)
        for snapshot in metadata["snapshots"]:
            state = self.main.get(snapshot["snapshot-id"])
            if state is not None:
                checked, found, _ = self.read_rows(metadata, snapshot, state.schema)
                if found != state.rows:
                    raise _different(snapshot, found, state.rows)
            else:
                checked = check_snapshot(self.read, metadata, snapshot)
            for file in checked.live:
                self.read(file.path)

    def check_index(self, entries: Iterable[tuple[bytes, str, int]]) -> None:
        """An index of main's head names its live rows by keys, one to one (I5, I19).

        Rows that a vector has deleted may be in it as well.
        """
        head = self.refs["main"]
        metadata = read_metadata(self.read, self.location)
        snapshot = next(s for s in metadata["snapshots"] if s["snapshot-id"] == head)
        self.read_rows(metadata, snapshot, self.main[head].schema)
        found = {(path, position): key for key, path, position in entries}
        lacks = self.head_keys.keys() - found.keys()
        surplus = found.keys() - self.head_keys.keys() - self.head_dead
        assert not lacks, f"the index lacks {lacks}"
        assert not surplus, f"the index names what is no row of main {surplus}"
        pairs = {(found[at], key) for at, key in self.head_keys.items()}
        assert len(pairs) == len({each for each, _ in pairs}) == len({key for _, key in pairs})

    def rows_of(self, file: LiveFile, schema: TableSchema) -> list[Row]:
        """A data file's rows under a schema, dead ones too."""
        if file.path not in self._files:
            self._files[file.path] = FileRows.read(self.read(file.path))
        at = (file.path, schema.schema_id)
        if at not in self._rows:
            self._rows[at] = self._files[file.path].rows(schema)
        assert self._files[file.path].count == file.record_count, file
        return self._rows[at]

    def _vector(self, path: str, offset: int | None, size: int) -> BitMap64:
        assert offset is not None
        if (offset, path) not in self._vectors:
            blob = self.read(path)[offset : offset + size]
            assert blob[4:8] == bytes([0xD1, 0xD3, 0x39, 0x64]), "not a deletion vector"
            self._vectors[offset, path] = BitMap64.deserialize(blob[8:-4])
        return self._vectors[offset, path]


def _different(snapshot: dict[str, Any], found: Counter[Row], wanted: Counter[Row]) -> Violation:
    return Violation(
        f"snapshot {snapshot['snapshot-id']}: too many {dict(found - wanted)}, "
        f"missing {dict(wanted - found)}"
    )


def _fits(now: Identities, state: MainState, sequence_number: int) -> bool:
    """Whether the row ids are right after a statement.

    A row keeps its id; only a row that changed was last updated by the statement (R42). Inserted
    rows have ids that nobody had.
    """
    change = state.change
    assert change is not None
    expected = {}
    for row_id, (row, updated) in change.rows.items():
        became = change.of(row)
        if became is not None:
            # An UPDATE that writes what was there is an update all the same; see `sim_actors`.
            same = became == moved(row, change.before, state.schema)
            expected[row_id] = (became, updated if same else sequence_number)
    more = {row_id: each for row_id, each in now.items() if row_id not in expected}
    return (
        all(now.get(row_id) == each for row_id, each in expected.items())
        and not more.keys() & change.rows.keys()
        and all(updated == sequence_number for _, updated in more.values())
        and Counter(row for row, _ in more.values()) == change.inserted
    )


def spec_of(metadata: dict[str, Any], spec_id: int) -> Spec:
    """A partition spec from metadata JSON."""
    spec = next(each for each in metadata["partition-specs"] if each["spec-id"] == spec_id)
    return tuple((each["source-id"], each["transform"]) for each in spec["fields"])


def _check_partition(rows: list[Row], file: LiveFile, spec: Spec) -> None:
    """Every row of a file is in the partition that the file says it is in."""
    for row in rows:
        expected = tuple(_transformed(row[source - 1], transform) for source, transform in spec)
        assert expected == file.partition, f"{row} is not of partition {file.partition}: {file}"


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
