"""A bug is planted, and one of the first seeds that can meet it fails."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import count, islice
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyroaring import BitMap64

import maintenance.tasks.compaction.rebase
import maintenance.tasks.rewrite_vectors
import resolver.batch_row_ids
import resolver.cycle
import resolver.cycle_match
import resolver.filled_columns
import resolver.index.local
import resolver.moved_rows
import resolver.rewritten_rows
import resolver.row_identity
import resolver.staged_on_target
import resolver.staged_rows
import resolver.target_row_ids
import tableformat.codec.parquet.projection
import tableformat.commit.expiry_plan
import tableformat.commit.snapshot_change
import tableformat.commit.swap
from resolver.cursor import _TargetHistory
from resolver.filled_columns import FilledColumns
from resolver.merge_deletes import Conversion
from resolver.rewrite_batch import RewrittenBatch
from resolver.scopes import Scopes
from resolver.target_deletes import KnownDeletes
from tableformat.commit.branch_history import committed_to
from tableformat.commit.retention import Retention
from tableformat.errors import CommitConflictError
from tableformat.sql.computed_columns import StoredValues
from tests.support.sim_run import run_seed
from tests.support.sim_world import Profile

STEPS = 1_200
SEEDS = 80
# Of the seeds that find a bug, one that is run before the others, where they took many.
FOUND_BY = {
    "unknown_is_failed": 45,
    "aged_staging-meddlers": 6,
    "setting_of_now-meddlers": 8,
    "rewritten_past_keys-in_place-v2": 24,
}
Plant = Callable[[pytest.MonkeyPatch], None]


def null_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files without a column that was added later have nulls in it."""
    module = tableformat.codec.parquet.projection
    real = module.constant_array
    monkeypatch.setattr(module, "constant_array", lambda _, kind, rows: real(None, kind, rows))


def no_conflicts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody looks what has landed since the scan (I13)."""
    module = tableformat.commit.snapshot_change
    monkeypatch.setattr(module, "check_conflicts", lambda *_, **__: None)


def forgotten_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new deletion vector replaces the old one without its positions (I6)."""

    real = resolver.cycle.known_deletes

    def none(*given: Any) -> dict[str, KnownDeletes]:
        return {path: replace(one, positions=BitMap64()) for path, one in real(*given).items()}

    monkeypatch.setattr(resolver.cycle, "known_deletes", none)


def strict_scopes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Staged deletes of one partition miss rows that have moved to another spec (R03)."""
    real = Scopes.of_delete
    monkeypatch.setattr(Scopes, "of_delete", lambda self, file, one_spec: real(self, file))


def unknown_is_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit whose answer is lost counts as failed, and its files are deleted (R56, R60)."""

    def failed(*_: object) -> None:
        error = CommitConflictError("the commit failed")
        error.files_safe_to_delete = True
        raise error

    monkeypatch.setattr(tableformat.commit.swap._GroupSwap, "_look_for", failed)


def aged_staging(monkeypatch: pytest.MonkeyPatch) -> None:
    """Expiry does not know what waits, and drops branches by their age."""
    monkeypatch.setattr(tableformat.commit.expiry_plan, "staging_branches", lambda *_: {})


def forgotten_backlog(monkeypatch: pytest.MonkeyPatch) -> None:
    """A staged snapshot that main was fast-forwarded to counts as a commit of main for ever."""

    def was_target(history: _TargetHistory, snapshot: Any) -> bool:
        logged = {each.snapshot_id for each in history.state.metadata.snapshot_log}
        return (
            snapshot.snapshot_id in logged
            or committed_to(snapshot) == history.target
            or history.marker_of(snapshot) is not None
        )

    monkeypatch.setattr(_TargetHistory, "was_target", was_target)


def lost_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    """A staged position whose file has left main is dropped."""

    def only_there(view: Any, batch: Any, _moved: Any, _look_up: Any, kills: Any) -> None:
        for each in batch.target_positions:
            if each.path in view.live.data:
                kills.add(each.path, each.positions, each.staged.order)

    monkeypatch.setattr(resolver.cycle_match, "add_target_positions", only_there)


