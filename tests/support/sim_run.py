"""One seed from its number to its verdict: the actors, the two phases, the result."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import pyarrow as pa

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
from resolver.index.memory import MemoryIndex
from resolver.maintenance_lock import fence_of, hold_maintenance
from resolver.report import ResolveReport
from tableformat import Table, TableCatalog
from tableformat.catalog.memory import MemoryCatalog
from tableformat.commit.expire import apply_expiry
from tableformat.commit.expiry_plan import ExpiryPolicy
from tableformat.commit.refs import rollback
from tableformat.environment import Environment
from tableformat.errors import (
    CommitConflictError,
    CommitUnknownError,
    FencedError,
    InvalidInputError,
    NotFoundError,
    StoreUnavailableError,
)
from tableformat.runtime import Runtime
from tableformat.store.memory import MemoryObjectStore
from tests.support.sim_oracle import Operation, Oracle, Row
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
SCHEMA = pa.schema([("id", pa.int64()), ("region", pa.string()), ("amount", pa.int64())])
EXPECTED_ERRORS = (
    CommitConflictError,
    CommitUnknownError,
    FencedError,
    StoreUnavailableError,
    LockError,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedResult:
    """What a seed did. `violation` None: all invariants held."""

    seed: int
    steps: int
    swaps: int
    publishes: int
    faults: Counter[str]
    outcomes: Counter[str]
    violation: str | None
    log_hash: str
    profile: Profile
    trace: list[str] | None = None


def run_seed(seed: int, *, steps: int = 500, trace: bool = False) -> SeedResult:
    """Run one seed: faults and assertions first, then a healed system that must drain."""
    profile = Profile.draw(random.Random(f"{seed}/profile"), steps)
    world = World(seed, profile)
    world.trace = [] if trace else None
    simulation = _Simulation(world)
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
        violation=world.violation,
        log_hash=world.log_hash(),
        profile=profile,
        trace=world.trace,
    )


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
        self.amount = 0
        self.indexes: dict[str, MemoryIndex | None] = {}
        self.unsettled: list[tuple[Operation, float]] = []
        self.oracle = Oracle(world, self.store.get)
        self.clean = self._clean_environment()
        TableCatalog(self.clean).create_table(
            NAME, SCHEMA, primary_key=["id"], partition_by=world.profile.partition_by
        )
        self.pointers.on_swap = self.oracle.on_swap
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

    def _clean_environment(self) -> Environment:
        """Without faults and without hand-over: for the set-up and for the healed phase."""
        ids = SimIds(self.healer, self.healer.rng)
        runtime = Runtime(clock=SimClock(self.healer), ids=ids)
        catalog = MemoryCatalog(self.store, runtime=runtime, pointers=self.pointers)
        return Environment(catalog, self.store, runtime)

    def environment(self, actor: Actor) -> Environment:
        """The eyes of a new life of an actor."""
        runtime = actor.new_runtime()
        store = SimStore(actor, self.store)
        pointers = SimPointers(actor, self.pointers)
        catalog = MemoryCatalog(store, runtime=runtime, pointers=pointers)  # type: ignore[arg-type]
        return Environment(catalog, store, runtime)

    @contextmanager
    def operation(self, actor: Actor, operation: Operation) -> Iterator[None]:
        """Tie the ids drawn meanwhile to an operation, and settle how it ended."""

        def draw(snapshot_id: int) -> None:
            operation.ids.append(snapshot_id)
            self.oracle.operation_of[snapshot_id] = operation

        actor.on_draw = draw
        self.unsettled.append((operation, self.world.now_ms))
        self.world.log(
            f"{actor.name} begins {operation.kind} {operation.rows} {sorted(operation.keys)}"
        )
        try:
            yield
        except EXPECTED_ERRORS as error:
            self.oracle.settle(operation, type(error).__name__)
        except NotFoundError:
            # An expirer took what a stale plan was reading, or there is nothing yet to work on.
            if operation.kind in {"stage", "append"} and not self.world.profile.has_expirer:
                raise
            self.oracle.settle(operation, "NotFoundError")
        except InvalidInputError:
            if not self._may_stop(operation):
                raise
            self.oracle.settle(operation, "InvalidInputError")
        except (Crash, Halt):
            operation.outcome = "crashed"
            raise
        else:
            self.oracle.settle(operation, "ok")

    def _may_stop(self, operation: Operation) -> bool:
        """Refusals that are right: a target that moved away, a position nobody can prove (R18)."""
        profile = self.world.profile
        return operation.kind == "rollback" or (
            operation.kind == "publish" and profile.has_operator and profile.has_expirer
        )

    def fresh_rows(self, rng: random.Random, most: int) -> tuple[Row, ...]:
        keys = rng.sample(range(self.world.profile.keys), rng.randint(0, most))
        rows = []
        for key in keys:
            self.amount += 1
            rows.append((key, rng.choice(["eu", "us", None]), self.amount))
        return tuple(rows)

    def write(self, actor: Actor) -> None:
        table = self.table(self.environment(actor))
        while True:
            actor.sleep(actor.rng.random() * 3_000)
            rows = self.fresh_rows(actor.rng, 3)
            gone = actor.rng.sample(range(self.world.profile.keys), actor.rng.randint(0, 2))
            if not rows and not gone:
                continue
            keys = frozenset([row[0] for row in rows] + gone)
            with self.operation(actor, Operation(actor.name, "stage", rows, keys)):
                deletes = pa.table({"id": pa.array(gone, pa.int64())}) if gone else None
                table().stage(upserts=as_table(rows), deletes=deletes)

    def append(self, actor: Actor) -> None:
        table = self.table(self.environment(actor))
        while True:
            actor.sleep(actor.rng.random() * 5_000)
            rows = self.fresh_rows(actor.rng, 3)
            if rows:
                with self.operation(actor, Operation(actor.name, "append", rows)):
                    table().append(as_table(rows))

    def change(self, actor: Actor) -> None:
        """SQL on main, serializable: each statement that lands is one of a serial history."""
        load = self.table(self.environment(actor))
        while True:
            actor.sleep(actor.rng.random() * 4_000)
            where, assignments, becomes = draw_statement(actor.rng, self.world.profile.keys)
            mode = actor.rng.choice(["merge-on-read", "copy-on-write"])
            operation = Operation(actor.name, "statement", becomes=becomes)
            with self.operation(actor, operation):
                if assignments:
                    result = load().update(assignments, where, mode=mode)
                else:
                    result = load().delete(where, mode=mode)
                self.world.outcomes["rows changed by statements"] += result.updated_rows + (
                    result.deleted_rows or 0
                )

    def resolve(self, actor: Actor) -> None:
        environment = self.environment(actor)
        kept = self.indexes.get(actor.name) if self.world.profile.keeps_index else None
        keeper = MemoryIndexKeeper(environment, kept)
        try:
            while True:
                actor.sleep(actor.rng.random() * 4_000)
                with self.operation(actor, Operation(actor.name, "publish")):
                    self.cycle(environment, keeper, limit=actor.rng.choice([None, None, 1, 2]))
        finally:
            self.indexes[actor.name] = keeper.index

    def cycle(
        self, environment: Environment, keeper: MemoryIndexKeeper, limit: int | None = None
    ) -> ResolveReport | None:
        """As `resolver.job.resolve`, with the simulation's lock and index."""
        state = environment.catalog.load_table(IDENTIFIER)
        if state.head("staging") is None:
            return None
        with hold_maintenance(
            state, self.lock, task="resolve", branch="main", timeout_ms=0
        ) as lease:
            options = CycleOptions(
                staging="staging", target="main", limit=limit, fence=lambda: fence_of(lease)
            )
            return Cycle(environment, IDENTIFIER, options, keeper).run()

    def expire(self, actor: Actor) -> None:
        environment = self.environment(actor)
        policy = ExpiryPolicy(max_snapshot_age_ms=4_000, min_snapshots_to_keep=2)
        while True:
            actor.sleep(actor.rng.random() * 10_000)
            with self.operation(actor, Operation(actor.name, "expire")):
                apply_expiry(environment, IDENTIFIER, policy)

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
        while True:
            actor.sleep(actor.rng.random() * 5_000)
            with self.operation(actor, Operation(actor.name, "rewrite")):
                match actor.rng.choice(["compact", "compact", "compact", "manifests", "vectors",
                                        "dead"]):  # fmt: skip
                    case "compact":
                        self.compact(actor, load())
                    case "manifests":
                        options = RewriteManifestsOptions(rewrite_all=True)
                        rewrite_manifests(load(), options, lock=self.lock, lock_timeout_ms=0)
                    case "vectors":
                        all_vectors = RewriteVectorsOptions(rewrite_all=True)
                        rewrite_vectors(load(), all_vectors, lock=self.lock, lock_timeout_ms=0)
                    case _:
                        drop_dead_deletes(load(), lock=self.lock, lock_timeout_ms=0)

    def compact(self, actor: Actor, table: Table) -> None:
        strategy = actor.rng.choice(["bin-pack", "bin-pack", "sort"])
        options = CompactOptions(
            rewrite_all=actor.rng.random() < 0.5,
            input_files_min=2,
            strategy=strategy,
            sort_by=("amount",) if strategy == "sort" else (),
            rewrite_bytes_max=1,  # one group, so one commit
        )
        report = compact(table, options, lock=self.lock, lock_timeout_ms=0)
        if report.errors:
            assert not report.commits
            raise CommitConflictError("; ".join(report.errors))
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
        oracle, world = self.oracle, self.world
        world.now_ms += 3_600_000.0 * 3
        operation = Operation("healer", "publish")

        def draw(snapshot_id: int) -> None:
            oracle.operation_of[snapshot_id] = Operation("healer", "publish", ids=[snapshot_id])

        self.healer.on_draw = draw
        self.lock.is_honest = True
        keeper = MemoryIndexKeeper(self.clean, self.indexes.get("resolver"))
        rng = random.Random(f"{world.seed}/drain")
        limit = rng.choice([None, 1])
        left = cycles = oracle.waiting + 2
        while left and oracle.staged:
            try:
                report = self.cycle(self.clean, keeper, limit=limit)
            except InvalidInputError:
                if not self._may_stop(operation):
                    raise
                world.outcomes["drain stopped: position not provable"] += 1
                break
            if report is None or report.staged_snapshots == 0:
                break
            left -= 1
        else:
            assert not oracle.waiting, f"{oracle.waiting} still wait after {cycles} cycles"
        stopped = world.outcomes["drain stopped: position not provable"]
        assert stopped or not oracle.waiting, f"idle, but {oracle.waiting} staged snapshots wait"
        if oracle.location:
            oracle.check_everything()
            self._time_travel()

    def _time_travel(self) -> None:
        """The product's own scan agrees on all retained snapshots of main."""
        table = TableCatalog(self.clean).load_table(NAME)
        for snapshot in table.state.metadata.snapshots:
            state = self.oracle.main.get(snapshot.snapshot_id)
            if state is not None:
                rows = table.scan(snapshot_id=snapshot.snapshot_id).to_arrow().to_pylist()
                found = Counter(tuple(row.values()) for row in rows)
                assert found == state.rows, f"scan of {snapshot.snapshot_id} differs"


