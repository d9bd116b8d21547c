"""Random histories of icefold and another tool on one real table, beside a model of sets of rows.

The model follows one rule: staged changes come, in their order and once, after whatever is on the
target when they are published. It knows each row by its values (no two rows ever have the same) and
where it came from, whatever its `_row_id` became. Real ids are read from the files by the foreign
reader; no product code takes part in what is expected.

A history is a list of steps, each a name and a number that all its choices are drawn from. A step
that does not apply does nothing, so any part of a history is a history: `shrink` leaves steps out.
"""

from __future__ import annotations

import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pyarrow as pa

from maintenance.tasks.compact import compact
from maintenance.tasks.expire import expire
from maintenance.tasks.options import CompactOptions, ExpireOptions, RemoveOrphansOptions
from maintenance.tasks.remove_orphans import remove_orphans
from resolver import resolve
from resolver.index_check import verify
from tableformat import Table, open_catalog
from tableformat.commit.expiry_plan import ExpiryPolicy
from tableformat.errors import CommitConflictError, TableError
from tests.support.foreign_table import LONG_MAX, Entry
from tests.support.foreign_tool import ForeignTool, LiveRow, now_ms
from tests.support.interop_engines import duckdb_connection
from tests.support.interruptions import interrupt
from tests.support.lying_lock import GrantAllLock
from tests.support.memory_disk import memory_disk
from tests.support.staging_ledger import MARKER

SCHEMA = pa.schema([("id", pa.int64()), ("region", pa.string()), ("amount", pa.int64())])
KEYS = range(8)
COMPACTION = CompactOptions(rewrite_all=True, input_files_min=1)
EVERYTHING = ExpiryPolicy(max_snapshot_age_ms=0, min_snapshots_to_keep=1)
TARGETS = {"staging": "main", "cdc": "audit"}
EXPIRIES, ROLLBACKS = ("expire", "f_age_refs", "f_expire"), ("roll_back",)
IN_THE_CYCLE = ("resolve.after_plan", "resolve.after_match", "resolve.after_dv_write")

Row = tuple[int, str | None, int]
Step = tuple[str, int]


class Skipped(Exception):
    """The step does not apply here."""


class Stranded(Exception):
    """`resolve` refused where it may, and there is no way on yet."""


class Untold(Exception):
    """A staged file has been on the target and left it, and icefold does not look far enough back.

    The history that says so has expired.
    """


@dataclass(frozen=True)
class Version:
    """A snapshot: its rows, the staged snapshots in them, and every data file of its history."""

    rows: frozenset[Row]
    published: frozenset[int]
    was: frozenset[str]


@dataclass(frozen=True)
class Staged:
    """What a staged snapshot brought; `dead` as its writer saw them."""

    snapshot_id: int
    adds: dict[str, tuple[Row, ...]]
    keys: frozenset[int]
    dead: tuple[LiveRow, ...]
    sequence_number: int


