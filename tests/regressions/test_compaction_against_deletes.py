"""Bugs other projects had where files are rewritten beside deletes: the rest of group C.

R32, R33, R35 and R39 are on the commit path: see `test_commit_regressions`. Rows and their lineage
are read from the files' bytes without the product's code.
"""

from __future__ import annotations

from contextlib import suppress

import pyarrow as pa
import pytest

from maintenance.tasks.compact import compact
from maintenance.tasks.expire import expire
from maintenance.tasks.options import CompactOptions, ExpireOptions, RemoveOrphansOptions
from maintenance.tasks.remove_orphans import remove_orphans
from resolver import resolve
from tableformat.commit.expiry_plan import ExpiryPolicy
from tableformat.errors import CommitConflictError, FencedError, TableError
from tableformat.runtime import FailPoints, Runtime
from tests.support.commit_tables import ManualClock, SeededIds
from tests.support.interruptions import Killed, fail_with, interrupt, other_process
from tests.support.lying_lock import GrantAllLock
from tests.support.memory_tables import memory_catalog
from tests.support.raw_rows import raw_identities, raw_rows
from tests.support.table_checker import check_table

SCHEMA = pa.schema([("id", pa.int64()), ("region", pa.string()), ("amount", pa.int64())])
DAY_MS = 24 * 3_600_000
STRATEGIES = {
    "bin-pack": CompactOptions(rewrite_all=True),
    "sort": CompactOptions(rewrite_all=True, strategy="sort", sort_by=("amount desc",)),
    "z-order": CompactOptions(rewrite_all=True, strategy="z-order", sort_by=("amount", "id")),
}


def rows(model):
    return pa.Table.from_pylist(
        [dict(zip(SCHEMA.names, row, strict=True)) for row in model.values()], SCHEMA
    )


def keys(*ids):
    return pa.table({"id": pa.array(ids, pa.int64())})


def made(ids, amount=0):
    return {i: (i, "eu" if i % 2 else "us", amount) for i in ids}


def found(table):
    """Rows by key; a key with two rows is an error."""
    counted = raw_rows(table, SCHEMA.names)
    state = {row[0]: row for row in counted}
    assert sum(counted.values()) == len(state), f"a key has two rows: {sorted(counted)}"
    return state


def identities(table):
    """Row and last update by `_row_id`."""
    return {each.row_id: (each.values, each.last_updated) for each in raw_identities(table)}


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture(params=[(), ("region",)], ids=["one partition", "by region"])
def table(tmp_path, clock, request):
    """Keys 0 to 29 in three files with vectors, and 3 and 15 in newer versions."""
    runtime = Runtime(clock=clock, ids=SeededIds(), fail_points=FailPoints())
    catalog = memory_catalog(str(tmp_path), runtime)
    table = catalog.create_table("t.rows", SCHEMA, primary_key=["id"], partition_by=request.param)
    for first in (0, 10, 20):
        table.append(rows(made(range(first, first + 10))))
    table.stage(upserts=rows(made([3, 15], amount=1)), deletes=keys(0, 1, 12, 29))
    resolve(table)
    return table


MODEL = {i: row for i, row in made(range(30)).items() if i not in (0, 1, 12, 29)} | made([3, 15], 1)


# -- R36 -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_r36_compaction_never_brings_back_the_rows_that_vectors_delete(table, strategy):
    assert found(table) == MODEL
    report = compact(table, STRATEGIES[strategy])
    assert (report.removed_dvs > 0, report.failed_groups) == (True, 0)
    assert found(table) == MODEL


@pytest.mark.parametrize("statement", ["delete", "update"])
@pytest.mark.parametrize("rounds", [1, 2])
def test_r36_copy_on_write_never_brings_back_the_rows_that_vectors_delete(table, statement, rounds):
    """Statements that rewrite the files which have vectors, once and again."""
    model = dict(MODEL)
    for key in (2, 13)[:rounds]:
        if statement == "delete":
            table.delete(f"id = {key}", mode="copy-on-write")
            del model[key]
        else:
            table.update({"amount": "7"}, f"id = {key}", mode="copy-on-write")
            model[key] = (*model[key][:2], 7)
        assert found(table) == model
    table.stage(deletes=keys(2, 13, 14))
    resolve(table)
    assert found(table) == {key: row for key, row in model.items() if key not in (2, 13, 14)}


