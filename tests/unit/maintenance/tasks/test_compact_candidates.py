"""What compaction looks at: all that it would choose from everything, and little else."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tableformat as tf
from maintenance.tasks.compact import compact
from maintenance.tasks.compaction import candidates
from maintenance.tasks.compaction.candidates import worth_a_look
from maintenance.tasks.compaction.plan import Sizes, plan_groups
from maintenance.tasks.options import CompactOptions
from resolver.index_keeper import FILE_NOTES, index_folder
from tableformat.codec.avro import manifest_notes, manifest_store
from tableformat.codec.avro.live_columns import LIVE_FILE, live_columns, seen_of_file
from tableformat.codec.avro.manifest_store import clear_manifest_cache
from tableformat.scan.plan import FileScanTask, plan_scan, plan_without_files
from tests.support.manifests import added, data_file, deletion_vector

TARGET = 1000
OPTIONS = CompactOptions(target_size_bytes=TARGET, input_files_min=3, group_bytes_max=5000)

FILES = st.lists(
    st.tuples(
        st.sampled_from([0, 1, 2]),  # partition
        st.one_of(st.integers(0, 40), st.integers(0, 3 * TARGET)),  # bytes
        st.integers(0, 30),  # rows
        st.one_of(st.just(0), st.integers(0, 35)),  # deleted ones
    ),
    max_size=40,
)


@pytest.fixture(scope="module")
def empty(tmp_path_factory):
    warehouse = str(tmp_path_factory.mktemp("warehouse"))
    schema = pa.schema([("id", pa.int64()), ("part", pa.int64())])
    catalog = tf.open_catalog("local", warehouse=warehouse)
    return catalog.create_table("t.rows", schema, primary_key=["id"], partition_by=["part"]).state


def tasks_of(files):
    return [
        FileScanTask(
            entry=added(
                data_file(
                    str(number),
                    spec_id=0,
                    partition=(part,),
                    file_size_in_bytes=size_bytes,
                    record_count=rows,
                ),
                sequence_number=1,
            ),
            dv=added(deletion_vector(str(number), spec_id=0, partition=(part,), record_count=dead))
            if dead
            else None,
        )
        for number, (part, size_bytes, rows, dead) in enumerate(files)
    ]


def columns_of(entries):
    return live_columns([seen_of_file(each.data_file) for each in entries], 0).files


def chosen_of(tasks, empty):
    files = columns_of(task.entry for task in tasks)
    vectors = columns_of(task.dv for task in reversed(tasks) if task.dv is not None)
    return worth_a_look(files, vectors, Sizes.of(empty.metadata, OPTIONS)).tolist()


def groups_of(tasks, empty):
    plan = plan_without_files(empty.metadata, empty.metadata.schema())
    groups = plan_groups(replace(plan, tasks=tuple(tasks)), empty.metadata, OPTIONS)
    return {tuple(task.entry.data_file.file_path for task in group.tasks) for group in groups}


@settings(deadline=None)
@given(files=FILES)
def test_groups_are_those_of_looking_at_every_file(empty, files):
    tasks = tasks_of(files)

    chosen = chosen_of(tasks, empty)

    assert chosen == sorted(set(chosen))
    assert groups_of([tasks[row] for row in chosen], empty) == groups_of(tasks, empty)


def test_partitions_without_work_are_not_looked_at(empty):
    few, many = [(0, 10, 5, 0)] * 2, [(1, 10, 5, 0)] * 3
    good, dead = (2, 900, 5, 0), (2, 900, 5, 4)

    assert chosen_of(tasks_of([*few, *many, good, dead]), empty) == [2, 3, 4, 6]


def test_run_that_may_not_take_all_takes_what_must_go_and_then_the_smallest(empty, monkeypatch):
    monkeypatch.setattr(candidates, "FILES_MAX", 3)
    files = [(0, 700, 5, 0), (0, 80, 5, 0), (0, 2000, 5, 0), (0, 300, 5, 0), (0, 70, 5, 0)]

    assert chosen_of(tasks_of(files), empty) == [1, 2, 4]


@pytest.fixture
def noted(tmp_path, monkeypatch):
    """A table whose file of columns is kept, although it is small; one small file a commit."""
    for name in ("UNNOTED_FILES_MAX", "UNNOTED_SHARE_MAX"):
        monkeypatch.setattr(manifest_notes, name, 0)
    catalog = tf.open_catalog("local", warehouse=str(tmp_path / "warehouse"))
    schema = pa.schema([("id", pa.int64()), ("part", pa.int64())])
    table = catalog.create_table("t.rows", schema, primary_key=["id"], partition_by=["part"])
    for number in range(6):
        table.append(pa.table({"id": [number], "part": [number % 2]}))
    folder = index_folder(table.environment, table.state, "main")
    folder.mkdir(parents=True)
    return table, folder / FILE_NOTES


def test_manifests_are_decoded_once_and_what_is_new_next_time(noted, monkeypatch):
    table, notes = noted
    clear_manifest_cache(table.environment.store)
    read = []
    inner = manifest_store._read
    monkeypatch.setattr(
        manifest_store, "_read", lambda store, each: read.append(each) or inner(store, each)
    )
    few = CompactOptions(input_files_min=4)

    assert not compact(table, few, dry_run=True).groups
    assert len(read) == 6
    assert notes.exists()
    assert not compact(table, few, dry_run=True).groups
    clear_manifest_cache(table.environment.store)
    assert not compact(table, few, dry_run=True).groups
    assert len(read) == 6
    table.append(pa.table({"id": [6], "part": [0]}))
    assert compact(table, few, dry_run=True).removed_data_files == 4
    assert len(read) > 6


def test_damaged_columns_are_made_again(noted):
    table, notes = noted
    before = compact(table, dry_run=True, options=CompactOptions(input_files_min=3))
    notes.write_bytes(notes.read_bytes()[:-1] + b"?")

    after = compact(table, dry_run=True, options=CompactOptions(input_files_min=3))

    assert (before.groups, before.removed_data_files) == (2, 6)
    assert (after.groups, after.removed_data_files) == (2, 6)
    assert len(manifest_notes.read_notes(notes, LIVE_FILE)) == 6


@pytest.mark.parametrize("are_cached", [True, False], ids=["decoded", "read"])
def test_columns_are_what_the_entries_say(noted, are_cached):
    table, notes = noted
    table.stage(upserts=pa.table({"id": [1], "part": [1]}))
    plan = plan_scan(table.environment, table.refresh().state)
    if not are_cached:
        clear_manifest_cache(table.environment.store)
    compact(table, dry_run=True)

    columns = manifest_notes.read_notes(notes, LIVE_FILE).values()
    found = np.concatenate([files for files, _ in columns])

    entries = [task.entry for task in plan.tasks]
    assert found["rows"].tolist() == [entry.data_file.record_count for entry in entries]
    assert found["size_bytes"].tolist() == [entry.data_file.file_size_in_bytes for entry in entries]
    assert len(set(found["partition"].tolist())) == 2
    assert len(set(found["location"].tolist())) == 6