def added_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A staged data file that is on main already is published."""
    real = resolver.cycle.convert

    def convert(*args: Any, staged_files: Any, target_files: Any, **given: Any) -> Conversion:
        staged = list(staged_files)
        found = real(*args, staged_files=staged, target_files=target_files, **given)
        again = tuple(file for file in staged if file.file_path in target_files)
        return replace(found, published=(*found.published, *again))

    monkeypatch.setattr(resolver.cycle, "convert", convert)


def no_retention(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tools' expiry is not told to keep what is staged."""
    module = tableformat.commit.snapshot_change
    monkeypatch.setattr(module, "STAGING_RETENTION", Retention())


def deleted_and_inserted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row takes the id of a row of its key that an earlier commit has deleted."""
    module = resolver.row_identity
    real = module._parents

    def parents(rows: Any, died: Any) -> Any:
        order = np.where(rows.order > 0, rows.order % 2 + 1, 0)
        at = np.where(died == module.NEVER, died, died % 2 + 1)
        return real(replace(rows, order=order), at)

    monkeypatch.setattr(module, "_parents", parents)


def oldest_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of several rows of a key the id of the oldest is kept."""
    module = resolver.row_identity
    real = module._last_of

    def first_of(group: Any, ordinals: Any, rows: Any) -> Any:
        return real(group, ordinals, replace(rows, order=-rows.order, row_id=-rows.row_id))

    monkeypatch.setattr(module, "_last_of", first_of)


def stored_ids_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row of the target has its file's first row id and its position, whatever is stored."""

    def counted(_: object, __: object, live: Any, matches: Any, **___: object) -> Any:
        files = live.find_whole([file.file_path for file in matches.files.values()])
        first = {i: files[f.file_path].data_file.first_row_id for i, f in matches.files.items()}
        return np.array([first[i] for i in matches.file_id.tolist()]) + matches.position

    monkeypatch.setattr(resolver.batch_row_ids, "row_ids_of", counted)


def ids_of_another_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """Row ids that are remembered are taken for those of any file with as many rows."""
    real, known = resolver.target_row_ids._all_ids, dict[int, Any]()

    def all_ids(*arguments: Any) -> Any:
        return [known.setdefault(len(ids), ids) for ids in real(*arguments)]

    monkeypatch.setattr(resolver.target_row_ids, "_all_ids", all_ids)


def staged_places(monkeypatch: pytest.MonkeyPatch) -> None:
    """The index has rewritten rows in the order in which they were staged."""
    real = RewrittenBatch.add_to
    monkeypatch.setattr(
        RewrittenBatch,
        "add_to",
        lambda self, changes, batch: real(replace(self, row=np.sort(self.row)), changes, batch),
    )


def forgotten_rewrites(monkeypatch: pytest.MonkeyPatch) -> None:
    """A staged position in a file whose rows were written into others is dropped."""
    monkeypatch.setattr(resolver.moved_rows, "rewritten_files", lambda *_, **__: {})


def unfilled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Missing columns are published as they are staged."""
    monkeypatch.setattr(FilledColumns, "fill", lambda *_: None)


def filled_past_staged_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Missing columns come from the published row, whatever was staged before."""
    real = resolver.filled_columns.previous_rows

    def of_the_target(rows: Any, *given: Any) -> Any:
        killed_at = np.where(rows.order > 0, -1, rows.killed_at)
        return real(replace(rows, killed_at=killed_at), *given)

    monkeypatch.setattr(resolver.filled_columns, "previous_rows", of_the_target)


def half_merged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of position delete files that are merged, those of a data file are left out."""
    module = maintenance.tasks.rewrite_vectors
    real = module.plan_merge

    def plan_merge(*given: Any) -> Any:
        merge = real(*given)
        return replace(merge, tasks=merge.tasks[1:])

    monkeypatch.setattr(module, "plan_merge", plan_merge)


def taken_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that a Spark query appends to staging again counts as another one."""
    monkeypatch.setattr(resolver.cycle, "repeated_batches", lambda *_, **__: frozenset())


