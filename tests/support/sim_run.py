"""One seed from its number to its verdict: the actors, the two phases, the result."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, NamedTuple, Self
from unittest.mock import patch

import pyarrow as pa

import resolver.batch_parts
import resolver.key_reader
from lock import LockError
from maintenance.tasks.compact import compact
from maintenance.tasks.drop_dead_deletes import drop_dead_deletes
from maintenance.tasks.options import (
    CompactOptions,
    RemoveOrphansOptions,
    RewriteManifestsOptions,
    RewriteVectorsOptions,
)
from maintenance.tasks.remove_orphans import remove_orphans
from maintenance.tasks.rewrite_manifests import rewrite_manifests
from maintenance.tasks.rewrite_vectors import rewrite_vectors
from resolver.cycle import Cycle, CycleOptions
from resolver.index.local import LocalIndex
from resolver.index_keeper import TargetHead
from resolver.maintenance_lock import fence_of, hold_maintenance
from resolver.open_indexes import OpenIndexes
from resolver.report import ResolveReport
from resolver.target import live_files
from tableformat import Table, TableCatalog
from tableformat.catalog.keyed import KeyedCatalog
from tableformat.cdc.batch_commit import BatchId
from tableformat.cdc.change_writer import ChangeWriter, WrittenFiles
from tableformat.cdc.ingest import write_batch
from tableformat.cdc.sink import plan_sink
from tableformat.cdc.truncation import Truncation
from tableformat.commit.expire import apply_expiry
from tableformat.commit.expiry_plan import ExpiryPolicy
from tableformat.commit.refs import create_branch, rollback
from tableformat.environment import Environment
from tableformat.errors import (
    AlreadyExistsError,
    CommitConflictError,
    CommitUnknownError,
    CorruptDataError,
    FencedError,
    InvalidInputError,
    NotFoundError,
    StoreUnavailableError,
    TableError,
    UnsupportedError,
)
from tableformat.runtime import Runtime, SystemClock
from tests.support.foreign_table import ForeignTable, without_key
from tests.support.memory_catalog import MemoryCatalog
from tests.support.memory_index import MemoryIndex
from tests.support.memory_store import MemoryObjectStore
from tests.support.sim_draw import (
    ARROW,
    SchemaEdit,
    Serial,
    SpecEdit,
    as_events,
    as_table,
    draw_columns,
    draw_rows,
    draw_schema_edit,
    draw_spec_edit,
    draw_statement,
)
from tests.support.sim_flink import commit_checkpoint, draw_checkpoint
from tests.support.sim_index import DiskIndexKeeper, SimKeeper, index_folders
from tests.support.sim_meddlers import Meddlers
from tests.support.sim_merge import draw_merge, run_merge
from tests.support.sim_oracle import Operation, Oracle
from tests.support.sim_schema import (
    AMOUNT,
    COMPUTED,
    ID,
    REGION,
    Column,
    Row,
    TableSchema,
    in_schema,
)
from tests.support.sim_seams import (
    MemoryIndexKeeper,
    SimLock,
    SimPointers,
    SimStore,
    WatchedPointers,
)
from tests.support.sim_world import Actor, Crash, Halt, Profile, SimClock, SimIds, World

IDENTIFIER = ("t", "rows")
NAME = "t.rows"
EXPECTED_ERRORS = (
    CommitConflictError,
    CommitUnknownError,
    FencedError,
    StoreUnavailableError,
    LockError,
)
TRUNCATE_RATE = 0.15
CAN_READ_STATE = "from_staging_state" in CycleOptions.__dataclass_fields__
GONE, CUT, MOVED_BACK = (
    "staged snapshots have gone",
    "the histories of the branches do not meet any more",
    "rolled back and expired",
)
OF_LOST_LOGS = frozenset({GONE, CUT, MOVED_BACK})
ON_DISK = 0.3  # seeds with the real index
STREAMS = 0.2  # seeds with queries that append to staging; not with who brings what is staged
BRINGERS = frozenset({"adder", "forwarder", "picker", "retrier"})
# A flipped bit may make an unknown codec of a known one.
DAMAGE_ERRORS = (CorruptDataError, UnsupportedError)


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedResult:
    """What a seed did. `violation` None: all invariants held."""

    seed: int
    steps: int
    swaps: int
    publishes: int
    faults: Counter[str]
    outcomes: Counter[str]
    points: Counter[tuple[str, str]]
    violation: str | None
    log_hash: str
    profile: Profile
    trace: list[str] | None = None


def run_seed(
    seed: int,
    *,
    steps: int = 500,
    trace: bool = False,
    meddlers: tuple[str, ...] | None = None,
    rewrites: bool | None = None,
    leaves_out: bool = False,
    v2: bool = False,
    index: str | None = None,
    in_place: bool = False,
    computes: bool = False,
) -> SeedResult:
    """Run one seed: faults and assertions first, then a healed system that must drain.

    `meddlers`, `rewrites`, `index`: these instead of what the seed draws. `leaves_out`: writers
    leave columns out of rows; nobody else then brings staged rows to main, or changes the table.
    `v2`: the table is of format version 2, and as drawn otherwise where that can be
    (`Profile.on_v2`). `in_place`: a tool commits equality deletes to main (`Profile.in_place`).
    `computes`: the table has a stored computed column (`Profile.computing`).
    """
    profile = Profile.draw(random.Random(f"{seed}/profile"), steps)
    if rewrites is not None:
        profile = replace(profile, rewrites=rewrites)
    if meddlers is not None:
        profile = replace(profile, meddlers=meddlers)
    if profile.rewrites and profile.expires:
        # Once a publish's staged snapshots have expired, nothing tells which files it wrote anew:
        # a repeat of one looks like a new file (docs/resolving.md).
        kept = tuple(each for each in profile.meddlers if each != "retrier")
        profile = replace(profile, meddlers=kept)
    if meddlers is None and random.Random(f"{seed}/streamer").random() < STREAMS:
        profile = replace(profile, meddlers=(*profile.meddlers, "streamer"))
    if profile.forgets or not BRINGERS.isdisjoint(profile.meddlers):
        # A repeated batch is told by the history of its branch, and by publishes from it.
        kept = tuple(each for each in profile.meddlers if each != "streamer")
        profile = replace(profile, meddlers=kept)
    if leaves_out:
        profile = replace(
            profile, leaves_out=True, meddlers=(), changes_schema=False, changes_spec=False
        )
    if v2:
        profile = profile.on_v2(random.Random(f"{seed}/v2"))
    if in_place:
        profile = profile.in_place(random.Random(f"{seed}/in-place"))
    if computes:
        profile = profile.computing(random.Random(f"{seed}/computes"))
    # Drawn by itself, so that the rest of what a seed draws does not depend on it.
    drawn = "disk" if random.Random(f"{seed}/index").random() < ON_DISK else "memory"
    profile = replace(profile, index=index or drawn)
    world = World(seed, profile)
    world.trace = [] if trace else None
    simulation = _Simulation(world)
    with (
        _batches_in_parts() if profile.rewrites and seed % 2 else nullcontext(),
        index_folders() if profile.index == "disk" else nullcontext() as simulation.folders,
    ):
        world.run()
        if world.violation is None:
            try:
                simulation.drain()
            except AssertionError as error:
                world.fail(str(error))
            except Exception as error:
                world.fail(f"while draining: {type(error).__name__}: {error}")
    oracle = simulation.oracle
    kinds = Counter(oracle.operation_of[each].kind for each in oracle.landed)
    return SeedResult(
        seed=seed,
        steps=world.steps,
        swaps=oracle.swaps,
        publishes=kinds["publish"],
        faults=world.faults,
        outcomes=world.outcomes,
        points=world.points,
        violation=world.violation,
        log_hash=world.log_hash(),
        profile=profile,
        trace=world.trace,
    )


@contextmanager
def _batches_in_parts() -> Iterator[None]:
    """Batches of a few keys are matched as those of millions are."""
    with (
        patch.object(resolver.batch_parts, "PART_KEYS", 4),
        patch.object(resolver.key_reader, "SMALL_FROM_ROWS", 0),
    ):
        yield


def _of_format(profile: Profile) -> dict[str, str]:
    if profile.v2 is None:
        return {}
    return {"format-version": "2", "write.delete.granularity": profile.v2}


@dataclass(frozen=True, slots=True, kw_only=True)
class TruncatingWriter(ChangeWriter):
    """A batch of a source that was emptied before."""

    @classmethod
    def of(cls, writer: ChangeWriter) -> Self:
        return cls(**{each.name: getattr(writer, each.name) for each in fields(writer)})

    def write(self, *given: Any) -> WrittenFiles:
        return replace(ChangeWriter.write(self, *given), truncation=Truncation())


class _Batch(NamedTuple):
    number: int
    operation: Operation
    events: pa.Table


@dataclass(slots=True)
class HeldClock(SimClock):
    """Wall-clock time as it was when an operation began."""

    held_ms: int = 0

    def now_ms(self) -> int:
        return self.held_ms


class _Simulation:
    """The table, and who works on it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.healer = Actor(world, "healer", lambda _: None)
        self.store = MemoryObjectStore(Runtime(clock=SimClock(self.healer)))
        self.pointers = WatchedPointers()
        self.lock = SimLock(world)
        self.serial = Serial()
        self.checkpoints = 0
        self.batch: _Batch | None = None  # of the sink, which may have died over it
        self.batches = 0
        self.seen: dict[str, TableSchema] = {}  # by actor; who restarts looks again or does not
        self.indexes: dict[str, MemoryIndex | None] = {}
        self.folders: Path | None = None  # where indexes on disk are
        self.unsettled: list[tuple[Operation, float]] = []
        self.oracle = Oracle(world, self.store.get)
        self.clean = self._clean_environment()
        number = ARROW["int" if world.profile.starts_narrow else "long"]
        schema = pa.schema([("id", number), ("region", pa.string()), ("amount", number)])
        created = TableCatalog(self.clean).create_table(
            NAME,
            schema,
            primary_key=["id"],
            partition_by=world.profile.partition_by,
            properties={
                "icefold.publish": "rewrite" if world.profile.rewrites else "link",
                "icefold.on-missing-row": "null",
                **_of_format(world.profile),
            },
        )
        if world.profile.computes:
            created.add_computed_column(COMPUTED, "amount * 2", "long", stored=True)
        location = created.metadata_location
        if not world.profile.declares_key:
            location = without_key(self.store.put, ForeignTable(self.store.get, location))
            self.pointers.swap(IDENTIFIER, expected=created.metadata_location, new=location)
        self.oracle.start(location)
        self.pointers.on_swap = self._on_swap
        self.could_stop: dict[str, int] = {}  # why a publish may stop: the last swap before which
        for number in range(world.profile.writers):
            world.add(f"writer-{number}", self.write)
        world.add("resolver", self.resolve)
        world.add("zombie", self.resolve)
        world.add("external", self.append)
        if world.profile.has_expirer:
            world.add("expirer", self.expire)
        if world.profile.has_operator:
            world.add("operator", self.roll_back)
        if world.profile.has_compactor:
            world.add("compactor", self.rewrite)
        if world.profile.has_cleaner:
            world.add("cleaner", self.clean_up)
        if world.profile.has_statements:
            world.add("statements", self.change)
        if world.profile.has_sink:
            world.add("sink", self.ingest)
        if world.profile.flink is not None:
            world.add("flink", self.flink)
        if world.profile.changes_schema or world.profile.changes_spec:
            world.add("evolver", self.evolve)
        if world.profile.upgrades:
            world.add("upgrader", self.upgrade)
        bodies = Meddlers(self, IDENTIFIER).bodies
        for name in world.profile.meddlers:
            world.add(name, bodies[name])

    def _clean_environment(self) -> Environment:
        """Without faults and without hand-over: for the set-up and for the healed phase."""
        ids = SimIds(self.healer, self.healer.rng)
        runtime = Runtime(clock=SimClock(self.healer), ids=ids, side_by_side=False)
        catalog = MemoryCatalog(self.store, runtime=runtime, pointers=self.pointers)
        return self._keyed(Environment(catalog, self.store, runtime))

    def environment(self, actor: Actor) -> Environment:
        """The eyes of a new life of an actor."""
        runtime = actor.new_runtime()
        store = SimStore(actor, self.store)
        pointers = SimPointers(actor, self.pointers)
        catalog = MemoryCatalog(store, runtime=runtime, pointers=pointers)  # type: ignore[arg-type]
        return self._keyed(Environment(catalog, store, runtime))

    def _keyed(self, environment: Environment) -> Environment:
        """With the key that the table does not declare."""
        if self.world.profile.declares_key:
            return environment
        return replace(
            environment, catalog=KeyedCatalog.of(environment.catalog, {IDENTIFIER: [f"#{ID}"]})
        )

    @contextmanager
    def operation(self, actor: Actor, operation: Operation) -> Iterator[None]:
        """Tie the ids drawn meanwhile to an operation, and settle how it ended."""

        self.oracle.begin(operation)
        self.unsettled.append((operation, self.world.now_ms))
        self._watch(actor, operation)
        try:
            yield
        except EXPECTED_ERRORS as error:
            self.oracle.settle(operation, type(error).__name__)
        except DAMAGE_ERRORS as error:
            # A number beside a column of texts: only Spark compares them.
            refused = isinstance(error, UnsupportedError)
            expects = refused and (
                self.oracle.may_refuse(operation)
                if operation.becomes is not None
                else self._stops(operation)
            )
            if not expects and not self._names_damage(error):
                raise
            self.oracle.settle(operation, type(error).__name__)
        except NotFoundError as error:
            # An expirer took what a stale plan was reading, there is nothing yet to work on, or a
            # damaged copy is missing.
            is_writer = operation.kind in {"stage", "append"}
            expects = not is_writer or self.world.profile.expires
            if not expects and not self._names_damage(error):
                raise
            self.oracle.settle(operation, "NotFoundError")
        except InvalidInputError as error:
            if not self._stops(operation) and not self.oracle.may_refuse(operation):
                raise
            self.world.log(f"{actor.name} refused: {error}")
            self.oracle.settle(operation, "InvalidInputError")
        except AlreadyExistsError:
            if operation.kind != "pick":
                raise
            self.oracle.settle(operation, "AlreadyExistsError")
        except (Crash, Halt):
            operation.outcome = "crashed"
            raise
        else:
            self.oracle.settle(operation, "ok")

    def _watch(self, actor: Actor, operation: Operation) -> None:
        """Tie the snapshot ids that an actor draws from here on to an operation."""

        def draw(snapshot_id: int) -> None:
            operation.ids.append(snapshot_id)
            self.oracle.operation_of[snapshot_id] = operation

        actor.on_draw = draw
        self.world.log(
            f"{actor.name} begins {operation.kind} {operation.rows} {sorted(operation.keys)} "
            f"{operation.typed} {operation.text}"
        )

    def _names_damage(self, error: TableError) -> bool:
        """Whether an error says which file is damaged."""
        return error.context.get("location") in self.world.damaged

    def _stops(self, operation: Operation) -> bool:
        """Whether a refusal may be right; counts it."""
        why = self._may_stop(operation)
        if why is not None and operation.kind == "publish":
            self.world.outcomes[f"publish refused: {why}"] += 1
        return why is not None

    def _may_stop(self, operation: Operation) -> str | None:
        """Why a refusal may be right: a target that moved away, a position nobody can prove (R18),
        a row nobody can find."""
        if operation.kind in {"rollback", "evolve", "pick", "forward"}:
            return "the table has moved"
        if operation.kind != "publish":
            return None
        met = (why for why, at in self.could_stop.items() if at >= operation.since)
        return self._publish_stops() or next(met, None)

    def _on_swap(self, location: str) -> None:
        """What stops a cycle that has read the table may be gone with somebody else's publish."""
        why = self._publish_stops()
        if why is not None:
            self.could_stop[why] = self.oracle.swaps
        self.oracle.on_swap(location)

    def _publish_stops(self) -> str | None:
        profile, oracle = self.world.profile, self.oracle
        if profile.rolls_back and profile.expires:
            return MOVED_BACK
        if "foreign-expirer" in profile.meddlers:
            if oracle.has_gaps:
                return GONE
            if not oracle.proves_position():
                return CUT
        if profile.forgets and oracle.has_moved_positions:
            return "the history of a file that staged positions are in has gone"
        if oracle.unreadable is not None:
            return "a data file that staged positions are in has gone"
        return "rows have got other row ids" if oracle.hidden_rows else None

    def known(self, actor: Actor) -> TableSchema:
        """The schema that an actor builds on: looked up now, or still the one it last saw."""
        if not self.world.profile.changes_schema:
            return self.oracle.schemas.current
        if actor.name not in self.seen or actor.rng.random() < 0.7:
            self.seen[actor.name] = self.oracle.schemas.current
        return self.seen[actor.name]

    def fresh_rows(
        self, actor: Actor, schema: TableSchema
    ) -> tuple[dict[str, str], tuple[Row, ...]]:
        """Columns with their types, and up to three rows."""
        columns = draw_columns(actor.rng, schema)
        return {column.name: column.kind for column in columns}, self.rows_of(actor, columns)

    def rows_of(self, actor: Actor, columns: list[Column]) -> tuple[Row, ...]:
        keys = self.world.profile.keys
        return draw_rows(actor.rng, columns, keys=keys, most=3, serial=self.serial)

    def write(self, actor: Actor) -> None:
        table = self.table(self.environment(actor))
        while True:
            actor.sleep(actor.rng.random() * 3_000)
            schema = self.known(actor)
            typed, rows = self.fresh_rows(actor, schema)
            gone = actor.rng.sample(range(self.world.profile.keys), actor.rng.randint(0, 2))
            if not rows and not gone:
                continue
            keys = frozenset([row[0] for row in rows] + gone)
            key = schema.by_id[ID]
            columns = "whole"
            if not rows:
                typed = {key.name: key.kind}
            elif self.world.profile.leaves_out and actor.rng.random() < 0.6:
                columns, left = "partial", actor.rng.choice([REGION, AMOUNT])
                typed = {n: k for n, k in typed.items() if n != schema.name(left)}
                rows = tuple((row[0], row[1 if left == AMOUNT else 2]) for row in rows)
            with self.operation(actor, Operation(actor.name, "stage", rows, keys, typed)):
                deletes = pa.table({key.name: pa.array(gone, ARROW[key.kind])}) if gone else None
                table().stage(upserts=as_table(typed, rows), deletes=deletes, columns=columns)

    def ingest(self, actor: Actor) -> None:
        """Numbered batches, each given again until it is known to be there, also after a crash."""
        load = self.table(self.environment(actor))
        while True:
            actor.sleep(actor.rng.random() * 4_000)
            if self.batch is None and not self._new_batch(actor):
                continue
            assert self.batch is not None
            number, operation, events = self.batch
            with self.attempt(actor, operation):
                table = load()
                plan = plan_sink(
                    table.environment,
                    IDENTIFIER,
                    format_name="upsert",
                    options={"kind-column": "op"},
                    branch="staging",
                )
                if operation.empties:
                    plan = replace(plan, writer=TruncatingWriter.of(plan.writer))
                write_batch(plan, events, BatchId("sink", number))

    def _new_batch(self, actor: Actor) -> bool:
        schema = self.known(actor)
        typed, rows = self.fresh_rows(actor, schema)
        gone = actor.rng.sample(range(self.world.profile.keys), actor.rng.randint(0, 2))
        if not rows and not gone:
            return False
        if not rows:
            typed = {schema.name(ID): schema.by_id[ID].kind}
        keys = frozenset([row[0] for row in rows] + gone)
        empties = actor.rng.random() < TRUNCATE_RATE and self.world.profile.v2 is None
        operation = Operation(actor.name, "stage", rows, keys, typed, empties=empties)
        self.batch = _Batch(self.batches, operation, as_events(typed, rows, gone))
        self.batches += 1
        self.oracle.begin(operation)
        self.unsettled.append((operation, self.world.now_ms))
        return True

    @contextmanager
    def attempt(self, actor: Actor, operation: Operation) -> Iterator[None]:
        """One of several tries of an operation, which ends when it is `ok` or cannot be right."""
        tried = bool(operation.ids)
        self._watch(actor, operation)
        try:
            yield
        except EXPECTED_ERRORS as error:
            self.world.outcomes[f"batch {type(error).__name__}"] += 1
        except (*DAMAGE_ERRORS, NotFoundError) as error:
            has_expired = isinstance(error, NotFoundError) and self.world.profile.expires
            if not has_expired and not self._names_damage(error):
                raise
            self.world.outcomes[f"batch {type(error).__name__}"] += 1
        except InvalidInputError as error:
            if not self.oracle.may_refuse(operation):
                raise
            self.world.log(f"{actor.name} refused: {error}")
            outcome = "CommitUnknownError" if tried else "InvalidInputError"
            self.oracle.settle(operation, outcome)
            self.batch = None
        else:
            self.oracle.settle(operation, "ok")
            self.batch = None

    def flink(self, actor: Actor) -> None:
        """Staged changes in the shape that another engine gives them."""
        environment = self.environment(actor)
        while True:
            actor.sleep(actor.rng.random() * 4_000)
            schema = self.known(actor)
            columns = draw_columns(actor.rng, schema)
            typed = {column.name: column.kind for column in columns}
            checkpoint = draw_checkpoint(
                actor.rng,
                schema,
                self.world.profile.keys,
                lambda columns=columns: self.rows_of(actor, columns),
            )
            rows, keys = tuple(checkpoint.current.values()), frozenset(checkpoint.keys)
            if not checkpoint.inserted and not keys:
                continue
            if not checkpoint.inserted:
                typed = {columns[0].name: columns[0].kind}
            self.checkpoints += 1
            gone = tuple(r for r in checkpoint.inserted if r[2] in checkpoint.replaced)
            operation = Operation(actor.name, "stage", rows, keys, typed, gone, is_foreign=True)
            with self.operation(actor, operation):
                commit_checkpoint(
                    environment,
                    IDENTIFIER,
                    checkpoint,
                    typed,
                    number=self.checkpoints,
                    vectors=self.world.profile.flink == "vectors",
                )

    def append(self, actor: Actor) -> None:
        table = self.table(self.environment(actor))
        while True:
            actor.sleep(actor.rng.random() * 5_000)
            typed, rows = self.fresh_rows(actor, self.known(actor))
            if rows:
                with self.operation(actor, Operation(actor.name, "append", rows, typed=typed)):
                    table().append(as_table(typed, rows))

    def change(self, actor: Actor) -> None:
        """SQL on main, serializable: each statement that lands is one of a serial history."""
        load = self.table(self.environment(actor))
        while True:
            actor.sleep(actor.rng.random() * 4_000)
            if self.oracle.metadata["format-version"] < 3:
                continue
            if actor.rng.random() < 0.3:
                self.merge(actor, load)
                continue
            drawn = draw_statement(actor.rng, self.world.profile.keys, self.known(actor))
            mode = actor.rng.choice(["merge-on-read", "copy-on-write"])
            text = f"{drawn.assignments} where {drawn.where}"
            operation = Operation(
                actor.name, "statement", typed=drawn.typed, becomes=drawn.becomes, text=text
            )
            with self.operation(actor, operation):
                if drawn.assignments:
                    result = load().update(drawn.assignments, drawn.where, mode=mode)
                else:
                    result = load().delete(drawn.where, mode=mode)
                self.world.outcomes["rows changed by statements"] += result.updated_rows + (
                    result.deleted_rows or 0
                )

    def merge(self, actor: Actor, load: Callable[[], Table]) -> None:
        """One MERGE; as serializable as the other statements."""
        schema = self.known(actor)
        lasting = [schema.by_id[each] for each in (ID, REGION, AMOUNT)]
        merge = draw_merge(
            actor.rng, schema, self.world.profile.keys, lambda: self.rows_of(actor, lasting)
        )
        if not merge.source:
            return
        mode = actor.rng.choice(["merge-on-read", "copy-on-write"])
        operation = Operation(
            actor.name,
            "statement",
            typed=merge.typed,
            becomes=merge.becomes,
            inserts=merge.inserted,
            text=f"merge {merge.source} on {merge.on} {merge.clauses}",
        )
        with self.operation(actor, operation):
            changed = run_merge(load().environment, IDENTIFIER, merge, mode)
            self.world.outcomes["rows changed by merges"] += changed

    def evolve(self, actor: Actor) -> None:
        """Changes of schema and partition spec, planned on what the table is like at the time."""
        load = self.table(self.environment(actor))
        profile = self.world.profile
        while True:
            actor.sleep(actor.rng.random() * 6_000)
            drawn: SchemaEdit | SpecEdit
            if profile.changes_schema and (not profile.changes_spec or actor.rng.random() < 0.6):
                drawn = draw_schema_edit(actor.rng, self.oracle.schemas.current)
            else:
                fields = self.oracle.spec_fields()
                drawn = draw_spec_edit(actor.rng, self.oracle.schemas.current, fields)
            operation = Operation(actor.name, "evolve", shows=drawn.shows, text=drawn.text)
            with self.operation(actor, operation):
                if isinstance(drawn, SchemaEdit):
                    load().update_schema(drawn.edit)
                else:
                    load().update_partitioning(drawn.edit)

    def resolve(self, actor: Actor) -> None:
        environment = self.environment(actor)
        keeper = self.keeper(environment, actor.name, keeps=self.world.profile.keeps_index)
        try:
            while True:
                actor.sleep(actor.rng.random() * 4_000)
                limit = actor.rng.choice([None, None, 1, 2])
                with self.operation(actor, Operation(actor.name, "publish")):
                    self.cycle(environment, keeper, limit, actor=actor)
                keeper.close()
        finally:
            keeper.die()
            if isinstance(keeper, MemoryIndexKeeper):
                self.indexes[actor.name] = keeper.index

    def keeper(self, environment: Environment, process: str, *, keeps: bool = True) -> SimKeeper:
        """A keeper of the index that a process has left; of none if it is lost."""
        if self.folders is None:
            return MemoryIndexKeeper(environment, self.indexes.get(process) if keeps else None)
        folder = self.folders / process
        if not keeps:
            shutil.rmtree(folder, ignore_errors=True)
        stays_open = self.world.seed % 2 == 0
        indexes = OpenIndexes(SystemClock()) if stays_open else None
        return DiskIndexKeeper(environment, folder, indexes=indexes)

    def cycle(
        self,
        environment: Environment,
        keeper: SimKeeper,
        limit: int | None = None,
        *,
        actor: Actor | None = None,
        from_state: bool = False,
        staged_after: int | None = None,
        staging: str = "staging",
        target: str = "main",
    ) -> ResolveReport | None:
        """As `resolver.job.resolve`, with the simulation's lock and index.

        Equality deletes that others brought to the target are converted before, by `actor` in an
        operation of its own.
        """
        state = environment.catalog.load_table(IDENTIFIER)
        if self.world.profile.is_in_place:
            staging = target
        if state.head(staging) is None:
            return None
        with hold_maintenance(
            state, self.lock, task="resolve", branch=target, timeout_ms=0
        ) as lease:
            options = CycleOptions(
                staging=staging, target=target, limit=limit, fence=lambda: fence_of(lease)
            )
            if from_state:
                options = replace(options, from_staging_state=True, staged_after=staged_after)
            head = environment.catalog.load_table(IDENTIFIER).head(target)
            if staging != target and live_files(environment, head).equality_deletes:
                own = CycleOptions(staging=target, target=target, fence=options.fence)
                if not self.convert(environment, keeper, own, actor):
                    return None
            return Cycle(environment, IDENTIFIER, options, keeper).run()

    def convert(
        self,
        environment: Environment,
        keeper: SimKeeper,
        options: CycleOptions,
        actor: Actor | None,
    ) -> bool:
        """A cycle in place; whether it has come to its end."""
        cycle = Cycle(environment, IDENTIFIER, options, keeper)
        if actor is None:
            cycle.run()
            return True
        own = Operation(actor.name, "publish")
        resolving = actor.on_draw
        with self.operation(actor, own):
            cycle.run()
        actor.on_draw = resolving
        return own.outcome == "ok"

    def expire(self, actor: Actor) -> None:
        environment = self.environment(actor)
        policy = ExpiryPolicy(max_snapshot_age_ms=4_000, min_snapshots_to_keep=2)
        while True:
            actor.sleep(actor.rng.random() * 10_000)
            with self.operation(actor, Operation(actor.name, "expire")):
                apply_expiry(environment, IDENTIFIER, policy, fence=None)

    def upgrade(self, actor: Actor) -> None:
        """To v3, when there is something to upgrade, until it is done."""
        load = self.table(self.environment(actor))
        while self.oracle.metadata["format-version"] < 3:
            actor.sleep(actor.rng.random() * 10_000)
            if actor.rng.random() < 0.5:
                with self.operation(actor, Operation(actor.name, "upgrade")):
                    load().upgrade()
        while True:
            actor.sleep(60_000)

    def roll_back(self, actor: Actor) -> None:
        environment = self.environment(actor)
        while True:
            actor.sleep(actor.rng.random() * 20_000)
            with self.operation(actor, Operation(actor.name, "rollback")):
                state = environment.catalog.load_table(IDENTIFIER)
                chain = [
                    s.snapshot_id
                    for s in state.metadata.snapshots
                    if s.snapshot_id in self.oracle.main
                ]
                if chain:
                    to = actor.rng.choice(chain[-4:])
                    rollback(environment, IDENTIFIER, snapshot_id=to)

    def rewrite(self, actor: Actor) -> None:
        """Compaction and the other rewrites: rows, row ids and last updates stay as they are."""
        load = self.table(self.environment(actor))
        # Position delete files of v2 are merged, of which a compaction leaves none.
        profile = self.world.profile
        often = "compact" if profile.v2 is None or profile.is_in_place else "vectors"
        while True:
            actor.sleep(actor.rng.random() * 5_000)
            operation = Operation(actor.name, "rewrite")
            with self.operation(actor, operation):
                match actor.rng.choice(["compact", often, often, "manifests", "vectors", "dead"]):
                    case "compact":
                        self.compact(actor, load(), operation)
                    case "manifests":
                        options = RewriteManifestsOptions(rewrite_all=True)
                        rewrite_manifests(load(), options, lock=self.lock, lock_timeout_ms=0)
                    case "vectors":
                        all_vectors = RewriteVectorsOptions(rewrite_all=True)
                        rewrite_vectors(load(), all_vectors, lock=self.lock, lock_timeout_ms=0)
                    case _:
                        drop_dead_deletes(load(), lock=self.lock, lock_timeout_ms=0)

    def compact(self, actor: Actor, table: Table, operation: Operation) -> None:
        strategy = actor.rng.choice(["bin-pack", "bin-pack", "sort"])
        amount = self.known(actor).by_id[AMOUNT]
        if strategy == "sort":
            operation.typed[amount.name] = "int"  # it looks up the name alone
        options = CompactOptions(
            rewrite_all=actor.rng.random() < 0.5,
            input_files_min=2,
            strategy=strategy,
            sort_by=(amount.name,) if strategy == "sort" else (),
            concurrent_groups_max=1,  # pools neither hand over nor fail
        )
        operation.is_lossy = self.world.profile.v2 is not None  # there are no row ids
        report = compact(table, options, lock=self.lock, lock_timeout_ms=0)
        assert len(report.commits) <= 1
        if report.errors and not report.commits:
            raise CommitConflictError("; ".join(report.errors))
        self.world.outcomes["groups left out"] += report.failed_groups
        self.world.outcomes["rows rebased"] += report.rebased_rows
        self.world.outcomes["compactions"] += len(report.commits)

    def clean_up(self, actor: Actor) -> None:
        """Orphan removal, its age limit beyond the longest write and the clock's error."""
        environment = self.environment(actor)
        clock = HeldClock(actor)
        runtime = replace(environment.runtime, clock=clock)
        load = self.table(replace(environment, runtime=runtime))
        while True:
            actor.sleep(actor.rng.random() * 8_000)
            with self.operation(actor, Operation(actor.name, "clean")):
                # The limit is right for this moment, so the task must not be held up before it
                # asks for the time.
                clock.held_ms = int(self.world.now_ms) + actor.skew_ms
                age_ms = self.longest_write_ms() + 1_000 + max(actor.skew_ms, 0)
                options = RemoveOrphansOptions(older_than_ms=int(age_ms), older_than_min_ms=0)
                report = remove_orphans(load(), options, lock=self.lock, lock_timeout_ms=0)
                self.world.outcomes["orphans removed"] += report.removed_files

    def longest_write_ms(self) -> float:
        """How long the oldest write has been under way that may still land."""
        if not self.world.late:
            self.unsettled = [each for each in self.unsettled if each[0].outcome in {"running"}]
        began = [start_ms for operation, start_ms in self.unsettled]
        return self.world.now_ms - min(began, default=self.world.now_ms)

    def table(self, environment: Environment) -> Callable[[], Table]:
        """Loads the table at the first use that succeeds."""
        loaded: list[Table] = []

        def load() -> Table:
            if not loaded:
                loaded.append(TableCatalog(environment).load_table(NAME))
            return loaded[0]

        return load

    def drain(self) -> None:
        """Phase 2: no faults. The backlog must end within (staged snapshots + 2) cycles (I26)."""
        keeper = self.keeper(self.clean, "resolver")
        try:
            self._drain(keeper)
        finally:
            keeper.die()

    def _drain(self, keeper: SimKeeper) -> None:
        oracle, world = self.oracle, self.world
        world.now_ms += 3_600_000.0 * 3

        def draw(snapshot_id: int) -> None:
            oracle.operation_of[snapshot_id] = Operation(
                "healer", "publish", ids=[snapshot_id], since=oracle.swaps
            )

        self.healer.on_draw = draw
        self.lock.is_honest = True
        rng = random.Random(f"{world.seed}/drain")
        limit = rng.choice([None, 1])
        left = cycles = oracle.waiting + 2
        from_state, staged_after = False, None
        while left and oracle.staged:
            try:
                report = self.cycle(
                    self.clean, keeper, limit, from_state=from_state, staged_after=staged_after
                )
            except (InvalidInputError, UnsupportedError, NotFoundError) as error:
                why = self._publish_stops()
                if from_state and oracle.has_lost_publishes:
                    world.outcomes["drain stopped: main lost what staging stands on"] += 1
                    world.outcomes["drain stopped"] += 1
                    break
                if from_state and staged_after is None and "--staged-after" in str(error):
                    staged_after = oracle.staged_after()
                    world.outcomes["drained with the operator's word"] += 1
                    continue
                is_unknown = oracle.has_moved_positions or oracle.hidden_rows
                is_unknown &= isinstance(error, UnsupportedError)
                if why is None or (from_state and not is_unknown):
                    raise
                world.outcomes[f"drain stopped: {why}"] += 1
                if from_state or not CAN_READ_STATE or why not in OF_LOST_LOGS:
                    world.outcomes["drain stopped"] += 1
                    break
                from_state, limit = True, None
                oracle.reads_state = True
                world.outcomes["drained from the state of staging"] += 1
                continue
            if report is None or report.staged_snapshots == 0:
                break
            left -= 1
        else:
            assert not oracle.waiting, f"{oracle.waiting} still wait after {cycles} cycles"
        stopped = world.outcomes["drain stopped"]
        assert stopped or not oracle.waiting, f"idle, but {oracle.waiting} staged snapshots wait"
        if oracle.location:
            if world.profile.upserts and not stopped:
                self.cycle(self.clean, keeper)
                left = oracle.state_of(oracle.refs.get("main")).has_deletes
                # After an upgrade the position deletes of v2 wait for a cycle with work, and before
                # anything is staged there is none.
                may_stay = world.profile.upgrades or not (
                    world.profile.is_in_place or "staging" in oracle.refs
                )
                assert not left or may_stay, "equality deletes are left on main"
            self._resolve_elsewhere()
            oracle.check_everything()
            self._check_index(keeper)
            self._time_travel()

    def _resolve_elsewhere(self) -> None:
        """The other staging branch, published to a branch that begins where it does."""
        if "cdc" not in self.oracle.refs:
            return
        if not self.oracle.is_one_branch("cdc"):
            self.world.outcomes["the other branch was dropped and made anew"] += 1
            return
        fork = self.oracle.fork_of("cdc")
        if fork not in self.oracle.retained:
            self.world.outcomes["fork of the other branch expired"] += 1
            return
        if not self.oracle.retained.issuperset(self.oracle.others["cdc"]):
            self.world.outcomes["the other branch's log expired"] += 1
            return
        create_branch(self.clean, IDENTIFIER, "audit", snapshot_id=fork)
        for _ in range(2):
            keeper = MemoryIndexKeeper(self.clean)
            report = self.cycle(self.clean, keeper, staging="cdc", target="audit")
            assert report is not None
        assert report.staged_snapshots == 0, "the other backlog does not end"
        self.world.outcomes["other branches resolved"] += 1

    def _check_index(self, keeper: SimKeeper) -> None:
        state = self.clean.catalog.load_table(IDENTIFIER)
        live = live_files(self.clean, state.head("main"))
        index = keeper.at_end(TargetHead.of(self.clean, state, "main", live))
        if index is None or index.binding.snapshot_id != self.oracle.refs.get("main"):
            return
        if isinstance(index, LocalIndex):
            self.world.outcomes["shards"] += index.shard_count
            self.world.outcomes["indexes on disk checked"] += 1
        files = index.files()
        self.oracle.check_index(
            (key, files[file_id].file_path, position)
            for each in index.entries()
            for key, file_id, position in zip(
                each.keys.to_list(), each.file_id.tolist(), each.position.tolist(), strict=True
            )
        )
        self.world.outcomes["indexes checked"] += 1

    def _time_travel(self) -> None:
        """The product's own scan agrees on all retained snapshots of main, and on main now."""
        table = TableCatalog(self.clean).load_table(NAME)
        for snapshot in table.state.metadata.snapshots:
            state = self.oracle.main.get(snapshot.snapshot_id)
            if state is not None:
                rows = table.scan(snapshot_id=snapshot.snapshot_id).to_arrow().to_pylist()
                found = Counter(_row(row, state.schema) for row in rows)
                assert found == state.rows, f"scan of {snapshot.snapshot_id} differs"
        state = self.oracle.state_of(self.oracle.refs.get("main"))
        current = self.oracle.schemas.current
        found = Counter(_row(row, current) for row in table.scan().to_arrow().to_pylist())
        expected = in_schema(state.rows, state.schema, current)
        assert found == expected, "a scan of main under the current schema differs"


def _row(named: dict[str, Any], schema: TableSchema) -> Row:
    """A scanned row by field ids."""
    if COMPUTED in named:
        amount = named[schema.name(AMOUNT)]
        assert named.pop(COMPUTED) == (None if amount is None else 2 * amount), named
    assert list(named) == [column.name for column in schema.columns], named
    return tuple(named[schema.name(field_id)] for field_id in schema.fields)
