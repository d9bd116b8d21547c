"""The table of a run, how actors see it, and how their operations may end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from lock import LockError
from tableformat import Table, TableCatalog
from tableformat.catalog.keyed import KeyedCatalog
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
from tableformat.runtime import Runtime
from tests.support.foreign_table import ForeignTable, without_key
from tests.support.memory_catalog import MemoryCatalog
from tests.support.memory_index import MemoryIndex
from tests.support.memory_store import MemoryObjectStore
from tests.support.sim_draw import ARROW, Serial, draw_columns, draw_rows
from tests.support.sim_movers import MOVER
from tests.support.sim_operation import Operation
from tests.support.sim_oracle import Oracle
from tests.support.sim_schema import COMPUTED, ID, Column, Row, TableSchema
from tests.support.sim_seams import SimLock, SimPointers, SimStore, WatchedPointers
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
GONE, CUT, MOVED_BACK, OLDER = (
    "staged snapshots have gone",
    "the histories of the branches do not meet any more",
    "rolled back and expired",
    "staged on a snapshot of main before the last publish",
)
OF_LOST_LOGS = frozenset({GONE, CUT, MOVED_BACK, OLDER})
# A flipped bit may make an unknown codec of a known one.
DAMAGE_ERRORS = (CorruptDataError, UnsupportedError)


class SimTable:
    """The table, with what its faults and its past allow an operation to say."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.healer = Actor(world, "healer", lambda _: None)
        self.store = MemoryObjectStore(Runtime(clock=SimClock(self.healer)))
        self.pointers = WatchedPointers()
        self.lock = SimLock(world)
        self.serial = Serial()
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

    def table(self, environment: Environment) -> Callable[[], Table]:
        """Loads the table at the first use that succeeds."""
        loaded: list[Table] = []

        def load() -> Table:
            if not loaded:
                loaded.append(TableCatalog(environment).load_table(NAME))
            return loaded[0]

        return load

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
            if operation.source is None:
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
        if MOVER in profile.meddlers and oracle.stands_on_older:
            return OLDER
        if profile.forgets and oracle.has_moved_positions:
            return "the history of a file that staged positions are in has gone"
        if oracle.unreadable is not None:
            return "a data file that staged positions are in has gone"
        if oracle.has_changed_copies:
            return "main has changed rows that were copied"
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


def _of_format(profile: Profile) -> dict[str, str]:
    if profile.v2 is None:
        return {}
    return {"format-version": "2", "write.delete.granularity": profile.v2}