BUGS: list[tuple[Plant, Callable[[Profile], bool]]] = [
    (null_defaults, lambda p: p.changes_schema),
    (no_conflicts, lambda p: p.has_statements and p.keys == 3 and not p.has_sink),
    (forgotten_vectors, lambda _: True),
    (strict_scopes, lambda p: p.changes_spec and p.partition_by == ("bucket(2, id)",)),
    (unknown_is_failed, lambda p: p.swap_lost > 0),
]


# What others do: each with the actors that meet it.
def brought_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies of rows that main has deleted or updated since are published (I1)."""
    monkeypatch.setattr(resolver.cycle_match, "check_copies", lambda *_: None)


def left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of files that staging has removed stay beside their copies (I1)."""
    real = resolver.cycle.load_staged
    monkeypatch.setattr(
        resolver.cycle,
        "load_staged",
        lambda *given: [replace(each, removed=()) for each in real(*given)],
    )


def given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody looks whether what is published is on staging still."""
    monkeypatch.setattr(resolver.cycle_match, "check_still_staged", lambda *_, **__: None)


def setting_of_now(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a publish has written anew is forgotten once publishes link staged files again."""
    real = resolver.rewritten_rows.rewriting_publishes

    def publishes(view: Any) -> Iterator[Any]:
        is_set = view.metadata.properties.get("icefold.publish") == "rewrite"
        return real(view) if is_set else iter(())

    monkeypatch.setattr(resolver.rewritten_rows, "rewriting_publishes", publishes)


def fork_of_now(monkeypatch: pytest.MonkeyPatch) -> None:
    """A staged snapshot is taken to stand on what the target is now."""
    for module in (resolver.moved_rows, resolver.staged_on_target):
        monkeypatch.setattr(
            module, "base_of", lambda state, _, *, staging, target: state.head(target)
        )


OF_OTHERS: list[tuple[Plant, tuple[str, ...]]] = [
    (aged_staging, ("ager",)),
    (forgotten_backlog, ("forwarder",)),
    (lost_positions, ("foreign-compactor", "row-level")),
    (added_again, ("adder",)),
    (no_retention, ("foreign-expirer",)),
    (taken_twice, ("streamer",)),
    (brought_back, ("copier", "foreign-compactor")),
    (left_behind, ("copier",)),
    (fork_of_now, ("foreign-compactor", "forker", "row-level")),
    (setting_of_now, ("row-level", "switcher")),
]


# Of publishes that write rows once more.
OF_REWRITES: list[tuple[Plant, tuple[str, ...]]] = [
    (deleted_and_inserted, ()),
    (oldest_replaced, ()),
    (ids_of_another_file, ()),
    (stored_ids_unread, ()),
    (staged_places, ()),
    (forgotten_rewrites, ("row-level",)),
]


def lost_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last part of a split shard is forgotten (I19)."""
    _with_parts(monkeypatch, lambda parts: [*parts[:-1], (parts[-1][0], ())])


def parts_one_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each part of a split shard is put where the next one begins (I19)."""

    def moved(parts: Parts) -> Parts:
        starts, runs = zip(*parts, strict=True)
        return list(zip(starts, (runs[-1], *runs[:-1]), strict=True))

    _with_parts(monkeypatch, moved)


Parts = list[tuple[int, tuple[str, ...]]]


def _with_parts(monkeypatch: pytest.MonkeyPatch, wrong: Callable[[Parts], Parts]) -> None:
    real = resolver.index.local.after_change

    def after(starts: Any, shards: Any, changed: dict[int, Parts]) -> Any:
        parts = {shard: wrong(each) if len(each) > 1 else each for shard, each in changed.items()}
        return real(starts, shards, parts)

    monkeypatch.setattr(resolver.index.local, "after_change", after)


def rewritten_past_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """A compaction does not look what equality deletes have reached its files meanwhile (I15)."""
    module = maintenance.tasks.compaction.rebase
    real = module._deletes_of
    monkeypatch.setattr(
        module, "_deletes_of", lambda task: real(replace(task, equality_deletes=()))
    )


