"""What has happened to the table so far, as the swaps have shown it; and what follows from that.

Shares no code with icefold. The invariants are in `sim_check_*`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

from tests.support.sim_files import Files, Identities, Place, Spec, View, spec_of
from tests.support.sim_fold import Folded, Staged
from tests.support.sim_operation import Operation
from tests.support.sim_schema import COMPUTED, Row, SchemaHistory, TableSchema
from tests.support.sim_world import World
from tests.support.table_checker import CheckedSnapshot, Read, check_snapshot, read_metadata

MARKER = "equality-convert-staging-snapshot"
PUBLISH = "icefold.publish"


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


class History:
    """What has landed, and where the branches are."""

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
        self.moves: set[str] = set()  # versions where staging was dropped or moved (`sim_movers`)
        self.heads: list[tuple[int, int]] = []  # of main, by the swaps that made them
        self.deletes: dict[int, frozenset[str]] = {}  # of snapshots of main, no vectors
        self.stranded: set[int] = set()  # staged snapshots that another tool's expiry took
        self.settings: list[tuple[int, bool]] = []  # `icefold.publish`, by swaps: is it rewrite?
        self.reads_state = False  # publishes take staged changes from the branch's state

    def marked_by(self, mark: str | None) -> int:
        """How many staged snapshots a marker covers.

        Where nothing waits by the state of staging, its head is named: that may be one of main's.
        """
        if mark is None:
            return 0
        if int(mark) in self.main and int(mark) not in self.staged:
            return self.main[int(mark)].published
        return self.staged.index(int(mark)) + 1

    def writes_anew(self, publish: Mapping[str, Any]) -> bool:
        """Whether a publish writes staged rows once more: the setting when its cycle began, or one
        since then."""
        since = self.operation_of[publish["snapshot-id"]].since
        before = [rewrites for at, rewrites in self.settings if at <= since][-1:]
        met = {*before, *(rewrites for at, rewrites in self.settings if at > since)}
        said = publish["summary"].get("icefold.cycle-publish") == "rewrite"
        return said if said in met else not said

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
        self.settings = [(0, self.metadata["properties"].get(PUBLISH) == "rewrite")]
        self.schemas.see(self.metadata, 0)
        self.spec = spec_of(self.metadata, self.metadata["default-spec-id"])
        fields = self.metadata["schemas"][-1]["fields"]
        self.files.computed = next((f["id"] for f in fields if f["name"] == COMPUTED), None)

    def spec_fields(self) -> dict[str, tuple[int, str]]:
        """Source and transform by name of the default spec's fields."""
        specs, default = self.metadata["partition-specs"], self.metadata["default-spec-id"]
        spec = next(each for each in specs if each["spec-id"] == default)
        return {each["name"]: (each["source-id"], each["transform"]) for each in spec["fields"]}

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

    @property
    def stands_on_older(self) -> bool:
        """Whether what waits was staged on a snapshot of main before the last publish."""
        head = self.refs.get("main")
        published = self.state_of(head).published
        cursor = self.staged[published - 1] if published else None
        for each in self._history(self.refs.get("staging")) if self.waiting else ():
            if each == cursor:
                return False
            if each in self.main:
                return self.main[each].published < published
        return False

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
    def has_changed_copies(self) -> bool:
        """Whether a row is not in its place on main that a waiting copy was made of."""
        batch = [self.stages[each] for each in self.staged[-self.waiting :]] if self.waiting else []
        there = self.places.get(self.refs.get("main", -1), {})
        own = {file.path for each in batch for file in each.files}
        return any(each.never for each in batch) or any(
            dead.place not in there and dead.place[0] not in own
            for each in batch
            for dead in (each.places if each.is_copy and each.files else ())
        )

    @property
    def hidden_rows(self) -> bool:
        """Whether rows of a waiting data file that has left main got other row ids there."""
        head = self.refs.get("main")
        if not self.waiting or head is None or not self.main[head].renamed:
            return False
        state, live = self.main[head], {path for path, _ in self.places[head]}
        paths = {f.path for i in self.staged[-self.waiting :] for f in self.stages[i].files}
        return bool((paths & state.ever) - live)

    def view(self, metadata: dict[str, Any], snapshot: dict[str, Any], schema: TableSchema) -> View:
        """A snapshot's rows, after a check of its files."""
        return self.files.view(self.checked(metadata, snapshot), metadata, schema)

    def checked(
        self, metadata: dict[str, Any], snapshot: dict[str, Any], *, repeated: Collection[str] = ()
    ) -> CheckedSnapshot:
        """A snapshot's files, checked; `repeated`: those that may be listed twice.

        Totals are right where they are given; icefold's go on from those of the parent.
        """
        known = self.landed.get(
            snapshot["snapshot-id"], snapshot
        )  # expiry takes ids of parents away
        parent = self.landed.get(known.get("parent-snapshot-id", -1))
        has_totals = not self.operation_of[snapshot["snapshot-id"]].is_foreign and (
            parent is None or "total-records" in parent["summary"]
        )
        return check_snapshot(
            self.read, metadata, snapshot, repeated=repeated, has_totals=has_totals
        )
