"""The simulator in small scope, with its scheduler searched instead of drawn.

A few actors with one operation each; the search tries every order of what they do to shared state,
and every place where one of them may die. Only reads and swaps of the table's pointer (and deletes)
are points of choice: all other objects are written once under a name of their own, so their order
tells nobody anything. A run is a list of choices, and is made again from its beginning.

Two runs are in one state when the pointer is the same and every actor has seen the same at each of
its points; what follows is then the same, and is searched once. Timestamps may differ.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from maintenance.tasks.compact import compact
from maintenance.tasks.options import CompactOptions
from tableformat import Table
from tableformat.commit.expire import apply_expiry
from tableformat.commit.expiry_plan import ExpiryPolicy
from tableformat.environment import Environment
from tableformat.errors import CommitConflictError
from tests.support.sim_draw import as_table
from tests.support.sim_operation import Operation
from tests.support.sim_run import Simulation
from tests.support.sim_seams import MemoryIndexKeeper
from tests.support.sim_table import IDENTIFIER
from tests.support.sim_world import Actor, Crash, Halt, Profile, World

TYPED = {"id": "long", "region": "string", "amount": "long"}
CHOICES = ("pointer read", "swap", "delete ")
EVERYTHING = ExpiryPolicy(max_snapshot_age_ms=0, min_snapshots_to_keep=1)
Choice = tuple[str, bool]  # who goes on, and whether it dies instead


@dataclass(frozen=True, kw_only=True)
class Scope:
    """What is searched: an operation for each actor, and how many may die."""

    actors: Mapping[str, str]
    deaths: int = 0
    partition_by: tuple[str, ...] = ()


@dataclass(kw_only=True)
class Searched:
    """How much was searched. `violations` names runs by their choices."""

    states: int = 0
    runs: int = 0
    depth: int = 0
    is_whole: bool = False
    violation: str | None = None


def search(scope: Scope, *, runs_max: int) -> Searched:
    """Try all schedules, or `runs_max` of them from all over the tree; stops at a violation."""
    seen: set[int] = set()
    found = Searched()
    rng = random.Random(0)
    waiting: list[tuple[Choice, ...]] = [()]
    while waiting and found.runs < runs_max:
        at = rng.randrange(len(waiting))
        waiting[at], waiting[-1] = waiting[-1], waiting[at]
        prefix = waiting.pop()
        world = run_schedule(scope, prefix, seen)
        found.runs += 1
        found.depth = max(found.depth, len(world.path))
        choices = [chosen for _, _, chosen in world.path]
        if world.violation is not None:
            found.violation = f"{world.violation}; schedule {choices}"
            break
        for at, (state, options, chosen) in enumerate(world.path):
            if at >= len(prefix):
                seen.add(state)
                waiting += [(*choices[:at], each) for each in options if each != chosen]
    found.states = len(seen)
    found.is_whole = not waiting and found.violation is None
    return found


def run_schedule(scope: Scope, prefix: Iterable[Choice], seen: set[int]) -> SearchedWorld:
    """One run from the beginning: `prefix`, then everyone to the end, the one that runs first."""
    world = SearchedWorld(scope, tuple(prefix), seen)
    simulation = _SmallScope(world)
    world.run()
    if world.violation is None and not world.is_known:
        try:
            simulation.drain()
        except Exception as error:
            world.fail(f"while draining: {type(error).__name__}: {error}")
    return world


class SearchedWorld(World):
    """A world without chance: its scheduler follows a list."""

    def __init__(self, scope: Scope, prefix: tuple[Choice, ...], seen: set[int]) -> None:
        drawn = Profile.draw(random.Random("any"), steps=1_000_000)
        extras = [each for each in Profile.__slots__ if each.startswith(("has_", "changes_"))]
        fixed = {"partition_by": scope.partition_by, "lock": "same", "skew": False, "keys": 2,
                 "starts_narrow": False, "flink": None, "keeps_index": True,
                 "meddlers": ()}  # fmt: skip
        super().__init__(0, replace(drawn, **dict.fromkeys(extras, False), **fixed))
        self.scope = scope
        self.prefix = prefix
        self.seen = seen
        self.path: list[tuple[int, list[Choice], Choice]] = []
        self.views: dict[str, int] = {}
        self.done: set[str] = set()
        self.deaths = 0
        self.dies = False
        self.is_known = False
        self.shared: Callable[[], object] = lambda: None

    def strikes(self, fault: str, rate: float, *, point: str | None = None) -> bool:
        return False  # deaths are chosen

    def hand_over(self, actor: Actor, label: str, *, point: str | None = None) -> None:
        if actor.crashed:
            raise Crash
        if self.is_over:
            raise Halt
        self.steps += 1
        self.now_ms += 1
        if not label.startswith(CHOICES):
            return
        if actor.name in self.views and actor.name in self.scope.actors:
            self._choose(actor, may_switch=label != "swap done")
        view = (self.views.get(actor.name), label, self.shared())
        self.views[actor.name] = hash(view)

    def retire(self, actor: Actor) -> None:
        """An actor has done all it had to."""
        self.done.add(actor.name)
        if len(self.done) == len(self.actors):
            self._end()
        self._choose(actor, may_switch=True)

    def _next(self) -> Actor:
        name, _ = self._follow([(each.name, False) for each in self.actors])
        return self._actor(name)

    def _actor(self, name: str) -> Actor:
        return next(each for each in self.actors if each.name == name)

    def _choose(self, actor: Actor, *, may_switch: bool) -> None:
        """Give way to whoever is chosen, and come back when it is this actor."""
        names = [each.name for each in self.actors if each.name not in self.done]
        names.sort(key=lambda name: name != actor.name)  # the default: no switch
        if not may_switch:
            names = [actor.name]
        options = [(name, False) for name in names]
        if self.deaths < self.scope.deaths:
            options += [(name, True) for name in names if name in self.views]
        name, self.dies = self._follow(options)
        self.deaths += self.dies
        if name != actor.name:
            self._actor(name).go.release()
            if actor.name in self.done:
                raise Halt
            actor.go.acquire()
            if self.is_over:
                raise Halt
        if self.dies:
            self.dies = False
            actor.crashed = True
            raise Crash

    def _follow(self, options: list[Choice]) -> Choice:
        if len(options) == 1:
            return options[0]
        everyone = len({name for name, _ in options}) > 1
        state = hash((self.shared(), tuple(sorted(self.views.items())), frozenset(self.done),
                      self.deaths, None if everyone else options[0]))  # fmt: skip
        at = len(self.path)
        if at < len(self.prefix):
            chosen = self.prefix[at]
        elif state in self.seen:
            self.is_known = True
            self._end()
        else:
            chosen = options[0]
        self.path.append((state, options, chosen))
        return chosen

    def _end(self) -> None:
        self.is_over = True
        self._over.release()
        raise Halt


class _SmallScope(Simulation):
    """A table of two rows and one staged change, and the actors of a scope."""

    world: SearchedWorld

    def __init__(self, world: SearchedWorld) -> None:
        super().__init__(world)
        world.actors.clear()
        table = self.table(self.clean)()
        for key, region in ((0, "eu"), (1, "us")):
            self.change_rows(self.healer, table, "append", ((key, region, self.serial.next()),))
        self.change_rows(self.healer, table, "stage", ((0, "us", self.serial.next()),))
        for name in world.scope.actors:
            world.add(name, self.live)
        world.shared = lambda: self.pointers.read(IDENTIFIER)

    def live(self, actor: Actor) -> None:
        """One operation; who dies in it tries again if it is a task, not if it is a writer."""
        kind = self.world.scope.actors[actor.name]
        is_new = actor.life == 0
        if is_new or kind in {"resolve", "compact", "expire"}:
            environment = self.environment(actor)
            try:
                getattr(self, f"do_{kind}")(actor, environment)
            except Crash:
                self.world.views[actor.name] = hash((self.world.views[actor.name], "died"))
                raise
        self.world.retire(actor)

    def change_rows(self, actor: Actor, table: Table, kind: str, rows: tuple, gone=()) -> None:
        keys = frozenset([row[0] for row in rows] + list(gone))
        with self.operation(actor, Operation(actor.name, kind, rows, keys, dict(TYPED))):
            if kind == "append":
                table.append(as_table(TYPED, rows))
            else:
                deletes = as_table({"id": "long"}, tuple((key,) for key in gone))
                table.stage(upserts=as_table(TYPED, rows), deletes=deletes)

    def do_upsert(self, actor: Actor, environment: Environment) -> None:
        rows = ((0, "eu", self.serial.next()),)
        self.change_rows(actor, self.table(environment)(), "stage", rows)

    def do_delete(self, actor: Actor, environment: Environment) -> None:
        self.change_rows(actor, self.table(environment)(), "stage", (), gone=(0, 1))

    def do_append(self, actor: Actor, environment: Environment) -> None:
        rows = ((0, "us", self.serial.next()),)  # the key that is staged
        self.change_rows(actor, self.table(environment)(), "append", rows)

    def do_resolve(self, actor: Actor, environment: Environment) -> None:
        keeper = MemoryIndexKeeper(environment, self.indexes.get(actor.name))
        try:
            with self.operation(actor, Operation(actor.name, "publish")):
                self.cycle(environment, keeper)
        finally:
            self.indexes[actor.name] = keeper.index

    def do_compact(self, actor: Actor, environment: Environment) -> None:
        table = self.table(environment)()
        with self.operation(actor, Operation(actor.name, "rewrite")):
            one_group = CompactOptions(rewrite_all=True, rewrite_bytes_max=1)  # fewer steps
            report = compact(table, one_group, lock=self.lock)
            if report.errors:
                raise CommitConflictError("; ".join(report.errors))

    def do_expire(self, actor: Actor, environment: Environment) -> None:
        with self.operation(actor, Operation(actor.name, "expire")):
            apply_expiry(environment, IDENTIFIER, EVERYTHING, fence=None)