@dataclass
class History:
    """One table, the tools on it, and the model."""

    partition_by: tuple[str, ...]
    expires: bool  # else it rolls back: after both, what staging stands on may be past proving
    folder: Path = field(
        default_factory=lambda: Path(tempfile.mkdtemp(prefix="icefold-foreign-", dir=memory_disk()))
    )
    versions: dict[int, Version] = field(default_factory=dict)
    staged: dict[str, list[Staged]] = field(default_factory=lambda: {"staging": [], "cdc": []})
    origin: dict[Row, object] = field(default_factory=dict)
    relabelled: set[Row] = field(default_factory=set)
    copied: dict[int, tuple[LiveRow, ...]] = field(default_factory=dict)  # by staged snapshot
    counts: Counter[str] = field(default_factory=Counter)
    has_expired: bool = False
    foreign_expired: bool = False
    doubled: bool = False
    amount: int = 0

    def __post_init__(self) -> None:
        self.lock = GrantAllLock(tokens="same")
        self.table = self.opened().create_table(
            "t.rows", SCHEMA, primary_key=["id"], partition_by=self.partition_by
        )
        self.foreign = ForeignTool(self.folder / "warehouse", "t", "rows")
        rng = random.Random(0)
        self.append(rng)
        first = self.head("main")
        self.foreign.set_branch("audit", first, max_ref_age_ms=LONG_MAX)
        self.stage(rng, "cdc")
        self.stage(rng, "staging")

    def opened(self):
        return open_catalog("local", warehouse=f"{self.folder}/warehouse")

    def close(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    # -- what is there -----------------------------------------------------------------------------

    def head(self, branch: str) -> int:
        head = self.foreign.head(branch)
        if head is None:
            raise AssertionError(f"branch {branch} is gone")
        return head

    def version(self, branch: str) -> Version:
        return self.versions[self.head(branch)]

    def live(self, branch: str) -> list[Entry]:
        return self.foreign.live(self.head(branch))

    def data(self, branch: str) -> Counter[str]:
        """How often each data file is live."""
        return Counter(each.path for each in self.live(branch) if each.is_data)

    def row_ids(self, branch: str = "main") -> dict[Row, int]:
        return {row.values: row.row_id for row in self.foreign.rows(branch)}

    def chain(self, branch: str) -> list[int]:
        """Its snapshots, newest first."""
        return [each["snapshot-id"] for each in self.foreign.table().ancestors(self.head(branch))]

    def pending(self, staging: str) -> list[Staged]:
        published = self.version(TARGETS[staging]).published
        return [each for each in self.staged[staging] if each.snapshot_id not in published]

    def came_from(self, row: Row) -> object:
        return self.origin.get(row, row)

    def fresh(self, keys: Iterable[int], rng: random.Random) -> list[Row]:
        found = []
        for key in keys:
            self.amount += 1
            found.append((key, rng.choice(["eu", "us", None]), self.amount))
        return found

    def draw(self, rng: random.Random, least: int = 1, most: int = 3) -> list[int]:
        return rng.sample(KEYS, rng.randint(least, most))

    def one_of(self, rng: random.Random, found: Sequence):
        if not found:
            raise Skipped
        return rng.choice(found)

    # -- the model ---------------------------------------------------------------------------------

    def note(self, branch: str, rows: Iterable[Row], published: frozenset[int] | None = None):
        """The branch's head holds these rows; what came before it in one go only converts."""
        table, head = self.foreign.table(), self.head(branch)
        new = []
        base = None
        for each in table.ancestors(head):
            base = self.versions.get(each["snapshot-id"])
            if base is not None:
                break
            new.append(each)
        was = base.was if base else frozenset()
        if published is None:
            published = base.published if base else frozenset()
        for each in reversed(new):
            was |= {entry.path for entry in table.entries(each) if entry.is_data}
            is_head = each["snapshot-id"] == head or base is None
            self.versions[each["snapshot-id"]] = Version(
                frozenset(rows) if is_head else base.rows,
                published if is_head else base.published,
                was,
            )

    def note_conversion(self, branch: str) -> None:
        """A cycle may have converted the target's own equality deletes in place before."""
        if self.head(branch) not in self.versions:
            known = next(each for each in self.chain(branch) if each in self.versions)
            self.note(branch, self.versions[known].rows)

    def note_staged(self, branch: str, rows: Sequence[Row], keys: Iterable[int], dead=()) -> None:
        """The head of a staging branch was just staged."""
        table = self.foreign.table()
        snapshot = table.head(branch)
        adds: dict[str, list[Row]] = {e.path: [] for e in table.added(snapshot) if e.is_data}
        found = {row.values: row for row in self.foreign.rows(branch)}
        for row in rows:
            at = found[row]
            adds[at.path].append(row)
            self.origin[row] = (at.path, at.position)
        change = Staged(
            snapshot_id=snapshot["snapshot-id"],
            adds={path: tuple(added) for path, added in adds.items()},
            keys=frozenset(keys),
            dead=tuple(dead),
            sequence_number=snapshot["sequence-number"],
        )
        self.staged[branch].append(change)
        before = self.versions[snapshot["parent-snapshot-id"]]
        gone = {row.values for row in change.dead}
        left = {r for r in before.rows if r[0] not in change.keys and r not in gone}
        self.note(branch, left | set(rows), before.published | {change.snapshot_id})

    def expected(self, staging: str, batch: Sequence[Staged], *, state: bool = False) -> set[Row]:
        """The target's rows once `batch` is published; `state`: from the staging head's state."""
        target = TARGETS[staging]
        version = self.version(target)
        at_target = {row.values: row for row in self.foreign.rows(target)}
        published = (e for e in self.staged[staging] if e.snapshot_id in version.published)
        place: dict[str, int] = {path: 0 for each in published for path in each.adds}
        later = [each for each in self.pending(staging) if each not in batch]
        for order, each in enumerate([*batch, *later], 1):
            for path in each.adds:
                place.setdefault(path, order)
        alive = {row: place.get(self.file_of(row), 0) for row in at_target}
        for order, each in enumerate(batch, 1):
            for row in [r for r, o in alive.items() if r[0] in each.keys and o < order]:
                if self.file_of(row) not in each.adds:
                    del alive[row]
            head = self.head(staging) if state else each.snapshot_id
            free = self.free_row_id(staging, head)
            own = {path for earlier in batch[:order] for path in earlier.adds} - version.was
            for dead in each.dead:
                if dead.path in own:  # that row and no other: nobody can have moved it
                    same = self.came_from(dead.values)
                    alive = {r: o for r, o in alive.items() if self.came_from(r) != same}
                else:
                    self._kill(alive, at_target, free, order, dead)
            for path, rows in each.adds.items():
                if path not in version.was and place[path] == order:
                    alive.update(dict.fromkeys(rows, order))
        return set(alive)

    def file_of(self, row: Row) -> str | None:
        """The staged file that brought it."""
        origin = self.origin.get(row)
        return str(origin[0]) if isinstance(origin, tuple) else None

    def free_row_id(self, staging: str, snapshot_id: int) -> int:
        """The first row id that nobody had when staging left the target."""
        staged = {each.snapshot_id for each in self.staged[staging]}
        staged -= set(self.chain(TARGETS[staging]))
        for each in self.foreign.table().ancestors(snapshot_id):
            if each["snapshot-id"] not in staged:
                return int(each["first-row-id"] + each["added-rows"])
        return 0

    def _kill(self, alive, at_target, free: int, order: int, dead: LiveRow) -> None:
        """The row that a staged position means; where its id is lost, newer rows of its key."""
        origin = self.came_from(dead.values)
        same = [r for r, o in alive.items() if self.came_from(r) == origin and o <= order]
        known = [
            r
            for r in same
            if r not in at_target
            or r not in self.relabelled
            or (at_target[r].path, at_target[r].position) == (dead.path, dead.position)
            or at_target[r].row_id == dead.row_id
        ]
        newer = [
            r
            for r, o in alive.items()
            if r in at_target
            and r[0] == dead.values[0]
            and at_target[r].row_id >= free
            and o < order
        ]
        for row in known or newer:
            del alive[row]

    def check_told(self, staging: str, batch: Sequence[Staged]) -> None:
        target = TARGETS[staging]
        left = self.left(staging, batch)
        published = self.version(target).published
        done = [each for each in self.staged[staging] if each.snapshot_id in published]
        again = left & {path for each in done for path in each.adds}
        if (left and self.foreign_expired) or (again and self.has_expired):
            raise Untold

    def left(self, staging: str, batch: Sequence[Staged]) -> set[str]:
        """Staged files that were on the target and are not live there."""
        target = TARGETS[staging]
        left = self.version(target).was - self.data(target).keys()
        return {path for each in batch for path in each.adds if path in left}

    def may_refuse(self, staging: str, batch: Sequence[Staged]) -> bool:
        if self.foreign_expired or self.has_changed_copies(staging, batch):
            return True
        left = self.left(staging, batch)
        lost = {o[0] for o in map(self.origin.get, self.relabelled) if isinstance(o, tuple)}
        return bool(left if self.has_expired else left & lost) or self.is_ambiguous(staging, batch)

    def has_changed_copies(self, staging: str, batch: Sequence[Staged]) -> bool:
        """Whether rows have left the places on the target that their writer saw: copied or not, is
        not asked."""
        there = {(row.path, row.position) for row in self.foreign.rows(TARGETS[staging])}
        was = self.version(TARGETS[staging]).was
        own = {path for each in batch for path in each.adds} - was
        return any(
            row.path not in own and (row.path, row.position) not in there
            for each in batch
            for row in self.copied.get(each.snapshot_id, ())
        )

    def is_ambiguous(self, staging: str, batch: Sequence[Staged]) -> bool:
        """A row of a file that left is gone: the target's newer rows of its key may be it."""
        here = [row.values for row in self.foreign.rows(TARGETS[staging])]
        origins = {self.came_from(row) for row in here}
        left = self.left(staging, batch)
        gone = {
            row[0]
            for each in batch
            for path in left & each.adds.keys()
            for row in each.adds[path]
            if self.came_from(row) not in origins
        }
        return any(row[0] in gone for row in here)

    # -- icefold -----------------------------------------------------------------------------------

    def append(self, rng: random.Random) -> None:
        rows = self.fresh(self.draw(rng), rng)
        before = self.version("main").rows if self.versions else frozenset()
        self.table.append(as_table(rows))
        self.note("main", before | set(rows))

    def stage(self, rng: random.Random, branch: str = "staging") -> None:
        rows = self.fresh(self.draw(rng, 0), rng)
        gone = self.draw(rng, 0 if rows else 1)
        deletes = pa.table({"id": pa.array(gone, pa.int64())})
        self.table.stage(upserts=as_table(rows), deletes=deletes, branch=branch)
        self.note_staged(branch, rows, {row[0] for row in rows} | set(gone))

    def stage_cdc(self, rng: random.Random) -> None:
        self.stage(rng, "cdc")

    def stage_append(self, rng: random.Random) -> None:
        rows = self.fresh(self.draw(rng), rng)
        self.table.append(as_table(rows), branch="staging")
        self.note_staged("staging", rows, ())

    def resolve(self, rng: random.Random) -> None:
        self.publish("staging", rng.choice([None, None, 1, 2]))

    def resolve_cdc(self, rng: random.Random) -> None:
        self.publish("cdc", rng.choice([None, 1]))

    def publish(self, staging: str, limit: int | None = None) -> None:
        target, waiting = TARGETS[staging], self.pending(staging)
        batch = waiting[:limit]
        self.check_told(staging, waiting)
        may_refuse = self.may_refuse(staging, batch)
        was, whole = self.version(target).was, self.expected(staging, waiting, state=True)
        # A limit is exceeded as far as others have brought later staged snapshots.
        wanted = {
            size: self.expected(staging, waiting[:size])
            for size in range(len(batch), len(waiting) + 1)
            if size == len(batch) or not was.isdisjoint(waiting[size - 1].adds)
        }
        ids = self.row_ids(target)
        for each in waiting:  # a copy has the ids that staging shows
            for row in self.copied.get(each.snapshot_id, ()):
                ids.pop(row.values, None)
        try:
            report = self._resolve(staging, limit)
        except TableError as error:
            self.counts["refused"] += 1
            text = str(error)
            self.note_conversion(target)
            assert may_refuse, f"resolve refused: {text}"
            self.check_refusal(error)
            if "copies would bring" in text:
                self.give_up(staging, waiting, int(error.context["snapshot_id"]))
                self.publish(staging)
                return
            if "--from-staging-state" not in text:
                raise Stranded(text) from None
            self.counts["from staging state"] += 1
            self._resolve_state(staging, waiting)
            self.counts["went on"] += 1
            self.note_publish(target, waiting, whole)
        else:
            if not self.has_expired:
                assert report.staged_snapshots >= len(batch), (report, len(batch))
            size = self.covered(target, waiting, len(batch))
            self.note_publish(target, waiting[:size], wanted[size])
        moved = {r for r, row_id in self.row_ids(target).items() if row_id != ids.get(r, row_id)}
        assert not moved, f"a publish gave other row ids to {moved}"

    def give_up(self, staging: str, waiting: Sequence[Staged], snapshot_id: int) -> None:
        """Move staging back to before a statement, as the refusal says."""
        lost = next(at for at, each in enumerate(waiting) if each.snapshot_id == snapshot_id)
        first = self.foreign.table().by_id[snapshot_id]
        self.foreign.set_branch(staging, first["parent-snapshot-id"])
        gone = {each.snapshot_id for each in waiting[lost:]}
        self.staged[staging] = [e for e in self.staged[staging] if e.snapshot_id not in gone]
        self.table.refresh()
        self.counts["copies given up"] += 1

    def covered(self, target: str, waiting: Sequence[Staged], size: int) -> int:
        """How many staged snapshots the target's head says that it holds; `size` if it is mute."""
        marker = self.foreign.table().head(target)["summary"].get(MARKER)
        ids = [str(each.snapshot_id) for each in waiting]
        return ids.index(marker) + 1 if marker in ids else size

    def note_publish(self, target: str, batch: Sequence[Staged], wanted: set[Row]) -> None:
        """The batch was published: its target holds what it should."""
        found = {row.values for row in self.foreign.rows(target)}
        check_equal(found, wanted, f"{target} after a publish")
        self.check_files_once(target)
        left = [entry.path for entry in self.live(target) if entry.is_key_delete]
        assert not left, f"equality deletes are live on {target} after a publish: {left}"
        known = next(each for each in self.chain(target) if each in self.versions)
        done = self.versions[known].published | {each.snapshot_id for each in batch}
        self.versions.pop(self.head(target), None)
        self.note(target, found, done)
        self.counts["published"] += len(batch)

    def _resolve(self, staging: str, limit: int | None):
        target = TARGETS[staging]
        return resolve(self.table, staging=staging, target=target, limit=limit, lock=self.lock)

    def check_refusal(self, error: TableError) -> None:
        """One line, and it says how to go on."""
        assert error.action, f"no way on: {error}"
        assert "\n" not in str(error), str(error)

    def _resolve_state(self, staging: str, waiting: Sequence[Staged]) -> None:
        """The way on; where it cannot be told what is staged, the operator says it."""
        target = TARGETS[staging]
        go_on = partial(
            resolve, self.table, staging=staging, target=target, lock=self.lock,
            from_staging_state=True,
        )  # fmt: skip
        try:
            try:
                go_on()
            except TableError as error:
                self.check_refusal(error)
                if "--staged-after" not in str(error) or not waiting:
                    raise
                self.counts["staged after"] += 1
                go_on(staged_after=min(each.sequence_number for each in waiting) - 1)
        except TableError as error:
            self.check_refusal(error)
            raise Stranded(str(error)) from None

    def resolve_beside_others(self, rng: random.Random) -> None:
        """Another tool commits to main inside the cycle."""
        if not self.pending("staging"):
            raise Skipped
        act = rng.choice([self.f_append, self.f_compact, self.f_compact_without_ids, self.f_pick,
                          self.compact_elsewhere, self.f_delete])  # fmt: skip
        batch = self.pending("staging")
        self.check_told("staging", batch)
        refusal = self.may_refuse("staging", batch)
        point = rng.choice(IN_THE_CYCLE)
        held: list[set[Row]] = []
        untold: list[Untold] = []

        def others() -> None:
            self.note_conversion("main")
            try:
                act(rng)
            except Skipped:
                self.counts["skipped inside"] += 1
            done = self.version("main").published  # a pick may have been a fast-forward
            left = [each for each in batch if each.snapshot_id not in done]
            try:
                self.check_told("staging", left)
            except Untold as error:
                untold.append(error)
            held.append(self.expected("staging", left))

        interrupt(self.table, point, others)
        try:
            self._publish_inside(batch, held, refusal, untold)
        finally:
            self.table.environment.runtime.fail_points.armed.clear()

    def _publish_inside(self, batch, held: list[set[Row]], refusal: bool, untold) -> None:
        try:
            self._resolve("staging", None)
        except CommitConflictError as error:
            # Main was forwarded to what the cycle covers (a pick of the next snapshot is that).
            if "run resolve again" not in str(error):
                raise
            self.counts["run again"] += 1
            self.note_conversion("main")
            if untold:
                raise untold[0] from None
            self.publish("staging")
            return
        except TableError as error:
            self.note_conversion("main")
            if refusal or untold or self.may_refuse("staging", batch):
                self.check_refusal(error)
                if "copies would bring" not in str(error):
                    raise Stranded(str(error)) from None
                self.give_up("staging", batch, int(error.context["snapshot_id"]))
                if untold:
                    raise untold[0] from None
                self.table.environment.runtime.fail_points.armed.clear()  # it may not have come
                self.publish("staging")
                return
            raise AssertionError(f"resolve refused: {error}") from error
        if untold:
            raise untold[0]
        self.note_publish("main", batch, held[0] if held else self.expected("staging", batch))

    def compact_elsewhere(self, rng: random.Random) -> None:
        self._compact(self.opened().load_table("t.rows"))

    def compact(self, rng: random.Random) -> None:
        self._compact(self.table)

    def _compact(self, table: Table) -> None:
        before = self.row_ids()
        rows = self.version("main").rows
        compact(table, COMPACTION, lock=self.lock)
        self.note("main", rows)
        assert self.row_ids() == before, "compaction changed rows or their ids"

    def delete(self, rng: random.Random) -> None:
        below, mode = rng.choice(KEYS), rng.choice(["merge-on-read", "copy-on-write"])
        rows = self.version("main").rows
        left = {r for r in rows if not (r[0] < below and r[1] == "eu")}
        self.table.delete(f"id < {below} and region = 'eu'", mode=mode)
        if self.head("main") not in self.versions:
            self.note("main", left)

    def update(self, rng: random.Random) -> None:
        key, mode = rng.choice(KEYS), rng.choice(["merge-on-read", "copy-on-write"])
        self.amount += 1
        more = self.amount * 1_000_000
        before = self.row_ids()
        rows = self.version("main").rows
        moved = {r: (key, "up", r[2] + more) for r in rows if r[0] == key}
        assignments = {"region": "'up'", "amount": f"amount + {more}"}
        self.table.update(assignments, f"id = {key}", mode=mode)
        for old, new in moved.items():
            self.origin[new] = self.came_from(old)
            if old in self.relabelled:
                self.relabelled.add(new)
        if self.head("main") not in self.versions:
            self.note("main", (rows - moved.keys()) | set(moved.values()))
        assert self.row_ids() == {moved.get(row, row): row_id for row, row_id in before.items()}

    def roll_back(self, rng: random.Random) -> None:
        goal = self.one_of(rng, self.chain("main")[1:5])
        if rng.random() < 0.5:
            self.table.refs.rollback(snapshot_id=goal)
        else:
            self.foreign.set_branch("main", goal)

    def fast_forward(self, rng: random.Random) -> None:
        head, chain = self.head("main"), self.chain("staging")
        if head not in chain:
            raise Skipped
        goal = self.one_of(rng, chain[: chain.index(head)])
        if twice(self.foreign.live(goal)):
            raise Skipped  # whoever moves main there puts the file there twice himself
        if rng.random() < 0.5:
            self.table.refs.fast_forward("main", to=goal)
        else:
            self.foreign.set_branch("main", goal)

    def cherry_pick(self, rng: random.Random) -> None:
        self._pick(rng, lambda picked: self.table.refs.cherry_pick(snapshot_id=picked))

    def f_pick(self, rng: random.Random) -> None:
        self._pick(rng, self.foreign.cherry_pick)

    def _pick(self, rng: random.Random, pick: Callable[[int], int | None]) -> None:
        before = self.version("main")
        picked = self.one_of(rng, self._pickable(before))
        try:
            new = pick(picked.snapshot_id)
        except TableError:
            new = None
        if new is None:
            raise Skipped
        if new not in self.versions:  # else it was a fast-forward
            left = {r for r in before.rows if r[0] not in picked.keys}
            self.note("main", left.union(*picked.adds.values()))

    def _pickable(self, version: Version) -> list[Staged]:
        """Without vectors, which only a fast-forward can pick; and nothing that main has had."""
        halves = {path for each in self.staged["staging"] if each.dead for path in each.adds}
        waiting = [each for each in self.pending("staging") if not each.dead]
        return [each for each in waiting if (version.was | halves).isdisjoint(each.adds)]

    def expire(self, rng: random.Random) -> None:
        expire(self.table, ExpireOptions(policy=EVERYTHING), lock=self.lock)
        self.has_expired = True

    def remove_orphans(self, rng: random.Random) -> None:
        options = RemoveOrphansOptions(older_than_ms=1, older_than_min_ms=0)
        remove_orphans(self.table, options, lock=self.lock)

    # -- the other tool ----------------------------------------------------------------------------

    def f_append(self, rng: random.Random) -> None:
        rows = self.fresh(self.draw(rng), rng)
        before = self.version("main").rows
        self.foreign.append(rows)
        self.note("main", before | set(rows))

    def f_stage(self, rng: random.Random, branch: str = "staging") -> None:
        rows = self.fresh(self.draw(rng, 0), rng)
        keys = {row[0] for row in rows} | set(self.draw(rng, 0 if rows else 1))
        add = [*self.foreign.data_files(rows), *self.foreign.key_deletes(list(keys))]
        self.foreign.commit(branch, "overwrite", add=add)
        self.note_staged(branch, rows, keys)

    def f_stage_cdc(self, rng: random.Random) -> None:
        self.f_stage(rng, "cdc")

    def f_stage_append(self, rng: random.Random) -> None:
        rows = self.fresh(self.draw(rng), rng)
        self.foreign.append(rows, branch="staging")
        self.note_staged("staging", rows, ())

    def f_stage_vector(self, rng: random.Random) -> None:
        branch = rng.choice(["staging", "staging", "cdc"])
        rows = self._staged_rows(branch)
        if not rows:
            raise Skipped
        dead = rng.sample(rows, rng.randint(1, min(2, len(rows))))
        self.foreign.delete_rows(branch, dead)
        self.note_staged(branch, [], (), dead)

    def f_stage_update(self, rng: random.Random) -> None:
        old = self.one_of(rng, self._staged_rows("staging"))
        [new] = self.fresh([old.values[0]], rng)
        self.foreign.update_rows("staging", [(old, new)])
        self.note_staged("staging", [new], (), [old])

    def f_stage_copy(self, rng: random.Random) -> None:
        """An UPDATE or DELETE of one row that writes its file anew; the others are copied."""
        old = self.one_of(rng, self._staged_rows("staging"))
        new = self.fresh([old.values[0]], rng) if rng.random() < 0.6 else []
        rows = self.foreign.rows("staging")
        seen = tuple(r for r in rows if r.path == old.path)
        for row in seen:
            self.origin.setdefault(row.values, (row.path, row.position))
        self.foreign.copy_on_write(
            "staging", lambda row: (new[0] if new else None) if row == old else row.values
        )
        self.note_staged("staging", new, (), [old])
        self.copied[self.head("staging")] = seen
        self.relabelled |= {row.values for row in seen if row != old}

    def _staged_rows(self, branch: str) -> list[LiveRow]:
        """Rows in files that are there once: positions of the others mean nothing."""
        files = self.data(branch)
        return [row for row in self.foreign.rows(branch) if files[row.path] == 1]

    def f_stage_again(self, rng: random.Random) -> None:
        """A writer that retries names the file of an earlier commit, and is right about neither."""
        first = self.one_of(rng, [each for each in self.pending("staging") if each.adds])
        old = self.version("staging")
        live = {e.path: e for e in self.live("staging") if e.path in first.adds}
        path = self.one_of(rng, sorted(live))
        self.foreign.add_path("staging", live[path])
        head = self.foreign.table().head("staging")
        again = Staged(
            head["snapshot-id"], {path: first.adds[path]}, frozenset(), (), head["sequence-number"]
        )
        self.staged["staging"].append(again)
        # What staging's readers see of a file that is there twice is nobody's promise.
        self.note("staging", old.rows, old.published | {again.snapshot_id})
        self.doubled = True

    def f_compact(self, rng: random.Random, *, keep_row_ids: bool = True) -> None:
        rows = self.version("main").rows
        if self.foreign.rewrite(keep_row_ids=keep_row_ids) is not None:
            self.relabelled |= set() if keep_row_ids else rows
            self.note("main", rows)

    def f_compact_without_ids(self, rng: random.Random) -> None:
        self.f_compact(rng, keep_row_ids=False)

    def f_delete(self, rng: random.Random) -> None:
        row = self.one_of(rng, self.foreign.rows("main"))
        rows = self.version("main").rows - {row.values}
        if rng.random() < 0.5:
            self.foreign.delete_rows("main", [row])
        else:
            self.foreign.rewrite(keep_row_ids=True, without=lambda each: each.values == row.values)
        self.note("main", rows)

    def f_add_path(self, rng: random.Random) -> None:
        # Half of an UPDATE (its rows without its vector) would give row ids twice.
        version = self.version("main")
        halves = {path for each in self.staged["staging"] if each.dead for path in each.adds}
        waiting = [(path, each) for each in self.pending("staging") for path in sorted(each.adds)]
        free = [pair for pair in waiting if pair[0] not in version.was | halves]
        path, picked = self.one_of(rng, free)
        live = {e.path: e for e in self.live("staging")}
        if path not in live:
            raise Skipped
        self.foreign.add_path("main", live[path])
        self.note("main", version.rows | set(picked.adds[path]))

    def f_age_refs(self, rng: random.Random) -> None:
        self.foreign.set_properties({"history.expire.max-ref-age-ms": "1"})

    def f_expire(self, rng: random.Random) -> None:
        self.foreign.expire(older_than_ms=now_ms(), retain_last=1)
        self.has_expired = self.foreign_expired = True

    # -- running -----------------------------------------------------------------------------------

    def step(self, name: str, number: int) -> None:
        """One step, then the invariants."""
        try:
            if name in (ROLLBACKS if self.expires else EXPIRIES):
                raise Skipped
            getattr(self, name)(random.Random(number))
        except Skipped:
            self.counts["skipped"] += 1
            return
        self.table.refresh()
        self.counts[name] += 1
        self.check()

    def check(self) -> None:
        for branch in ("staging", "cdc"):
            # A writer of staging may have named a file twice; and a trimmed one is the target.
            if not self.doubled:
                self.check_files_once(branch)
                rows = {row.values for row in self.foreign.rows(branch)}
                check_equal(rows, self.version(branch).rows, branch)
        for branch in ("main", "audit"):
            self.check_files_once(branch)
            found = self.foreign.rows(branch)
            check_equal([row.values for row in found], self.version(branch).rows, branch)
            assert len({row.row_id for row in found}) == len(found), f"row ids twice on {branch}"
        if not any(each.is_key_delete for each in self.live("main")):
            self.judge(self.version("main").rows)

    def check_files_once(self, branch: str) -> None:
        found = twice(self.live(branch))
        assert not found, f"a data file is live twice on {branch}: {found}"

    def judge(self, rows: frozenset[Row]) -> None:
        path = self.foreign.location().removeprefix("file://")
        scan = f"SELECT id, region, amount FROM iceberg_scan('{path}')"
        check_equal(duckdb_connection().sql(scan).fetchall(), rows, "DuckDB")

    def finish(self) -> None:
        """At the end everything staged is published, once."""
        self.stage(random.Random(0))  # the index follows what is published
        for staging in ("staging", "cdc"):
            self.publish(staging)
            self.check()
            assert not self.pending(staging)
            assert self._resolve(staging, None).staged_snapshots == 0
            self.check()
        assert verify(self.table).report.is_sound
        self.replace_table()

    def replace_table(self) -> None:
        """The last thing that can happen: nothing of the old main comes to the new one."""
        rows = self.fresh(KEYS[:2], random.Random(0))
        self.foreign.replace_table(rows)
        try:
            self._resolve("staging", None)
        except TableError as error:
            self.check_refusal(error)
            check_equal([row.values for row in self.foreign.rows("main")], rows, "replaced")
        else:
            raise AssertionError("resolve knows nothing of the new main, and goes on")


STEPS: dict[str, int] = {
    "append": 2, "stage": 6, "stage_cdc": 2, "stage_append": 2, "resolve": 6, "resolve_cdc": 2,
    "resolve_beside_others": 2, "compact": 3, "delete": 2, "update": 3, "roll_back": 2,
    "fast_forward": 2, "cherry_pick": 2, "expire": 2, "remove_orphans": 1, "f_append": 2,
    "f_stage": 2, "f_stage_cdc": 2, "f_stage_append": 2, "f_stage_vector": 5, "f_stage_update": 3,
    "f_stage_again": 1, "f_stage_copy": 2, "f_compact": 2, "f_compact_without_ids": 1,
    "f_delete": 2, "f_pick": 2, "f_add_path": 2, "f_age_refs": 1, "f_expire": 1,
}  # fmt: skip


def steps_of(seed: int, count: int) -> list[Step]:
    """The history of a seed."""
    rng = random.Random(seed)
    names = rng.choices(list(STEPS), list(STEPS.values()), k=count)
    return [(name, rng.randrange(1 << 30)) for name in names]


def run(seed: int, steps: Sequence[Step]) -> Counter[str]:
    """Run a history; what it did. AssertionError, or what the product raised: it failed."""
    partition_by = () if seed % 3 else ("bucket(2, id)",)
    history = History(partition_by, expires=seed % 2 == 0)
    try:
        for name, number in steps:
            history.step(name, number)
        history.finish()
    except Stranded:
        history.counts["stranded"] += 1
    except Untold:
        history.counts["untold"] += 1
    finally:
        history.close()
    return history.counts


def failure_of(seed: int, steps: Sequence[Step]) -> BaseException | None:
    """What went wrong, if something did."""
    try:
        run(seed, steps)
    except Exception as error:
        return error
    return None


def shrink(seed: int, steps: Sequence[Step], runs_max: int = 60) -> list[Step]:
    """The same failure (its first words) with fewer steps, as far as `runs_max` runs get."""
    wanted = first_words(failure_of(seed, steps))
    left, size, runs = list(steps), max(len(steps) // 2, 1), 0
    while runs < runs_max:
        at = 0
        while at < len(left) and runs < runs_max:
            fewer = left[:at] + left[at + size :]
            runs += 1
            if first_words(failure_of(seed, fewer)) == wanted:
                left = fewer
            else:
                at += size
        if size == 1:
            break
        size = max(size // 2, 1)
    return left


def first_words(error: BaseException | None) -> str:
    """What kind of failure it is."""
    return "" if error is None else " ".join(f"{type(error).__name__} {error}".split()[:4])


def as_table(rows: Sequence[Row]) -> pa.Table:
    columns = list(zip(*rows, strict=True)) or [(), (), ()]
    return pa.table(dict(zip(SCHEMA.names, map(list, columns), strict=True)), schema=SCHEMA)


def twice(entries: Iterable[Entry]) -> list[str]:
    """Data files that are live twice."""
    files = Counter(each.path for each in entries if each.is_data)
    return [path for path, count in files.items() if count > 1]


def check_equal(found: Iterable[Row], wanted: Iterable[Row], where: str) -> None:
    """The same rows, each as often."""
    missing, extra = Counter(wanted) - Counter(found), Counter(found) - Counter(wanted)
    assert not missing, f"{where}: missing {dict(missing)}, too many {dict(extra)}"
    assert not extra, f"{where}: too many {dict(extra)}"