# -- R38 -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("partial_progress", [True, False])
@pytest.mark.parametrize("share", [0.05, 0.4, 3.0], ids=["many pieces", "a few", "all in one"])
def test_r38_compaction_of_a_large_file_never_keeps_only_a_part_of_it(
    tmp_path, share, partial_progress
):
    """Files of many row groups, larger than a group may be and than the files that are written."""
    catalog = memory_catalog(str(tmp_path))
    table = catalog.create_table("t.rows", SCHEMA, primary_key=["id"])
    table.set_properties({"write.parquet.row-group-size-bytes": "4096"})
    model = {i: (i, f"region {i * 7919 % 6007}", i * 31) for i in range(6000)}
    table.append(rows({i: model[i] for i in range(5000)}))
    table.append(rows({i: model[i] for i in range(5000, 6000)}))
    dead = [*range(0, 6000, 97), 4999, 5000, 5999]
    table.delete(f"id IN ({', '.join(map(str, dead))})")
    model = {i: row for i, row in model.items() if i not in dead}
    files = [task.entry.data_file for task in table.scan().plan.tasks]
    assert max(len(file.split_offsets or ()) for file in files) > 3
    large = max(file.file_size_in_bytes for file in files)
    options = CompactOptions(
        rewrite_all=True,
        target_size_bytes=int(large * share),
        group_bytes_max=large // 2,
        partial_progress=partial_progress,
    )
    report = compact(table, options)
    assert report.failed_groups == 0
    assert found(table) == model
    compact(table, CompactOptions(rewrite_all=True))
    assert found(table) == model


# -- R41 -----------------------------------------------------------------------------------------


def run_compact(table, lock):
    compact(table, STRATEGIES["bin-pack"], lock=lock)


def run_resolve(table, lock):
    resolve(table, lock=lock)


def run_expire(table, lock):
    policy = ExpiryPolicy(max_snapshot_age_ms=1, min_snapshots_to_keep=1)
    expire(table, ExpireOptions(policy=policy), lock=lock)


def run_cleaner(table, lock):
    remove_orphans(table, RemoveOrphansOptions(older_than_ms=3_600_000), lock=lock)


JOBS = {
    "compact": run_compact,
    "resolve": run_resolve,
    "expire": run_expire,
    "clean": run_cleaner,
}
POINTS = {
    "compact": [
        "compact.after_plan",
        "compact.after_write",
        "compact.before_commit",
        "commit.before_swap",
    ],
    "resolve": ["resolve.after_match", "resolve.after_dv_write", "commit.before_swap"],
    "expire": ["commit.before_swap", "commit.after_swap"],
    "clean": ["orphans.after_list", "orphans.before_delete"],
}
PAIRS = [
    (outer, point, inner)
    for outer in JOBS
    for point in POINTS[outer]
    for inner in JOBS
    if (outer, inner) != ("resolve", "resolve")  # R02
]


def check_every_snapshot(table):
    """Every file that a retained snapshot names is there."""
    store = table.environment.store
    for checked in check_table(store.get, table.refresh().metadata_location).values():
        for file in checked.live:
            assert store.get(file.path)


@pytest.mark.parametrize(("outer", "point", "inner"), PAIRS)
def test_r41_jobs_without_a_shared_lock_never_delete_each_others_files(
    table, clock, tmp_path, outer, point, inner
):
    """The lock grants everybody everything: one job runs from begin to end inside another.

    What the loser gives up is its own work; leftovers of a job that was killed are there as well.
    """
    liar = GrantAllLock(tokens="same")
    interrupt(table, "compact.before_commit", fail_with(Killed()))
    with suppress(Killed):
        run_compact(table, liar)
    clock.advance(30 * DAY_MS)  # those leftovers are orphans, and old snapshots may expire
    table.append(rows(made([40])))
    table.stage(upserts=rows(made([5, 50], amount=2)), deletes=keys(6, 7, 16))
    model = {key: row for key, row in MODEL.items() if key not in (6, 7, 16)}
    model |= made([40]) | made([5, 50], amount=2)
    other = other_process(table)
    interrupt(table, point, lambda: JOBS[inner](other, liar))
    with suppress(CommitConflictError, FencedError):
        JOBS[outer](table, liar)
    check_every_snapshot(table)
    for name in ("resolve", "compact", "expire", "clean"):
        JOBS[name](table, liar)
        check_every_snapshot(table)
        clock.advance(DAY_MS)
    assert found(table) == model


