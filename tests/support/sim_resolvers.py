"""Who publishes what is staged: cycles, with the index that a process has left."""

from __future__ import annotations

import shutil
from dataclasses import replace

from resolver.cycle import Cycle, CycleOptions
from resolver.maintenance_lock import fence_of, hold_maintenance
from resolver.open_indexes import OpenIndexes
from resolver.report import ResolveReport
from resolver.target import live_files
from tableformat.environment import Environment
from tableformat.runtime import SystemClock
from tests.support.sim_index import DiskIndexKeeper, SimKeeper
from tests.support.sim_operation import Operation
from tests.support.sim_seams import MemoryIndexKeeper
from tests.support.sim_table import IDENTIFIER, SimTable
from tests.support.sim_world import Actor


class Resolvers(SimTable):
    """Actors that run cycles."""

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
