"""What a run must look like: a fold over what the actors asked for. Shares no code with icefold.

It sees every swap as it happens, reads metadata as JSON, manifests with fastavro, Parquet with
pyarrow and the bitmap of a deletion vector with pyroaring. A snapshot belongs to the operation that
drew its id, so also those are known whose answer was lost or whose process died.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any

from tests.support.sim_files import Files, Identities, Place, Spec, View, spec_of
from tests.support.sim_fold import (
    Base,
    Folded,
    Staged,
    as_in_state,
    fold,
    in_other_schema,
    picked,
    read_staged,
)
from tests.support.sim_schema import (
    COMPUTED,
    Named,
    Row,
    SchemaHistory,
    TableSchema,
    in_schema,
    moved,
    rewritten,
)
from tests.support.sim_world import Violation, World
from tests.support.table_checker import CheckedSnapshot, Read, check_snapshot, read_metadata

MARKER = "equality-convert-staging-snapshot"
WRITES = frozenset({"stage", "append", "upsert"})


@dataclass(frozen=True, slots=True)
class KeyDelete:
    """An equality delete of another tool on main; `where`: its spec and partition."""

    fields: tuple[int, ...]
    keys: frozenset[tuple[Any, ...]]
    where: tuple[int, tuple[Any, ...]]
    is_global: bool

    def kills(self, row: Row, schema: TableSchema, where: tuple[int, tuple[Any, ...]]) -> bool:
        """Whether a row dies that was there before, in a file of this spec and partition."""
        key = tuple(row[schema.fields.index(each)] for each in self.fields)
        return key in self.keys and (self.is_global or where == self.where)


@dataclass(eq=False, slots=True)
class Operation:
    """What an actor asked for. `keys` die in rows staged before, `rows` come.

    `typed` are the columns it names, with the types it takes them for; those of `rows` come first.
    `becomes` is the meaning of an SQL statement: what a row is after it, None when it goes; what
    `inserts`, given the keys that are there, gives comes anew.
    `shows` says whether a schema and a partition spec are as a change of structure wants them.
    """

    actor: str
    # stage | append | upsert | publish | statement | rewrite | rollback | expire | clean | evolve |
    # pick | forward
    kind: str
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
    branch: str = "staging"  # of a stage
    is_foreign: bool = False  # another tool's: it repeats no marker, gives staging no retention
    is_lossy: bool = False  # a rewrite that gives new row ids
    epoch: tuple[str, int] | None = None  # of a stream's batch: its query, its number
    again: tuple[str, ...] = ()  # data files that it stages though they are staged already
    source: int | None = None  # the staged snapshot that is picked
    paths: tuple[str, ...] = ()  # staged data files that are added
    empties: bool = False  # a stage that deletes all rows from before it
    deletes: tuple[KeyDelete, ...] = ()  # of an upsert; what comes is `bound`

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


@dataclass(frozen=True, slots=True)
class Change:
    """What a statement did: `of` every row of its parent, under the schema `before`, and anew."""

    before: TableSchema
    of: Callable[[Row], Row | None]
    rows: Identities
    inserted: Counter[Row]


@dataclass(frozen=True, slots=True)
class MainState:
    """Rows of a main snapshot, how many staged snapshots are in them, and who changed them.

    Attributes:
        marked: How many staged snapshots the newest marker says; a fast-forward brings none.
        has_deletes: Equality or position deletes are live: main was fast-forwarded to a staged
            snapshot, or one was picked, and no publish has come since.
        folded: What a publish must have made.
        orders, ever, renamed: See `Base`.
    """

    rows: Counter[Row]
    published: int
    schema: TableSchema
    change: Change | None = None
    marked: int = 0
    has_deletes: bool = False
    folded: Folded | None = None
    orders: Mapping[int, int] = field(default_factory=dict)
    ever: frozenset[str] = frozenset()
    renamed: Mapping[int, int] = field(default_factory=dict)


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
        self.places: dict[int, dict[Place, int]] = {}
        self.retained: set[int] = set()
        self.evolving: list[Operation] = []
        self.files = Files(read)
        self.stages: dict[int, Staged] = {}
        self.others: dict[str, list[int]] = {}  # staged on other branches
        self.converted: dict[int | None, int | None] = {}  # on `audit`: where it began
        self.order_of: dict[str, int] = {}  # of staged data files: the first that named each
        self.repeated: set[str] = set()
        self.epochs: dict[str, int] = {}  # by query, the last one that is staged
        self.left_out: set[str] = set()  # data files of batches that are staged again
        self.rewritten: dict[
            int, dict[Place, int]
        ] = {}  # by publish: ids by where rows were staged
        self.listed: dict[int, frozenset[str]] = {}  # staged data files live in snapshots of main
        self.foreign_swaps: set[str] = set()  # metadata versions that other tools made
        self.kept_branches: set[str] = set()  # to whom icefold has given retention
        self.strips: set[str] = set()  # versions where staging has lost its retention
        self.heads: list[tuple[int, int]] = []  # of main, by the swaps that made them
        self.deletes: dict[int, frozenset[str]] = {}  # of snapshots of main, no vectors
        self.stranded: set[int] = set()  # staged snapshots that another tool's expiry took
        self.reads_state = False  # publishes take staged changes from the branch's state

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
        fields = self.metadata["schemas"][-1]["fields"]
        self.files.computed = next((f["id"] for f in fields if f["name"] == COMPUTED), None)

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
        """Whether some schema that it may have met cannot take its columns, or main has a row of
        a key that it inserts."""
        return any(
            operation.rows_under(schema) is None for schema in self.schemas.since(operation.since)
        ) or any(self._has_rows_of(operation, self.main[each]) for each in self._met(operation))

    def _met(self, operation: Operation) -> list[int]:
        """The heads of main that an operation may have met."""
        before = [head for at, head in self.heads if at <= operation.since][-1:]
        return [*before, *(head for at, head in self.heads if operation.since < at)]

    def _has_rows_of(self, operation: Operation, state: MainState) -> bool:
        """Whether a MERGE would give a key a second row."""
        keys = {row[0] for row in state.rows}
        return operation.inserts is not None and any(
            row[0] in keys for row in operation.inserts(keys)
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
        if outcome == "ok" and operation.kind in WRITES and not landed:
            self.world.fail(f"acknowledged and missing: {operation}")
        is_definite = outcome in {"CommitConflictError", "FencedError"} or (
            operation.kind in WRITES and outcome not in {"ok", "CommitUnknownError"}
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
        next_row_id = metadata.get("next-row-id", 0)  # v2 has none
        assert next_row_id >= self.next_row_id, "next-row-id went back"
        self.next_row_id = next_row_id
        refs = {name: ref["snapshot-id"] for name, ref in metadata.get("refs", {}).items()}
        old, self.refs = self.refs, refs
        if refs.get("main") != old.get("main"):
            self.heads.append((self.swaps, refs["main"]))
        known, self.retained = self.retained, {s["snapshot-id"] for s in metadata["snapshots"]}
        self._see_expiry(old, known - self.retained, location in self.foreign_swaps)
        if location not in self.foreign_swaps and metadata["format-version"] > 2:
            self._see_history_of_flink(known)
        fresh = [s for s in metadata["snapshots"] if s["snapshot-id"] not in self.landed]
        assert len(fresh) <= 1, "two snapshots in one swap"
        for snapshot in fresh:
            self._see_snapshot(metadata, snapshot)
        if not fresh:
            self._see_moved_refs(old, refs)

    def _see_expiry(self, old: Mapping[str, int], gone: set[int], is_foreign: bool) -> None:
        """Expiry takes no staged change and no staging branch; another tool's none that icefold
        has given retention."""
        for branch in ("staging", *sorted(filter(self._is_known, self.others))):
            if branch not in old or not (gone or branch not in self.refs):
                continue
            waiting = self._waiting_on(branch, old)
            is_lost = branch not in self.refs and bool(waiting)
            lost = waiting & gone
            if not is_lost and not lost:
                continue
            if not is_foreign or branch in self.kept_branches:
                whose = "another tool's expiry" if is_foreign else "expiry"
                what = "the branch" if is_lost else f"snapshots {sorted(lost)}"
                raise Violation(f"{whose} took {what} of {branch}, whose changes wait")
            self.stranded |= lost
        self.kept_branches &= self.refs.keys()
        if self.location in self.strips:
            self.kept_branches.discard("staging")

    def _see_history_of_flink(self, known: set[int]) -> None:
        """Expiry cuts no history that was whole: Flink's sink validates all of it (R88)."""
        summaries = (self.landed[each]["summary"] for each in known)
        if self.retained >= known or not any(map(_is_delete_of_flink, summaries)):
            return
        for branch, head in self.refs.items():
            history = set(self._history(head))
            if history <= known and not history <= self.retained:
                raise Violation(f"expiry cut the history of {branch}, which Flink validates")

    def _is_known(self, branch: str) -> bool:
        """Whether a branch can be told to be a staging branch: not by another tool's appends."""
        staged = (self.operation_of[each] for each in self.others[branch])
        return any(each.keys or not each.is_foreign for each in staged)

    def _waiting_on(self, branch: str, refs: Mapping[str, int]) -> set[int]:
        """Staged snapshots in a branch's history that no target has."""
        if branch != "staging":
            return set(self.others[branch]).intersection(self._history(refs[branch]))
        waiting = set(self.staged[self.state_of(refs.get("main")).published :])
        return {each for each in self._history(refs[branch]) if each in waiting}

    def _history(self, snapshot_id: int | None) -> Iterator[int]:
        """A snapshot and its ancestors, whether or not they have expired."""
        while snapshot_id is not None:
            yield snapshot_id
            snapshot_id = self.landed[snapshot_id].get("parent-snapshot-id")

    @property
    def has_gaps(self) -> bool:
        """Whether another tool has expired staged snapshots that wait."""
        return bool(
            self.stranded.intersection(self.staged[-self.waiting :] if self.waiting else ())
        )

    def is_one_branch(self, branch: str) -> bool:
        """Whether all that was staged on another branch is in its history."""
        return set(self._history(self.refs[branch])).issuperset(self.others[branch])

    def fork_of(self, branch: str) -> int:
        """The snapshot of main that another staging branch began at."""
        return int(self.landed[self.others[branch][0]]["parent-snapshot-id"])

    def staged_after(self) -> int:
        """The highest sequence number that is not staged, or is published."""
        done = self.state_of(self.refs.get("main")).published
        history = self._history(self.refs.get("staging"))
        below = next((each for each in history if each not in self.stages), None)
        known = [*self.staged[:done][-1:], *([] if below is None else [below])]
        return max((self.landed[each]["sequence-number"] for each in known), default=0)

    def proves_position(self) -> bool:
        """Whether staging's history, as far as it is there, leads to what main has."""
        main = list(self._history(self.refs.get("main")))
        there = len(list(takewhile(self.retained.__contains__, main)))
        cursor = next(iter(self._marks(self.refs.get("main"))), None)
        for snapshot_id in self._history(self.refs.get("staging")):
            if snapshot_id not in self.retained:
                return False
            mark = self.landed[snapshot_id]["summary"].get(MARKER)
            if snapshot_id == cursor or snapshot_id in main[:there]:
                return True
            if cursor is not None and mark == str(cursor):
                return True
        return there == len(main)

    def _marks(self, snapshot_id: int | None) -> list[int]:
        """Markers in a history as far as it is there, newest first."""
        there = takewhile(self.retained.__contains__, self._history(snapshot_id))
        marks = (self.landed[each]["summary"].get(MARKER) for each in there)
        return [int(mark) for mark in marks if mark is not None]

    @property
    def has_lost_publishes(self) -> bool:
        """Whether main was rolled back behind publishes that staging stands on."""
        below = next((e for e in self._history(self.refs.get("staging")) if e in self.main), None)
        head = self.refs.get("main")
        return (
            below is not None
            and below not in self._history(head)
            and self.main[below].published > self.state_of(head).published
        )

    @property
    def unreadable(self) -> str | None:
        """A data file that waiting positions are in, if it is gone."""
        if not self.waiting:
            return None
        for staged_id in self.staged[-self.waiting :]:
            for dead in self.stages[staged_id].places:
                try:
                    self.read(dead.place[0])
                except Exception:
                    return dead.place[0]
        return None

    @property
    def has_moved_positions(self) -> bool:
        """Whether a waiting position is in a file that main does not have, nor the backlog.

        The state of staging does not say which ones a vector only repeats.
        """
        if not self.waiting:
            return False
        batch = [self.stages[each] for each in self.staged[-self.waiting :]]
        if self.reads_state:
            batch = [each.whole for each in batch]
        live = {path for path, _ in self.places.get(self.refs.get("main", -1), {})}
        known = live | {file.path for each in batch for file in each.files}
        return any(dead.place[0] not in known for each in batch for dead in each.places)

    @property
    def hidden_rows(self) -> bool:
        """Whether rows of a waiting data file that has left main got other row ids there."""
        head = self.refs.get("main")
        if not self.waiting or head is None or not self.main[head].renamed:
            return False
        state, live = self.main[head], {path for path, _ in self.places[head]}
        paths = {f.path for i in self.staged[-self.waiting :] for f in self.stages[i].files}
        return bool((paths & state.ever) - live)

    def _see_snapshot(self, metadata: dict[str, Any], snapshot: dict[str, Any]) -> None:
        snapshot_id = snapshot["snapshot-id"]
        operation = self.operation_of.get(snapshot_id)
        assert operation is not None, f"nobody drew snapshot {snapshot_id}"
        assert not any(i in self.landed for i in operation.ids), f"landed twice: {operation}"
        if operation.outcome not in {"running", "CommitUnknownError", "crashed"}:
            raise Violation(f"landed after it had said {operation.outcome}: {operation}")
        self.landed[snapshot_id] = snapshot
        if operation.kind == "stage":
            assert self.refs[operation.branch] == snapshot_id
            self.repeated.update(operation.again)
            if operation.branch == "staging":
                self.staged.append(snapshot_id)
            else:
                self.others.setdefault(operation.branch, []).append(snapshot_id)
            if not operation.is_foreign:
                self.kept_branches.add(operation.branch)
            self._bind_staged(metadata, snapshot, operation)
            return
        if self.refs["main"] != snapshot_id:
            assert self.refs["audit"] == snapshot_id, operation
            self._see_audit(metadata, snapshot)
            return
        self._see_main(metadata, snapshot, operation)

    def _bind_staged(
        self, metadata: dict[str, Any], snapshot: dict[str, Any], operation: Operation
    ) -> None:
        """Staged rows are what was asked for, under a schema that the writer may have met."""
        checked = check_snapshot(self.read, metadata, snapshot, repeated=self.repeated)
        known = self.schemas.by_schema_id[snapshot["schema-id"]]
        before = self._vectors_before(metadata, checked)
        staged = read_staged(
            self.files,
            checked,
            before,
            operation.keys,
            known,
            next_row_id=self._next_row_id(snapshot),
            is_again=bool(operation.again),
        )
        self.stages[snapshot["snapshot-id"]] = self._without_repeats(staged, operation)
        if operation.empties:
            self._check_emptied(checked)
        if operation.branch == "staging":
            for file in staged.files:
                self.order_of.setdefault(file.path, len(self.staged))
        expected = [] if operation.bound is None else [operation.bound]
        for schema in self.schemas.since(operation.since) if operation.bound is None else ():
            rows = operation.rows_under(schema)
            if rows is not None:
                expected.append((schema, tuple(rows)))
        for schema, wanted in expected:
            if Counter(wanted) == Counter(
                row
                for file in staged.files
                for at, row in enumerate(self.files.rows_of(file.path, schema))
                if at not in file.dead
            ):
                operation.bound = (schema, wanted)
                return
        raise Violation(f"other rows were staged: {operation}")

    def _without_repeats(self, staged: Staged, operation: Operation) -> Staged:
        """A batch of a stream that comes again means nothing, nor do deletes in its files."""
        if operation.epoch is not None:
            query, epoch = operation.epoch
            if epoch <= self.epochs.get(query, -1):
                self.world.outcomes["batches staged again"] += 1
                self.left_out.update(file.path for file in staged.files)
            self.epochs[query] = epoch
        return replace(
            staged,
            files=tuple(file for file in staged.files if file.path not in self.left_out),
            places=tuple(dead for dead in staged.places if dead.place[0] not in self.left_out),
        )

    def _check_emptied(self, checked: CheckedSnapshot) -> None:
        """No row of a file that was there before is left."""
        dead = self.files.vectors(checked)
        for file in checked.live:
            is_older = file.content == 0 and file.snapshot_id != checked.snapshot["snapshot-id"]
            if is_older and len(dead.get(file.path, ())) != file.record_count:
                raise Violation(f"a truncate has left rows in {file.path}")

    def _next_row_id(self, staged: dict[str, Any]) -> int:
        """The first row id that nobody had where staging left main."""
        ancestors = self._history(staged.get("parent-snapshot-id"))
        left = next((each for each in ancestors if each not in self.stages), None)
        made = {} if left is None else self.landed[left]
        if "first-row-id" not in made:  # v2, where nobody stages positions
            return 0
        return int(made["first-row-id"] + made["added-rows"])

    def _vectors_before(
        self, metadata: dict[str, Any], checked: CheckedSnapshot
    ) -> Mapping[str, Any]:
        """Positions that had been dead when a snapshot with vectors on older files was made."""
        snapshot_id = checked.snapshot["snapshot-id"]
        own = {f.path for f in checked.live if f.snapshot_id == snapshot_id and f.content == 0}
        if all(f.referenced is None or f.referenced in own or f.snapshot_id != snapshot_id
               for f in checked.live):  # fmt: skip
            return {}
        parent_id = checked.snapshot["parent-snapshot-id"]
        parent = next(s for s in metadata["snapshots"] if s["snapshot-id"] == parent_id)
        view = self.files.view(
            check_snapshot(self.read, metadata, parent, repeated=self.repeated),
            metadata,
            self.schemas.by_schema_id[parent["schema-id"]],
        )
        before: dict[str, set[int]] = {}
        for path, position in view.dead:
            before.setdefault(path, set()).add(position)
        return before

    def _see_main(
        self, metadata: dict[str, Any], snapshot: dict[str, Any], operation: Operation
    ) -> None:
        """One of the states that the operation may have made is there."""
        snapshot_id, parent_id = snapshot["snapshot-id"], snapshot.get("parent-snapshot-id")
        parent = self.state_of(parent_id)
        self._check_marker(parent, snapshot, operation)
        schema = self.schemas.by_schema_id[snapshot["schema-id"]]
        view = self.view(metadata, snapshot, schema)
        self.files.check_computed(view, schema)
        states = list(self._folds(parent, snapshot, operation, schema, view))
        assert states, f"no schema could take it, but it landed: {operation}"
        fitting = [state for state in states if state.rows == view.found]
        if not fitting:
            raise _different(snapshot, view.found, states[0].rows)
        if view.has_deletes and operation.kind not in {"pick", "upsert"}:
            surplus = {f.path for f in view.surplus} - self._may_keep(parent_id, operation)
            if surplus:
                raise Violation(f"equality or position deletes on main: {sorted(surplus)}")
        self._remember(snapshot_id, fitting[0], parent, view, operation)
        self._check_identities(snapshot, operation, parent.schema, fitting)

    def _may_keep(self, parent_id: int | None, operation: Operation) -> frozenset[str]:
        """Equality and position deletes of the parent; of a publish those that came after its
        start, which knew nothing of them."""
        given = self.deletes.get(parent_id or -1, frozenset())
        if operation.kind != "publish":
            return given
        heads = [self.deletes[each] for each in self._met(operation) if each in self.deletes]
        return given - frozenset.intersection(*heads) if heads else given

    def _remember(
        self,
        snapshot_id: int,
        state: MainState,
        parent: MainState,
        view: View,
        operation: Operation | None,
    ) -> None:
        """What is known of a snapshot of main, for those that follow it."""
        orders, renamed = parent.orders, parent.renamed
        if operation is not None and operation.is_lossy:
            parent_id = self.landed[snapshot_id].get("parent-snapshot-id", -1)
            before = in_other_schema(self.identities[parent_id], parent.schema, state.schema)
            orders, renamed = self._renamed(before, parent, view)
        live = {file.path for file in view.checked.live if file.content == 0}
        staged = frozenset(live & self.order_of.keys())
        self.listed[snapshot_id] = staged
        ever = parent.ever | staged
        if state.folded is not None and state.folded.placed:
            self.rewritten[snapshot_id] = state.folded.placed
            ever |= {path for path, _ in state.folded.placed}
        first = state.published
        waiting = {path for path in staged if self.order_of[path] > first}
        if waiting or any(order <= first for order in orders.values()):
            orders = {i: order for i, order in orders.items() if order > first}
            for (path, _), row_id in view.places.items() if waiting else ():
                if path in waiting:
                    orders[row_id] = self.order_of[path]
        self.identities[snapshot_id] = view.identities
        self.places[snapshot_id] = view.places
        self.deletes[snapshot_id] = _deletes(view)
        mark = self.landed[snapshot_id]["summary"].get(MARKER)
        self.main[snapshot_id] = replace(
            state,
            marked=parent.marked if mark is None else self.staged.index(int(mark)) + 1,
            has_deletes=view.has_deletes,
            orders=orders,
            ever=ever,
            renamed=renamed,
        )

    def _renamed(
        self, before: Identities, parent: MainState, view: View
    ) -> tuple[dict[int, int], dict[int, int]]:
        """Orders and row ids after a rewrite that has given rows other ids; equal rows in turn."""
        new: dict[Row, list[int]] = {}
        for row_id, (row, _) in sorted(view.identities.items()):
            if row_id not in before:
                new.setdefault(row, []).append(row_id)
        names = {
            row_id: new[row].pop(0)
            for row_id, (row, _) in sorted(before.items())
            if row_id not in view.identities and new.get(row)
        }
        orders = {names.get(i, i): order for i, order in parent.orders.items()}
        return orders, {**parent.renamed, **names}

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
        if operation.kind == "pick" or self._got_row_ids(snapshot):
            return
        if operation.kind == "publish":
            if self.world.profile.rewrites and self._lost_row_ids(snapshot):
                return  # which of main's rows are staged ones cannot be told any more
            number = snapshot["sequence-number"] if self.world.profile.rewrites else None
            fits = any(_has_folded(now, stored, state, number) for state in states)
            assert fits, f"other row ids: {_ids_of(now, states)}"
            return
        if operation.becomes is not None:
            number = snapshot["sequence-number"]
            assert any(_fits(now, state, number) for state in states), f"changed {now.items()}"
            return
        before = in_other_schema(stored, old, new)
        if operation.is_lossy and (operation.is_foreign or "first-row-id" not in snapshot):
            return
        if operation.kind == "rewrite":
            assert now == before, f"a rewrite changed {set(now.items()) ^ set(before.items())}"
        changed = {row_id for row_id in now.keys() & before.keys() if now[row_id] != before[row_id]}
        assert not changed, f"rows changed under their row ids {changed}"
        kept = {row for row, _ in now.values()} & {row for row, _ in before.values()}
        ids = {row_id for row_id, (row, _) in before.items() if row in kept}
        assert ids <= now.keys(), "rows got other row ids"

    def _got_row_ids(self, snapshot: dict[str, Any]) -> bool:
        """Whether a snapshot is the first after an upgrade."""
        parent = self.landed.get(snapshot.get("parent-snapshot-id", -1), snapshot)
        return "first-row-id" in snapshot and "first-row-id" not in parent

    def _lost_row_ids(self, snapshot: dict[str, Any]) -> bool:
        """Whether another tool's rewrite has given rows of its parent new row ids."""
        return bool(self.state_of(snapshot.get("parent-snapshot-id")).renamed)

    def _check_marker(
        self, parent: MainState, snapshot: dict[str, Any], operation: Operation
    ) -> None:
        marker = snapshot["summary"].get(MARKER)
        carried = 0 if marker is None else self.staged.index(int(marker)) + 1
        what = f"{operation.kind} moved the marker to {marker}"
        match operation.kind:
            case "append" | "pick" | "upsert":
                assert carried in {0, parent.marked}, what
            case "statement" | "rewrite":
                # Other tools repeat none, and what they leave in the history may have expired.
                parent_id = snapshot.get("parent-snapshot-id")
                is_silent = operation.is_foreign or self._marks(parent_id) == []
                assert carried == parent.marked or (is_silent and not carried), what
            case _:
                assert operation.kind == "publish", operation
                if parent.has_deletes and carried in {0, parent.marked}:
                    return  # in place
                assert marker is not None, "a publish without a marker"
                assert carried > parent.published, f"published again: {marker}"

    def _folds(
        self,
        parent: MainState,
        snapshot: dict[str, Any],
        operation: Operation,
        schema: TableSchema,
        view: View,
    ) -> Iterator[MainState]:
        """What main may be after it: one state per schema that the operation may have met."""
        before = in_schema(parent.rows, parent.schema, schema)
        if operation.kind == "pick":
            yield self._picked(parent, snapshot, operation, schema, view)
            return
        if operation.kind == "rewrite":
            yield MainState(before, parent.published, schema)
            return
        if operation.kind == "upsert":
            yield MainState(
                self._upserted(snapshot, operation, parent, schema), parent.published, schema
            )
            return
        if operation.kind == "publish":
            yield from self._published(parent, snapshot, schema)
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

    def _upserted(
        self,
        snapshot: dict[str, Any],
        operation: Operation,
        parent: MainState,
        schema: TableSchema,
    ) -> Counter[Row]:
        """Its rows, and those of its parent that its deletes do not name."""
        parent_id = snapshot["parent-snapshot-id"]
        before = next(s for s in self.metadata["snapshots"] if s["snapshot-id"] == parent_id)
        view = self.view(self.metadata, before, parent.schema)
        files = {f.path: (f.spec_id, f.partition) for f in view.checked.live if f.content == 0}
        rows = {p: view.identities[row_id][0] for p, row_id in view.places.items()}
        assert operation.bound is not None
        bound, new = operation.bound
        left = (
            moved(row, parent.schema, schema)
            for (path, _), row in rows.items()
            if not any(each.kills(row, parent.schema, files[path]) for each in operation.deletes)
        )
        return Counter(left) + Counter(moved(row, bound, schema) for row in new)

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
        both = TableSchema(-1 - self.files.memoized, (*known.columns, *dropped))
        parent = next(s for s in self.metadata["snapshots"] if s["snapshot-id"] == parent_id)
        return both, self.view(self.metadata, parent, both).identities

    def _inserted(
        self, operation: Operation, bound: TableSchema, parent: MainState, schema: TableSchema
    ) -> Counter[Row] | None:
        """Rows that a statement brings; None: not under this schema."""
        if operation.inserts is None:
            return Counter()
        if self._has_rows_of(operation, parent):
            return None
        given = operation.inserts({row[0] for row in parent.rows})
        rows = operation.rows_under(bound, given)
        return None if rows is None else Counter(moved(row, bound, schema) for row in rows)

    def _see_audit(self, metadata: dict[str, Any], snapshot: dict[str, Any]) -> None:
        """All of the other staging branch over the snapshot of main that the target began at."""
        schema = self.schemas.by_schema_id[snapshot["schema-id"]]
        parent_id = snapshot.get("parent-snapshot-id")
        began = self.converted.get(parent_id, parent_id)
        is_publish = MARKER in snapshot["summary"] and snapshot["summary"][MARKER] in map(
            str, self.others["cdc"]
        )
        if not is_publish:  # a conversion of what was forwarded or picked comes first
            self.converted[snapshot["snapshot-id"]] = began
        base = self._base(began, self.state_of(began), schema)
        base = replace(base, orders={}, ever=frozenset())  # of the branch `staging`
        staged = self.others["cdc"] if is_publish else ()
        batch = ((at, self.stages[each]) for at, each in enumerate(staged, start=1))
        view = self.view(metadata, snapshot, schema)
        rows = fold(base, batch, self.files, schema).rows
        if rows != view.found:
            raise _different(snapshot, view.found, rows)

    def _base(
        self, parent_id: int | None, state: MainState, schema: TableSchema, *, knows: bool = True
    ) -> Base:
        """A snapshot of main to fold over. `knows`: what became of rows under other row ids."""

        def lived(place: Place) -> list[int]:
            history = self._history(parent_id) if knows else ()
            known = ((self.places.get(each, {}), self.rewritten.get(each, {})) for each in history)
            ids = [places.get(place) for each in known for places in each]
            return [row_id for row_id in ids if row_id is not None]

        identities = {} if parent_id is None else self.identities[parent_id]
        named = {path for path, order in self.order_of.items() if order <= state.published}
        return Base(
            in_other_schema(identities, state.schema, schema),
            {} if parent_id is None else self.places[parent_id],
            state.orders,
            state.ever | named,
            named - state.ever,
            state.renamed if knows else {},
            lived,
        )

    def _published(
        self, parent: MainState, snapshot: dict[str, Any], schema: TableSchema
    ) -> Iterator[MainState]:
        """Its parent's rows and the staged snapshots up to its marker.

        A rewrite that gave new row ids hides what became of rows, an expired history that a staged
        data file was there, and the state of staging when a vector's rows died: then either answer
        is right.
        """
        mark = snapshot["summary"].get(MARKER)
        carried = 0 if mark is None else self.staged.index(int(mark)) + 1
        published = max(parent.published, carried)
        batch = [
            (at + 1, self.stages[self.staged[at]]) for at in range(parent.published, published)
        ]
        parent_id = snapshot.get("parent-snapshot-id")
        forgotten = self._forgotten(parent_id, parent, batch)
        for knows in (True, False) if parent.renamed else (True,):
            for gone in (frozenset(), forgotten) if forgotten else (frozenset(),):
                base = self._base(parent_id, parent, schema, knows=knows)
                unknown = {self.order_of[path] for path in gone}
                orders = {i: at for i, at in base.orders.items() if at not in unknown}
                base = replace(base, ever=base.ever - gone, orders=orders)
                rewrites = self.world.profile.rewrites
                for changes in (batch, as_in_state(batch)) if self.reads_state else (batch,):
                    folded = fold(base, changes, self.files, schema, rewrites=rewrites)
                    yield MainState(folded.rows, published, schema, folded=folded)

    def _forgotten(
        self, parent_id: int | None, parent: MainState, batch: list[tuple[int, Staged]]
    ) -> frozenset[str]:
        """Staged data files that were on main, and no snapshot says so any more."""
        if not self.world.profile.forgets:
            return frozenset()
        there = takewhile(self.retained.__contains__, self._history(parent_id))
        told = {path for each in there for path in self.listed.get(each, ())}
        return frozenset({f.path for _, each in batch for f in each.files} & parent.ever - told)

    def _picked(
        self,
        parent: MainState,
        snapshot: dict[str, Any],
        operation: Operation,
        schema: TableSchema,
        view: View,
    ) -> MainState:
        """The change of a staged snapshot, or data files of it, on top of the parent's rows."""
        source = None if operation.source is None else self.stages[operation.source]
        if source is not None:
            at = self.staged.index(operation.source or 0)
            assert at >= parent.published, f"picked, but published: {operation.source}"
        if source is not None and source.keys and self.world.profile.changes_spec:
            return MainState(view.found, parent.published, schema)  # deletes of other partitions
        base = self._base(snapshot.get("parent-snapshot-id"), parent, schema)
        sources = [] if source is None else [source]
        rows = picked(base, sources, operation.paths, self.files, schema)
        return MainState(rows, parent.published, schema)

    def _forwarded(self, snapshot_id: int) -> None:
        """Main is at a staged snapshot: what staging was there, is main now."""
        history = self._history(snapshot_id)
        known = next((each for each in history if each in self.main), None)
        parent, published = self.state_of(known), self.staged.index(snapshot_id) + 1
        snapshot = next(s for s in self.metadata["snapshots"] if s["snapshot-id"] == snapshot_id)
        schema = self.schemas.by_schema_id[snapshot["schema-id"]]
        batch = [
            (at + 1, self.stages[self.staged[at]]) for at in range(parent.published, published)
        ]
        rows = fold(self._base(known, parent, schema), batch, self.files, schema).rows
        view = self.view(self.metadata, snapshot, schema)
        if rows != view.found:
            raise _different(snapshot, view.found, rows)
        state = MainState(rows, published, schema)
        self._remember(snapshot_id, state, parent, view, None)

    def _see_moved_refs(self, old: dict[str, int], new: dict[str, int]) -> None:
        if new.get("main") != old.get("main"):
            if new["main"] not in self.main and new["main"] in self.staged:
                self._forwarded(new["main"])
            assert new["main"] in self.main, "main points at a snapshot that never was on it"
        if new.get("staging") not in {None, old.get("staging")}:
            state = self.main.get(new["staging"])
            assert state is not None, "staging moved to a snapshot that never was on main"
            assert state.published == len(self.staged), "the trim dropped staged changes"
            self.kept_branches.add("staging")

    def view(self, metadata: dict[str, Any], snapshot: dict[str, Any], schema: TableSchema) -> View:
        """A snapshot's rows, after a check of its files."""
        return self.files.view(check_snapshot(self.read, metadata, snapshot), metadata, schema)

    def check_everything(self) -> None:
        """Every retained snapshot by its own files; every reachable object exists."""
        metadata = read_metadata(self.read, self.location)
        for snapshot in metadata["snapshots"]:
            state = self.main.get(snapshot["snapshot-id"])
            if state is not None:
                view = self.view(metadata, snapshot, state.schema)
                checked = view.checked
                if view.found != state.rows:
                    raise _different(snapshot, view.found, state.rows)
            else:
                checked = check_snapshot(self.read, metadata, snapshot, repeated=self.repeated)
            for file in checked.live:
                self.read(file.path)

    def check_index(self, entries: Iterable[tuple[bytes, str, int]]) -> None:
        """An index of main's head names its live rows by keys, one to one (I5, I19).

        Rows that a vector has deleted may be in it as well.
        """
        head = self.refs["main"]
        metadata = read_metadata(self.read, self.location)
        snapshot = next(s for s in metadata["snapshots"] if s["snapshot-id"] == head)
        view = self.view(metadata, snapshot, self.main[head].schema)
        keys = {place: view.identities[row_id][0][0] for place, row_id in view.places.items()}
        found = {(path, position): key for key, path, position in entries}
        lacks = keys.keys() - found.keys()
        surplus = found.keys() - keys.keys() - view.dead
        assert not lacks, f"the index lacks {lacks}"
        assert not surplus, f"the index names what is no row of main {surplus}"
        pairs = {(found[at], key) for at, key in keys.items()}
        assert len(pairs) == len({each for each, _ in pairs}) == len({key for _, key in pairs})


