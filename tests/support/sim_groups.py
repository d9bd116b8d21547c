"""Groups in the simulator: a bank in several tables, one stream into them, published together.

Transfers between tables are staged batch by batch; two group resolvers publish; others append to
single tables, compact them, publish one by itself, expire, and read cuts, under the faults of
`sim_seams`. What a table holds after each batch is known beforehand (`bank.Bank`).

Checked at every swap of pointers, with code of its own down to Parquet and vectors (`GroupOracle`):

* a publish of a cut shows exactly its batch, on each table that it names;
* where the catalog commits groups, all members show one cut at every instant: the newest of any, or
  what has not changed since;
* what icefold says of cuts (`read_cuts`, also from tables loaded while others publish): each table
  pinned there holds what it held after that batch, so the sum of all balances is what it was.

Accounts from 1000 on are nobody's: rows that others bring, with balance 0.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from lock import HeldLease, Lease, LockError
from maintenance.tasks.compact import compact
from maintenance.tasks.options import CompactOptions
from resolver.cycle import Cycle
from resolver.cycle_options import CycleOptions
from resolver.engine import Engine
from resolver.group import Group, GroupOptions
from resolver.maintenance_lock import fence_of, hold_maintenance
from tableformat import Table, TableCatalog
from tableformat.catalog.base import TableState
from tableformat.cdc.cuts import Cut, load_cuts
from tableformat.commit.expire import apply_expiry
from tableformat.commit.expiry_plan import ExpiryPolicy
from tableformat.environment import Environment
from tableformat.errors import (
    CommitConflictError,
    CommitUnknownError,
    FencedError,
    NotFoundError,
    StoreUnavailableError,
)
from tableformat.runtime import Runtime
from tests.support.bank import QUERY, Balances, Bank, rows_of, stage_batch
from tests.support.memory_catalog import MemoryCatalog
from tests.support.memory_index import MemoryIndex
from tests.support.memory_store import MemoryObjectStore
from tests.support.sim_files import Files
from tests.support.sim_run import SeedResult
from tests.support.sim_schema import read_schema
from tests.support.sim_seams import (
    MemoryIndexKeeper,
    SimLock,
    SimPointers,
    SimStore,
    WatchedPointers,
)
from tests.support.sim_world import Actor, Profile, SimClock, SimIds, World
from tests.support.table_checker import check_snapshot, read_metadata

NAMES = ("bank.a", "bank.b", "bank.c", "bank.d")
FOREIGN = 1_000  # accounts of others
OVERTAKEN = (
    CommitConflictError,
    CommitUnknownError,
    FencedError,
    StoreUnavailableError,
    LockError,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupProfile:
    """What a seed draws for its group, beside the faults."""

    is_atomic: bool  # the catalog commits groups
    sets_aside: int | None  # the batch from which on the last table is set aside
    has_soloist: bool  # publishes single tables
    has_expirer: bool
    is_busy: bool  # a batch follows the other at once
    is_slow: bool  # a group's looks at its tables take seconds

    @staticmethod
    def draw(rng: random.Random) -> GroupProfile:
        return GroupProfile(
            is_atomic=rng.random() < 0.75,
            sets_aside=rng.choice([None, None, None, 1, 3]),
            has_soloist=rng.random() < 0.25,
            has_expirer=rng.random() < 0.3,
            is_busy=rng.random() < 0.4,
            is_slow=rng.random() < 0.3,
        )


def run_group_seed(
    seed: int, *, steps: int = 1_500, trace: bool = False, **fixed: Any
) -> SeedResult:
    """Run one seed: faults and assertions first, then a healed system that must publish all.

    `fixed`: fields of `GroupProfile`, instead of what the seed draws.
    """
    rng = random.Random(f"{seed}/group")
    drawn = Profile.draw(random.Random(f"{seed}/profile"), steps)
    profile = replace(drawn, damage=0.0, partition_by=(), meddlers=())
    world = World(seed, profile)
    world.trace = [] if trace else None
    simulation = _Groups(world, replace(GroupProfile.draw(rng), **fixed))
    world.run()
    if world.violation is None:
        try:
            simulation.drain()
        except AssertionError as error:
            world.fail(str(error) or "an assertion failed while draining")
        except Exception as error:
            world.fail(f"while draining: {type(error).__name__}: {error}")
    oracle = simulation.oracle
    return SeedResult(
        seed=seed,
        steps=world.steps,
        swaps=oracle.swaps,
        publishes=oracle.publishes,
        faults=world.faults,
        outcomes=world.outcomes,
        points=world.points,
        violation=world.violation,
        log_hash=world.log_hash(),
        profile=profile,
        trace=world.trace,
    )


class GroupCatalog(MemoryCatalog):
    """A catalog that says whether it commits groups."""

    is_atomic = True

    @property
    def commits_groups(self) -> bool:
        return self.is_atomic


class SlowCatalog:
    """A catalog behind which time passes between two loads."""

    def __init__(self, actor: Actor, inner: MemoryCatalog) -> None:
        self._actor = actor
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def load_table(self, identifier: tuple[str, ...]) -> TableState:
        state = self._inner.load_table(identifier)
        self._actor.sleep(self._actor.rng.random() * 1_500)
        return state

    def metadata_locations(self, _: object) -> None:
        return None


class SimLocks:
    """A simulated lock of each name."""

    is_far = True

    def __init__(self, world: World) -> None:
        self._world = world
        self._locks: dict[str, SimLock] = {}

    def of(self, name: str) -> SimLock:
        return self._locks.setdefault(name, SimLock(self._world))

    @contextmanager
    def hold(self, name: str, *, task: str, **options: Any) -> Iterator[HeldLease]:
        with self.of(name).hold(name, task=task, **options) as lease:
            yield lease

    def renew(self, lease: Lease) -> Lease:
        return self.of(lease.name).renew(lease)

    def heal(self) -> None:
        for lock in self._locks.values():
            lock.is_honest = True


@dataclass
class GroupOracle:
    """Looks at all tables within every swap."""

    world: World
    profile: GroupProfile
    bank: Bank
    pointers: WatchedPointers
    store: MemoryObjectStore
    swaps: int = 0
    publishes: int = 0
    is_aside: bool = False  # the last table is, from here on
    files: Files = field(init=False)
    seen: dict[int, Balances] = field(default_factory=dict)  # by snapshot id; what is checked
    named: dict[int, set[str]] = field(default_factory=dict)  # tables of each cut, as it says
    published: dict[int, set[str]] = field(default_factory=dict)  # those that were
    _metadata: dict[str, dict[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.files = Files(self.store.get)

    @property
    def members(self) -> list[str]:
        return [n for n in self.bank.names if not (self.is_aside and n == self.bank.names[-1])]

    def on_swap(self, _: str) -> None:
        self.swaps += 1
        try:
            self.check()
        except AssertionError as error:
            self.world.fail(str(error) or "an assertion failed")
        except Exception as error:
            self.world.fail(f"the oracle failed: {type(error).__name__}: {error}")

    def check(self) -> None:
        cuts: dict[str, int] = {}
        for name in self.bank.names:
            metadata = self.metadata(name)
            for snapshot in metadata["snapshots"]:
                if snapshot["snapshot-id"] not in self.seen:
                    self._see(name, metadata, snapshot)
            cuts[name] = _cut_of(self._head(metadata))
        if self.profile.is_atomic and not self.profile.has_soloist:
            newest = max(cuts.values())
            for name in self.members:
                head = self._head(self.metadata(name))["snapshot-id"]
                wanted = self.bank.states[newest + 1][name]
                assert self.seen[head] == wanted, (
                    f"partly published: {name} shows {self.seen[head]}, not {wanted} of cut "
                    f"{newest}; cuts {cuts}"
                )

    def metadata(self, name: str) -> dict[str, Any]:
        location = self.pointers.locations()[tuple(name.split("."))]
        if location not in self._metadata:
            self._metadata[location] = read_metadata(self.store.get, location)
        return self._metadata[location]

    def _head(self, metadata: dict[str, Any]) -> dict[str, Any]:
        head = metadata["refs"]["main"]["snapshot-id"]
        return next(each for each in metadata["snapshots"] if each["snapshot-id"] == head)

    def _see(self, name: str, metadata: dict[str, Any], snapshot: dict[str, Any]) -> None:
        """Read a new snapshot; one of main must show a batch of the stream, whole."""
        schema = read_schema(metadata["schemas"][0])
        view = self.files.view(check_snapshot(self.store.get, metadata, snapshot), metadata, schema)
        found = {key: balance for key, balance in view.found if key < FOREIGN}
        self.seen[snapshot["snapshot-id"]] = found
        summary = snapshot["summary"]
        if summary.get("icefold.branch") != "main":
            return
        assert not view.has_deletes, f"{name}: equality deletes on main"
        number = int(summary.get("icefold.batch-id", -1))
        wanted = self.bank.states[number + 1][name]
        assert found == wanted, f"{name} after batch {number}: {found}, not {wanted}"
        parent = _by_id(metadata, snapshot.get("parent-snapshot-id"))
        if parent is not None and _cut_of(snapshot) != _cut_of(parent):
            self.publishes += 1
            cut = _cut_of(snapshot)
            self.published.setdefault(cut, set()).add(name)
            self.named.setdefault(cut, set()).update(json.loads(summary["icefold.cut-tables"]))
            assert number <= cut, f"{name}: cut {cut} shows batch {number}"
            wanted = self.bank.states[cut + 1][name]
            assert found == wanted, f"{name} at cut {cut}: {found}, not {wanted}"

    def check_cuts(self, cuts: list[Cut], *, names_newest: bool = False) -> None:
        """What icefold says of cuts is so."""
        for cut in cuts:
            held = self.bank.states[cut.name.batch + 1]
            for name, snapshot_id in cut.snapshots.items():
                found = self.seen[snapshot_id]
                assert found == held[name], f"{cut.name}: {name} holds {found}, not {held[name]}"
            if set(cut.snapshots) == set(self.bank.names):
                total = sum(sum(self.seen[i].values()) for i in cut.snapshots.values())
                assert total == self.bank.total, f"{cut.name}: the sum is {total}"
                self.world.outcomes["sums checked"] += 1
        # What was begun table by table before one of them was set aside is never whole.
        if names_newest and (self.profile.is_atomic or not self.is_aside):
            newest = max(_cut_of(self._head(self.metadata(name))) for name in self.bank.names)
            said = cuts[0].name.batch if cuts else -1
            assert said == newest, f"the newest cut is {newest}, not {said}"

    def check_finished(self) -> None:
        """Every cut that was begun has been published on all its tables, under its name.

        Two who publish table by table at the same time may leave one that is never whole, and never
        named: so only where the lock has kept them apart.
        """
        outcomes, drawn = self.world.outcomes, self.world.profile
        were_apart = drawn.lock == "honest" and drawn.delay == 0.0
        were_apart &= not (outcomes["group LeaseLostError"] or outcomes["group FencedError"])
        if self.profile.has_soloist or self.is_aside or not were_apart:
            return
        for cut, tables in self.named.items():
            assert self.published[cut] == tables, f"cut {cut} was left unfinished"


def _by_id(metadata: dict[str, Any], snapshot_id: int | None) -> dict[str, Any] | None:
    found = (each for each in metadata["snapshots"] if each["snapshot-id"] == snapshot_id)
    return next(found, None)


def _cut_of(snapshot: dict[str, Any]) -> int:
    """The batch of the cut that a snapshot is of, by its own summary; -1: none."""
    text = snapshot["summary"].get("icefold.cut")
    return -1 if text is None else int(text.removeprefix(f"{QUERY}/"))


class _Groups:
    """The tables, and who works on them."""

    def __init__(self, world: World, profile: GroupProfile) -> None:
        self.world = world
        self.profile = profile
        self.bank = Bank(NAMES)
        self.healer = Actor(world, "healer", lambda _: None)
        self.store = MemoryObjectStore(Runtime(clock=SimClock(self.healer)))
        self.pointers = WatchedPointers()
        self.locks = SimLocks(world)
        self.indexes: dict[tuple[str, str], MemoryIndex | None] = {}
        self.foreign = FOREIGN
        self.oracle = GroupOracle(world, profile, self.bank, self.pointers, self.store)
        ids = SimIds(self.healer, self.healer.rng)
        runtime = Runtime(clock=SimClock(self.healer), ids=ids, side_by_side=False)
        self.clean = self._environment(self.store, self.pointers, runtime)
        self.bank.create(TableCatalog(self.clean))
        self.oracle.check()
        self.pointers.on_swap = self.oracle.on_swap
        world.add("stager", self.stage)
        world.add("resolver", self.resolve)
        world.add("zombie", self.resolve)
        world.add("external", self.append)
        world.add("hand", self.stage_by_hand)
        world.add("compactor", self.compact)
        world.add("reader", self.read)
        if profile.has_soloist:
            world.add("soloist", self.publish_one)
        if profile.has_expirer:
            world.add("expirer", self.expire)

    def _environment(self, store: Any, pointers: Any, runtime: Runtime) -> Environment:
        catalog = GroupCatalog(store, runtime=runtime, pointers=pointers)
        catalog.is_atomic = self.profile.is_atomic
        return Environment(catalog, store, runtime)

    def tables(self, actor: Actor, *, is_slow: bool = False) -> dict[str, Table]:
        """What a new life of an actor sees."""
        runtime = actor.new_runtime()
        store = SimStore(actor, self.store)
        environment = self._environment(store, SimPointers(actor, self.pointers), runtime)
        if is_slow:
            environment = replace(environment, catalog=SlowCatalog(actor, environment.catalog))
        return self._tables(environment)

    def _tables(self, environment: Environment) -> dict[str, Table]:
        while True:
            try:
                return {n: TableCatalog(environment).load_table(n) for n in self.bank.names}
            except StoreUnavailableError:
                environment.runtime.clock.sleep_ms(100)

    @contextmanager
    def _settled(self, actor: Actor, what: str) -> Iterator[None]:
        """Count how an operation ended; what faults and races explain is right."""
        expected = (*OVERTAKEN, NotFoundError) if self.profile.has_expirer else OVERTAKEN
        try:
            yield
        except expected as error:
            self.world.outcomes[f"{what} {type(error).__name__}"] += 1
        else:
            self.world.outcomes[f"{what} ok"] += 1

    # -- actors

    def stage(self, actor: Actor) -> None:
        """A stream: a batch is given to its tables until all of them have it, then the next."""
        tables = self.tables(actor)
        pause_ms = 100 if self.profile.is_busy else 2_000
        while True:
            actor.sleep(actor.rng.random() * pause_ms)
            with self._settled(actor, "batch"):
                if not self._is_whole(tables):
                    self._stage(actor, tables)
                else:
                    self._draw(actor)

    def _draw(self, actor: Actor) -> None:
        at = self.profile.sets_aside
        if at is not None and len(self.bank.batches) >= at:
            self.oracle.is_aside = True
        self.bank.transfer(actor.rng, self.oracle.members, actor.rng.choice([1, 2, 2, 3]))

    def _is_whole(self, tables: dict[str, Table]) -> bool:
        return not self.bank.batches or all(
            _has(tables[name], len(self.bank.batches) - 1) for name in self.bank.batches[-1]
        )

    def _stage(self, actor: Actor, tables: dict[str, Table]) -> None:
        batch = self.bank.batches[-1]
        for name in actor.rng.sample(list(batch), len(batch)):
            stage_batch(tables[name], len(self.bank.batches) - 1, batch[name], list(batch))

    def stage_by_hand(self, actor: Actor) -> None:
        tables = self.tables(actor)
        while True:
            actor.sleep(actor.rng.random() * 10_000)
            with self._settled(actor, "stage"):
                table = tables[actor.rng.choice(self.bank.names)]
                table.stage(upserts=rows_of({FOREIGN + actor.rng.randrange(5): 0}))

    def append(self, actor: Actor) -> None:
        tables = self.tables(actor)
        while True:
            actor.sleep(actor.rng.random() * 3_000)
            self.foreign += 10
            with self._settled(actor, "append"):
                tables[actor.rng.choice(self.bank.names)].append(rows_of({self.foreign: 0}))

    def compact(self, actor: Actor) -> None:
        tables = self.tables(actor)
        options = CompactOptions(rewrite_all=True, input_files_min=2, concurrent_groups_max=1)
        while True:
            actor.sleep(actor.rng.random() * 6_000)
            with self._settled(actor, "compact"):
                table = tables[actor.rng.choice(self.bank.names)]
                compact(table, options, lock=self.locks, lock_timeout_ms=0)

    def expire(self, actor: Actor) -> None:
        tables = self.tables(actor)
        policy = ExpiryPolicy(max_snapshot_age_ms=20_000, min_snapshots_to_keep=1)
        while True:
            actor.sleep(actor.rng.random() * 8_000)
            with self._settled(actor, "expire"):
                table = tables[actor.rng.choice(self.bank.names)]
                apply_expiry(table.environment, table.identifier, policy, fence=None)

    def read(self, actor: Actor) -> None:
        """Names cuts from tables that are loaded while others publish."""
        tables = self.tables(actor, is_slow=True)
        identifiers = [each.identifier for each in tables.values()]
        catalog = tables[self.bank.names[0]].environment.catalog
        while True:
            actor.sleep(actor.rng.random() * 3_000)
            with self._settled(actor, "read"):
                cuts = load_cuts(catalog, identifiers)
                self.oracle.check_cuts(cuts)
                self.world.outcomes["cuts read"] += len(cuts)

    def resolve(self, actor: Actor) -> None:
        tables = self.tables(actor, is_slow=self.profile.is_slow)
        while True:
            actor.sleep(actor.rng.random() * 3_000)
            with self._settled(actor, "group"), self._keepers(actor) as open_member:
                group = self._group(tables, open_member, limit=actor.rng.choice([None, None, 1, 2]))
                report = group.run()
                self.world.outcomes["tables published"] += len(report.tables)

    def _group(self, tables: dict[str, Table], open_member: Any, limit: int | None) -> Group:
        aside = set(self.bank.names) - set(self.oracle.members)
        members = [table for name, table in sorted(tables.items()) if name not in aside]
        options = GroupOptions(set_aside=frozenset(aside), limit=limit)
        environment = members[0].environment
        return Group(environment, members, options, open_member, self.locks, 0)

    @contextmanager
    def _keepers(self, actor: Actor) -> Iterator[Any]:
        """Opens tables with the index that the actor's process left."""
        opened: dict[str, MemoryIndexKeeper] = {}

        def open_member(table: Table) -> tuple[MemoryIndexKeeper, Engine]:
            kept = self.indexes.get((actor.name, table.name))
            index = kept if self.world.profile.keeps_index else None
            opened[table.name] = MemoryIndexKeeper(table.environment, index)
            return opened[table.name], Engine()

        try:
            yield open_member
        finally:
            for name, keeper in opened.items():
                self.indexes[actor.name, name] = keeper.index

    def publish_one(self, actor: Actor) -> None:
        """`resolve` of a single table."""
        tables = self.tables(actor)
        while True:
            actor.sleep(actor.rng.random() * 20_000)
            table = tables[actor.rng.choice(self.oracle.members)]
            with self._settled(actor, "solo"), self._keepers(actor) as open_member:
                state = table.refresh().state
                if state.head("staging") is None:
                    continue
                with hold_maintenance(
                    state,
                    self.locks,
                    task="resolve",
                    branch="main",
                    timeout_ms=0,
                ) as lease:
                    options = CycleOptions(
                        staging="staging",
                        target="main",
                        fence=lambda lease=lease: fence_of(lease),
                    )
                    keeper, _ = open_member(table)
                    Cycle(table.environment, table.identifier, options, keeper).run()

    # -- the end

    def drain(self) -> None:
        """No faults any more: the stream ends its batch, and all of it is published."""
        self.world.now_ms += 3 * 3_600_000.0
        self.locks.heal()
        tables = self._tables(self.clean)
        batch = self.bank.batches[-1] if self.bank.batches else {}
        for name in batch:
            stage_batch(tables[name], len(self.bank.batches) - 1, batch[name], list(batch))
        left = len(self.bank.batches) + 2
        with self._keepers(self.healer) as open_member:
            while self._group(tables, open_member, limit=None).run().cut is not None:
                left -= 1
                assert left, "the group does not come to an end"
        for name in self.oracle.members:
            head = self.oracle._head(self.oracle.metadata(name))["snapshot-id"]
            found, wanted = self.oracle.seen[head], self.bank.states[-1][name]
            assert found == wanted, f"{name} ends with {found}, not {wanted}"
        identifiers = [each.identifier for each in tables.values()]
        self.oracle.check_cuts(load_cuts(self.clean.catalog, identifiers), names_newest=True)
        self.oracle.check_finished()


def _has(table: Table, number: int) -> bool:
    """Whether a table has a batch, staged or published, by its summaries."""
    table.refresh()
    numbers = Counter(
        int((each.summary or {}).additional_properties.get("icefold.batch-id", -1))
        for each in table.state.metadata.snapshots
    )
    return max(numbers, default=-1) >= number
