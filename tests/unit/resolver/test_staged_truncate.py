"""`on-truncate=apply`: what is staged and published after the source's table was emptied."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pyarrow as pa
import pytest

from maintenance.tasks.compact import compact
from maintenance.tasks.options import CompactOptions
from resolver import resolve
from tableformat import InvalidInputError
from tableformat.cdc.batch_commit import BatchId
from tableformat.cdc.ingest import IngestResult, write_changes
from tableformat.cdc.replay import replay_dead_letters
from tableformat.cdc.sink import plan_sink
from tableformat.commit.changeset import Changeset, CommitKind
from tableformat.commit.engine import commit
from tableformat.runtime import Runtime
from tests.support.change_events import envelope, events_table
from tests.support.memory_tables import memory_catalog

SCHEMA = pa.schema(
    [pa.field("id", pa.int64(), nullable=False), ("note", pa.string()), ("version", pa.int64())]
)
SEQUENCED = {"sequence": "source.lsn", "sequence-column": "version"}
TRUNCATE = envelope("t")


class Crash(BaseException):
    """The process dies here."""


@pytest.fixture
def runtime() -> Runtime:
    return Runtime()


@pytest.fixture
def catalog(runtime):
    return memory_catalog(runtime=runtime)


@pytest.fixture
def table(catalog):
    return catalog.create_table("shop.things", SCHEMA, primary_key=["id"])


def row(key: int, note: str = "a") -> dict[str, object]:
    return {"id": key, "note": note, "version": None}


def put(key: int, note: str = "a", lsn: int | None = None, op: str = "u") -> str:
    return envelope(op, after=row(key, note), lsn=lsn)


def stage(table, *events: str, batch: int | None = None, **options: str) -> IngestResult:
    given = {"on-truncate": "apply"} | {k.replace("_", "-"): v for k, v in options.items()}
    return write_changes(
        table.environment,
        table.identifier,
        events_table(events),
        options=given,
        batch=None if batch is None else BatchId("q", batch),
    )


def state_of(table, branch: str) -> dict[int, str]:
    branch = branch if table.refresh().state.ref(branch) else "main"
    rows = table.scan(branch=branch).to_arrow().to_pylist()
    assert len({each["id"] for each in rows}) == len(rows), "a key has two rows"
    return {each["id"]: each["note"] for each in rows}


def published(table) -> dict[int, str]:
    resolve(table)
    return state_of(table, "main")


def crash_at(runtime: Runtime, point: str, action: Callable[[], None] | None = None) -> None:
    def arm(_: str) -> None:
        runtime.fail_points.armed.clear()
        if action is None:
            raise Crash
        action()

    runtime.fail_points.armed[point] = arm


def test_rows_before_the_truncate_go_and_those_after_it_stay(table):
    table.append(pa.Table.from_pylist([row(1, "main"), row(2, "main")], SCHEMA))
    stage(table, put(3, "staged"))
    result = stage(table, put(4), put(2, "lost"), TRUNCATE, put(2, "new"), put(5, op="c"))
    assert (result.changes, result.truncated) == (5, True)
    assert state_of(table, "staging") == {2: "new", 5: "a"}
    assert published(table) == {2: "new", 5: "a"}
    assert published(table) == {2: "new", 5: "a"}


def test_last_of_several_truncates_counts(table):
    stage(table, put(1), TRUNCATE, put(2), TRUNCATE, put(3))
    assert published(table) == {3: "a"}


def test_truncate_is_placed_by_the_sequence_of_the_source(table):
    late = envelope("t", lsn=5)
    stage(table, put(1, lsn=6), put(2, lsn=4), late, put(3, lsn=3), sequence="source.lsn")
    assert published(table) == {1: "a"}


def test_truncate_without_the_sequence_is_a_bad_record(table):
    with pytest.raises(InvalidInputError, match="lacks its sequence field"):
        stage(table, put(1, lsn=6), TRUNCATE, sequence="source.lsn")


def test_changes_of_later_batches_follow(table):
    stage(table, put(1))
    stage(table, TRUNCATE)
    stage(table, put(1, "again"))
    assert published(table) == {1: "again"}


def test_empty_table_needs_no_commit(table):
    assert stage(table, TRUNCATE).commit is None
    stage(table, put(1))
    published(table)
    stage(table, TRUNCATE)
    assert published(table) == {}
    assert stage(table, TRUNCATE).commit is None


def test_rows_that_came_to_main_later_stay(table):
    stage(table, put(1), TRUNCATE, put(2))
    table.append(pa.Table.from_pylist([row(7, "others")], SCHEMA))
    assert published(table) == {2: "a", 7: "others"}


def test_rows_that_compaction_has_moved_go(table):
    for key in (1, 2):
        table.append(pa.Table.from_pylist([row(key)], SCHEMA))
    stage(table, TRUNCATE)
    assert compact(table.refresh(), CompactOptions(rewrite_all=True)).commits
    assert published(table) == {}


@pytest.mark.parametrize("cycles", ["one by one", "the first two"])
def test_staged_rows_go_whatever_was_published_meanwhile(table, cycles):
    stage(table, put(1), put(2))
    stage(table, envelope("d", before=row(1)), envelope("d", before=row(2)))
    stage(table, put(3))
    stage(table, TRUNCATE, put(4))
    if cycles == "the first two":  # the first file is never published: its rows have died
        resolve(table, limit=2)
    else:
        for _ in range(3):
            resolve(table, limit=1)
    assert published(table) == {4: "a"}


def test_vectors_that_are_there_are_replaced(table):
    table.append(pa.Table.from_pylist([row(1), row(2)], SCHEMA))
    stage(table, put(1, "b"))
    resolve(table)
    stage(table, TRUNCATE)
    stage(table, put(9))
    stage(table, TRUNCATE)
    assert published(table) == {}


def test_file_that_is_staged_twice_gets_one_vector(table):
    """A tool that was not told of its success commits a staged file once more."""
    stage(table, put(1))
    [task] = table.refresh().scan(branch="staging").plan.tasks
    again = Changeset(
        kind=CommitKind.APPEND, branch="staging", added_data_files=(task.entry.data_file,)
    )
    commit(table.environment, table.identifier, again)
    stage(table, TRUNCATE, put(2))
    stage(table, TRUNCATE)
    assert published(table) == {}


def test_partitioned_rows_go(catalog):
    table = catalog.create_table(
        "shop.parts", SCHEMA, primary_key=["id"], partition_by=["bucket(3, id)"]
    )
    table.append(pa.Table.from_pylist([row(key) for key in range(9)], SCHEMA))
    stage(table, put(20))
    stage(table, TRUNCATE, put(3, "new"))
    assert published(table) == {3: "new"}


@pytest.mark.parametrize("batch", [None, 3])
def test_rows_staged_by_others_while_the_batch_was_written_go(table, runtime, batch):
    """The vectors are those of the head that the commit stands on."""
    table.append(pa.Table.from_pylist([row(1)], SCHEMA))

    def other_writer() -> None:
        stage(table, put(2, "others"))

    crash_at(runtime, "commit.before_swap", other_writer)
    stage(table, TRUNCATE, put(3), batch=batch)
    assert published(table) == {3: "a"}


def test_first_rows_of_main_that_come_meanwhile_go(table, runtime):
    """There is no staging branch yet: it is forked where the commit is tried again."""

    def other_writer() -> None:
        table.append(pa.Table.from_pylist([row(2, "others")], SCHEMA))

    crash_at(runtime, "commit.before_swap", other_writer)
    stage(table, TRUNCATE, put(3))
    assert published(table) == {3: "a"}


@pytest.mark.parametrize(
    "point",
    ["ingest.before_commit", "commit.before_swap", "commit.after_swap", "ingest.after_commit"],
)
def test_batch_that_is_run_again_after_a_crash_truncates_once(table, runtime, point):
    table.append(pa.Table.from_pylist([row(1)], SCHEMA))
    crash_at(runtime, point)
    with pytest.raises(Crash):
        stage(table, put(2), TRUNCATE, put(3), batch=1)
    stage(table, put(2), TRUNCATE, put(3), batch=1)
    stage(table, put(4), batch=2)
    assert stage(table, put(2), TRUNCATE, put(3), batch=1).repeated
    assert published(table) == {3: "a", 4: "a"}


def test_assumed_new_keys_after_a_truncate_are_new(table):
    table.append(pa.Table.from_pylist([row(1, "old")], SCHEMA))
    stage(table, put(1, "x"), TRUNCATE, put(1, "new", op="c"), assume_new_keys="true")
    assert published(table) == {1: "new"}


def test_newer_rows_of_the_sequence_column_outlive_a_late_truncate(table):
    stage(table, put(1, lsn=10), put(2, lsn=30), put(3, lsn=31), **SEQUENCED)
    resolve(table)
    stage(table, put(4, lsn=20), put(5, lsn=40), **SEQUENCED)
    stage(table, envelope("t", lsn=30), put(6, lsn=29), put(7, lsn=41), **SEQUENCED)
    assert published(table) == {3: "a", 5: "a", 7: "a"}


def test_soft_deletes_and_truncates_exclude_each_other(catalog):
    schema = SCHEMA.append(pa.field("gone", pa.bool_()))
    table = catalog.create_table("shop.soft", schema, primary_key=["id"])
    with pytest.raises(InvalidInputError, match=r"on-truncate=apply.*soft-delete"):
        stage(table, soft_delete="gone")


def test_replayed_truncate_keeps_to_the_sequence_column(catalog, table):
    stage(table, put(1, lsn=1), put(2, lsn=9), **SEQUENCED)
    aside = {"on_truncate": "fail", "on_bad_record": "dead-letter"}
    stage(table, envelope("t", lsn=5), **aside, **SEQUENCED)
    replay(table, **SEQUENCED)
    assert published(table) == {2: "a"}
    plain = catalog.create_table("shop.plain", SCHEMA, primary_key=["id"])
    stage(plain, put(1), TRUNCATE, **aside)
    with pytest.raises(InvalidInputError, match="would remove rows that came after it"):
        replay(plain, any_order=True)
    assert published(plain) == {1: "a"}


def replay(table, *, any_order: bool = False, **options: str) -> None:
    plan = plan_sink(
        table.environment,
        table.identifier,
        format_name="debezium-json",
        options={"on-truncate": "apply"} | options,
        branch="staging",
    )
    list(replay_dead_letters(plan, any_order=any_order))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_random_histories_end_like_a_dict(table, seed):
    """Batches with truncates, cycles, compactions and appends to main in between."""
    random_ = random.Random(seed)
    fold: dict[int, str] = {}
    for step in range(25):
        match random_.choice(["batch"] * 5 + ["resolve", "limited", "compact"]):
            case "batch":
                stage(table, *_drawn_events(random_, step, fold), batch=step)
                assert state_of(table, "staging") == fold
            case "resolve":
                assert published(table) == fold
            case "limited":
                resolve(table, limit=random_.randint(1, 3))
            case "compact":
                compact(table.refresh(), CompactOptions(rewrite_all=True))
    assert published(table) == fold


def _drawn_events(random_: random.Random, step: int, fold: dict[int, str]) -> Sequence[str]:
    events: list[str] = []
    for number in range(random_.randint(1, 6)):
        key = random_.randrange(8)
        match random_.choice(["put", "put", "delete", "truncate"]):
            case "put":
                fold[key] = f"{step}.{number}"
                events.append(put(key, fold[key]))
            case "delete":
                fold.pop(key, None)
                events.append(envelope("d", before=row(key)))
            case _:
                fold.clear()
                events.append(TRUNCATE)
    return events