@pytest.mark.parametrize("loser", ["outer", "inner"])
def test_r41_compaction_that_loses_deletes_the_files_it_wrote_and_no_others(table, loser):
    """Two compactions of the same files; the second one to commit has to give up."""
    liar = GrantAllLock(tokens="same")
    other = other_process(table)
    before = identities(table)
    reports = {}

    def inside():
        reports["inner"] = compact(other, STRATEGIES["bin-pack"], lock=liar)

    if loser == "outer":
        interrupt(table, "compact.before_commit", inside)
        reports["outer"] = compact(table, STRATEGIES["bin-pack"], lock=liar)
    else:
        third = other_process(table)
        interrupt(
            other, "compact.before_commit", lambda: compact(third, STRATEGIES["sort"], lock=liar)
        )
        interrupt(table, "compact.after_plan", inside)
        with suppress(TableError):
            reports["outer"] = compact(table, STRATEGIES["bin-pack"], lock=liar)
    assert reports[loser].failed_groups == reports[loser].groups > 0
    assert identities(table) == before
    check_every_snapshot(table)
    named = {
        file.path
        for checked in check_table(
            table.environment.store.get, table.refresh().metadata_location
        ).values()
        for file in checked.live
    }
    data = f"{table.state.metadata.location}/data"
    stored = {each.location for each in table.environment.store.list_prefix(data)}
    assert stored == named


# -- R42 -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_r42_row_ids_are_never_minted_anew_by_a_rewrite(table, strategy):
    """Compacted, then compacted again out of files that store the ids, with rows in between."""
    before = identities(table)
    compact(table, STRATEGIES[strategy])
    assert identities(table) == before
    table.append(rows(made(range(100, 110))))
    with_new = identities(table)
    assert before.items() <= with_new.items()
    assert min(with_new.keys() - before.keys()) > max(before)
    compact(table, STRATEGIES[strategy])
    assert identities(table) == with_new
    table.stage(deletes=keys(100, 2), upserts=rows(made([3], amount=9)))
    resolve(table)
    after = identities(table)
    kept = {i: each for i, each in with_new.items() if each[0][0] not in (100, 2, 3)}
    assert kept.items() <= after.items()
    [new] = after.keys() - kept.keys()
    assert new > max(with_new), "a row id was given out twice"


@pytest.mark.parametrize("mode", ["copy-on-write", "merge-on-read"])
def test_r42_statements_keep_the_id_of_an_updated_row_and_never_share_it(table, mode):
    compact(table, STRATEGIES["sort"])  # ids are stored, and not in the order of the rows
    before = identities(table)
    table.update({"amount": "amount + 5"}, "id >= 20 AND region = 'eu'", mode=mode)
    table.delete("id = 8", mode=mode)
    after = identities(table)
    number = table.state.head("main").sequence_number
    for row_id, (row, updated) in before.items():
        if row[0] == 8:
            assert row_id not in after
        elif row[0] >= 20 and row[1] == "eu":
            assert after[row_id][0] == (*row[:2], row[2] + 5)
            assert updated < after[row_id][1] < number
        else:
            assert after[row_id] == (row, updated)
    assert len(after) == len(before) - 1


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_r42_rows_deleted_during_a_rewrite_leave_no_id_to_another_row(table, strategy):
    other = other_process(table)
    before = identities(table)

    def beside():
        other.stage(upserts=rows(made([4], amount=4)), deletes=keys(22))
        resolve(other, lock=GrantAllLock(tokens="same"))

    interrupt(table, "compact.after_write", beside)
    compact(table, STRATEGIES[strategy], lock=GrantAllLock(tokens="same"))
    after = identities(table)
    kept = {i: each for i, each in before.items() if each[0][0] not in (4, 22)}
    assert kept.items() <= after.items()
    [new] = after.keys() - kept.keys()
    assert new not in before
    assert after[new][0] == made([4], amount=4)[4]
