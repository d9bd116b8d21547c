"""Threads that commit at once: nothing acknowledged is lost, nothing is there twice."""

import threading
from collections import Counter

import pytest

from tableformat.commit.changeset import Changeset, CommitKind, Validation
from tableformat.errors import CommitConflictError
from tableformat.runtime import Runtime
from tests.support.commit_tables import IDENTIFIER, CommitTable, SeededIds
from tests.support.table_checker import check_table

THREADS, COMMITS = 8, 12
BRANCHES = ("main", "staging", "audit")


def run_threads(work):
    errors = []

    def guarded(number):
        try:
            work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


@pytest.fixture
def table():
    table = CommitTable(
        properties={
            "commit.retry.min-wait-ms": "1",
            "commit.retry.max-wait-ms": "5",
            "commit.retry.num-retries": "500",
            "commit.manifest.min-count-to-merge": "5",
        }
    )
    object.__setattr__(table.environment, "runtime", Runtime(ids=SeededIds(1)))
    return table


def test_appends_from_many_threads_are_all_there_once(table):
    acknowledged = []

    def work(number):
        for commit in range(COMMITS):
            name = f"t{number}-{commit}"
            branch = BRANCHES[(number + commit) % 3]
            result = table.append(table.data(name, rows=number + 1), branch=branch)
            acknowledged.append((name, branch, result.snapshot.snapshot_id))

    run_threads(work)
    checked = check_table(table.store.get, table.state.metadata_location)
    assert len(acknowledged) == THREADS * COMMITS == len(checked)
    assert {each for _, _, each in acknowledged} == checked.keys()
    for branch in BRANCHES:
        live = Counter(table.short_name(e.data_file) for e in table.entries(branch) if e.is_live)
        expected = {name for name, on, _ in acknowledged if on == branch}
        assert expected <= live.keys()
        assert set(live.values()) == {1}


def test_vectors_on_one_file_from_many_threads_exclude_each_other(table):
    x = table.data("x", rows=1000)
    table.append(x)
    landed, conflicts = [], []

    def work(number):
        for attempt in range(COMMITS):
            state = table.state
            head = state.head("main").snapshot_id
            old = [
                entry
                for name, entry in table.live().items()
                if name.endswith(".puffin@4") and entry.is_live
            ]
            if table.head() != head:
                continue  # the view is torn between two versions; a scan would not be
            vector = table.vector(x, f"v{number}-{attempt}", cardinality=len(landed) + 1)
            change = Changeset(
                kind=CommitKind.ROW_DELTA,
                added_delete_files=(vector,),
                removed_entries=tuple(old),
                validation=Validation(starting_snapshot_id=head),
            )
            try:
                table.commit(change)
            except CommitConflictError as error:
                conflicts.append(error)
            else:
                landed.append(vector.file_path)

    run_threads(work)
    assert landed
    live = table.live()
    assert len(live) == 2
    checked = check_table(table.store.get, table.state.metadata_location)
    assert len(checked) == len(landed) + 1
    assert table.catalog.load_table(IDENTIFIER).metadata.last_sequence_number == len(checked)
