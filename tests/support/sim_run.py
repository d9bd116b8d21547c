"""One seed from its number to its verdict: the actors, the two phases, the result."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from unittest.mock import patch

import resolver.batch_parts
import resolver.key_reader
from tests.support.sim_drain import Drain
from tests.support.sim_index import index_folders
from tests.support.sim_maintainers import Maintainers
from tests.support.sim_meddlers import Meddlers
from tests.support.sim_movers import with_mover
from tests.support.sim_table import IDENTIFIER
from tests.support.sim_world import Profile, World
from tests.support.sim_writers import Writers

ON_DISK = 0.3  # seeds with the real index
COPIES = 0.2  # seeds with copy-on-write on staging; the same
STREAMS = 0.2  # seeds with queries that append to staging; not with who brings what is staged
HOUSEKEEPING = 0.15  # seeds with each of `sim_housekeepers`; likewise
BRINGERS = frozenset({"adder", "forwarder", "picker", "retrier"})


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
    moves: bool = False,
) -> SeedResult:
    """Run one seed: faults and assertions first, then a healed system that must drain.

    `meddlers`, `rewrites`, `index`: these instead of what the seed draws. `leaves_out`: writers
    leave columns out of rows; nobody else then brings staged rows to main, or changes the table.
    `v2`: the table is of format version 2, and as drawn otherwise where that can be
    (`Profile.on_v2`). `in_place`: a tool commits equality deletes to main (`Profile.in_place`).
    `computes`: the table has a stored computed column (`Profile.computing`).
    `moves`: somebody drops and moves the staging branch (`sim_movers.with_mover`).
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
    if meddlers is None and random.Random(f"{seed}/copier").random() < COPIES:
        profile = replace(profile, meddlers=(*profile.meddlers, "copier"))
    if profile.forgets or not BRINGERS.isdisjoint(profile.meddlers):
        # Which file was removed is told by the history of the branch, which leads to main.
        kept = tuple(each for each in profile.meddlers if each != "copier")
        profile = replace(profile, meddlers=kept)
    if meddlers is None:
        profile = replace(profile, meddlers=(*profile.meddlers, *_housekeepers(seed)))
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
    if moves:
        profile = with_mover(profile)
    # Drawn by itself, so that the rest of what a seed draws does not depend on it.
    drawn = "disk" if random.Random(f"{seed}/index").random() < ON_DISK else "memory"
    profile = replace(profile, index=index or drawn)
    world = World(seed, profile)
    world.trace = [] if trace else None
    simulation = Simulation(world)
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


def _housekeepers(seed: int) -> tuple[str, ...]:
    names = (
        "auditor", "forker", "main-row-level", "pruner", "switcher", "tagger", "tidier", "undoer"
    )  # fmt: skip
    return tuple(n for n in names if random.Random(f"{seed}/{n}").random() < HOUSEKEEPING)


@contextmanager
def _batches_in_parts() -> Iterator[None]:
    """Batches of a few keys are matched as those of millions are."""
    with (
        patch.object(resolver.batch_parts, "PART_KEYS", 4),
        patch.object(resolver.key_reader, "SMALL_FROM_ROWS", 0),
    ):
        yield


class Simulation(Writers, Maintainers, Drain):
    """The table, and who works on it."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
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