def own_rows_die(monkeypatch: pytest.MonkeyPatch) -> None:
    """Equality deletes in place reach rows that came with them (I4)."""
    real = resolver.cycle.sequence_number_of
    monkeypatch.setattr(resolver.cycle, "sequence_number_of", lambda entry: real(entry) + 1)


def other_fields_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deletes by other columns than the key are dropped."""
    monkeypatch.setattr(resolver.cycle_match, "add_joined_positions", lambda *_: None)


def swept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cycle in place takes off what came after it had read, too."""
    real = resolver.cycle.Cycle.rebase

    def rebase(self: Any, computed: Any) -> Any:
        found = real(self, computed)
        work = replace(found.work, converted=found.match.live.equality_deletes)
        return replace(found, work=work)

    monkeypatch.setattr(resolver.cycle.Cycle, "rebase", rebase)


def uncomputed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a publish fills in is not computed with."""
    monkeypatch.setattr(resolver.staged_rows, "stored_columns", lambda *_: {})


def stale(monkeypatch: pytest.MonkeyPatch) -> None:
    """A computed value that is there already is kept."""
    real = StoredValues.written

    def written(self: StoredValues, rows: pa.RecordBatch, *, checks: bool) -> pa.RecordBatch:
        found = real(self, rows, checks=checks)
        for name in self.columns:
            at = rows.schema.get_field_index(name)
            kept = pc.coalesce(rows.column(name), found.column(name))
            found = found.set_column(at, rows.schema.field(at), kept)
        return found

    monkeypatch.setattr(StoredValues, "written", written)


def seeds_that(meet: Callable[[Profile], bool]) -> Iterator[int]:
    return (
        seed for seed in count(1) if meet(Profile.draw(random.Random(f"{seed}/profile"), STEPS))
    )


def found_first(name: str, seeds: Iterable[int]) -> list[int]:
    """The seeds, beginning with the one that is known to find a bug."""
    return sorted(seeds, key=lambda seed: seed != FOUND_BY.get(name))


@pytest.mark.slow
@pytest.mark.parametrize(("plant", "meets"), BUGS, ids=[plant.__name__ for plant, _ in BUGS])
def test_planted_bug_is_found(
    plant: Plant, meets: Callable[[Profile], bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    seeds = found_first(plant.__name__, islice(seeds_that(meets), SEEDS))
    plant(monkeypatch)
    assert any(run_seed(seed, steps=STEPS).violation is not None for seed in seeds)


def with_options() -> Iterator[Any]:
    """Bugs that runs of one kind meet."""
    of_keyed_deletes = (rewritten_past_keys, own_rows_die, other_fields_forgotten, swept)
    kinds: list[tuple[tuple[Plant, ...], dict[str, Any]]] = [
        *(((plant,), {"meddlers": meddlers}) for plant, meddlers in OF_OTHERS),
        *(((plant,), {"meddlers": meddlers, "rewrites": True}) for plant, meddlers in OF_REWRITES),
        ((lost_part, parts_one_off), {"index": "disk"}),
        ((unfilled, filled_past_staged_rows), {"leaves_out": True}),
        ((forgotten_vectors, half_merged), {"v2": True}),
        (of_keyed_deletes, {"in_place": True}),
        (of_keyed_deletes, {"in_place": True, "v2": True}),
        ((uncomputed, stale), {"computes": True}),
        ((given_up,), {"moves": True}),
    ]
    for plants, options in kinds:
        for plant in plants:
            yield pytest.param(plant, options, id=name_of(plant, options))


def name_of(plant: Plant, options: Iterable[str]) -> str:
    return "-".join((plant.__name__, *options))


@pytest.mark.slow
@pytest.mark.parametrize(("plant", "options"), list(with_options()))
def test_planted_bug_is_found_by_runs_of_its_kind(
    plant: Plant, options: Mapping[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    seeds = found_first(name_of(plant, options), range(1, SEEDS + 1))
    runs = (run_seed(seed, steps=STEPS, **options) for seed in seeds)
    assert any(run.violation is not None for run in runs)