def _deletes(view: View) -> frozenset[str]:
    """Files of equality deletes and of position deletes."""
    return frozenset(f.path for f in view.checked.live if f.content != 0 and f.offset is None)


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


def _ids_of(now: Identities, states: list[MainState]) -> str:
    """What is there, and what should be."""
    folded = states[0].folded
    assert folded is not None
    wanted = {i: row for i, (row, _) in folded.kept.items()} | folded.stored
    there = {i: row for i, (row, _) in now.items()}
    surplus = {i: row for i, row in there.items() if wanted.get(i) != row}
    lacks = {i: row for i, row in wanted.items() if there.get(i) != row}
    return f"{surplus} instead of {lacks}"


def _has_folded(now: Identities, before: Identities, state: MainState, updated: int | None) -> bool:
    """Whether the row ids are right after a publish: kept, stored in a staged file, or new.

    `updated`: of rows that came; None: not looked at.
    """
    folded = state.folded
    assert folded is not None
    more = now.keys() - folded.kept.keys() - folded.stored.keys()
    return (
        all(now.get(row_id) == each for row_id, each in folded.kept.items())
        and all(row_id in now and now[row_id][0] == row for row_id, row in folded.stored.items())
        and all(updated in {None, now[row_id][1]} for row_id in folded.stored)
        and not more & before.keys()
        and Counter(now[row_id][0] for row_id in more) == folded.fresh
    )


def _is_delete_of_flink(summary: Mapping[str, str]) -> bool:
    """Whether Flink's sink committed it, and not icefold, which repeats what Flink said."""
    is_own = "flink.job-id" in summary and "icefold.carried" not in summary
    return is_own and ("added-equality-delete-files" in summary or "added-dvs" in summary)
