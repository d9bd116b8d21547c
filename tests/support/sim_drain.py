"""The healed phase: the backlog ends (I26), and everything that is kept can be read."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

from resolver.cycle import CycleOptions
from resolver.index.local import LocalIndex
from resolver.index_keeper import TargetHead
from resolver.moved_rows import UNKNOWN_VECTOR
from resolver.target import live_files
from tableformat import TableCatalog
from tableformat.commit.refs import create_branch
from tableformat.errors import InvalidInputError, NotFoundError, UnsupportedError
from tests.support.sim_index import SimKeeper
from tests.support.sim_operation import Operation
from tests.support.sim_resolvers import Resolvers
from tests.support.sim_schema import AMOUNT, COMPUTED, Row, TableSchema, in_schema
from tests.support.sim_seams import MemoryIndexKeeper
from tests.support.sim_table import IDENTIFIER, NAME, OF_LOST_LOGS

CAN_READ_STATE = "from_staging_state" in CycleOptions.__dataclass_fields__


class Drain(Resolvers):
    """What must be true of a table whose faults have ended."""

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
                repeats = from_state and UNKNOWN_VECTOR[0] in str(error)
                is_unknown = oracle.has_moved_positions or oracle.hidden_rows or repeats
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
            from_state, staged_after = False, None  # later cycles need no word
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
        head = self.oracle.refs.get("main")
        if index is None or head is None or index.binding.snapshot_id != head:
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