def as_table(rows: tuple[Row, ...]) -> pa.Table | None:
    if not rows:
        return None
    columns = list(zip(*rows, strict=True))
    arrays = [pa.array(c, t.type) for c, t in zip(columns, SCHEMA, strict=True)]
    return pa.table(arrays, schema=SCHEMA)


def draw_statement(
    rng: random.Random, keys: int
) -> tuple[str, dict[str, str], Callable[[Row], Row | None]]:
    """A condition, assignments (none: DELETE), and what the statement makes of a row.

    Every assignment changes every row that matches, so that row lineage has one right answer.
    """
    key = rng.randrange(keys)
    match rng.randrange(5):
        case 0:
            return f"id = {key}", {}, lambda row: None if row[0] == key else row
        case 1:
            return (
                "NOT (region = 'eu')",
                {},
                lambda row: None if row[1] not in {"eu", None} else row,
            )
        case 2:
            return (
                f"id >= {key}",
                {"amount": "amount + 1000000"},
                lambda row: (row[0], row[1], row[2] + 1_000_000) if row[0] >= key else row,
            )
        case 3:
            return (
                f"region IS NULL AND id <= {key}",
                {"region": "'us'"},
                lambda row: (row[0], "us", row[2]) if row[1] is None and row[0] <= key else row,
            )
    return (
        f"region = 'us' AND amount > {key}",
        {"region": "NULL", "amount": "amount + 1000000"},
        lambda row: (row[0], None, row[2] + 1_000_000) if row[1] == "us" and row[2] > key else row,
    )
