"""Bugs other projects had in clean-up: R75 and R77 of group G."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest
from pyiceberg.table.statistics import PartitionStatisticsFile, StatisticsFile
from pyiceberg.table.update import SetPartitionStatisticsUpdate, SetStatisticsUpdate

from maintenance import expire, remove_orphans
from maintenance.tasks.options import ExpireOptions, RemoveOrphansOptions
from tableformat.commit.changeset import Changeset, CommitKind, Validation
from tableformat.commit.engine import commit
from tableformat.commit.expiry_plan import ExpiryPolicy
from tableformat.errors import (
    InvalidInputError,
)
from tableformat.spec.data_file import DataFile, FileContent
from tests.support.interruptions import interrupt
from tests.support.raw_rows import raw_rows
from tests.support.row_model import assert_holds, head_id, scanned_rows
from tests.support.staged_tables import BASE, SCHEMA, keys, rows_of
from tests.support.table_folders import folder_of, opened_again
from tests.support.table_metadata import edit_metadata

HOUR_MS = 3_600_000
OLD = RemoveOrphansOptions(older_than_ms=2 * HOUR_MS)


def make_old(folder):
    """As if nobody had written anything below it for a month."""
    for path in folder.rglob("*"):
        seconds = path.stat().st_mtime - 30 * 24 * 3600
        os.utime(path, (seconds, seconds))


# -- R75 -----------------------------------------------------------------------------------------


def staged_changes(table):
    table.stage(upserts=rows_of((1, "eu", "staged")), deletes=keys(2))


def vectors(table):
    table.delete("id = 3")


def statistics(table):
    head = table.refresh().state.head("main").snapshot_id
    folder = folder_of(table) / "metadata"
    for name in ("table.stats", "partition.stats"):
        (folder / name).write_bytes(b"statistics")
    given = {"file-size-in-bytes": 10, "snapshot-id": head}
    of_table = StatisticsFile.model_validate(
        {
            **given,
            "statistics-path": f"file://{folder}/table.stats",
            "file-footer-size-in-bytes": 1,
            "blob-metadata": [],
        }
    )
    of_partitions = PartitionStatisticsFile.model_validate(
        {**given, "statistics-path": f"file://{folder}/partition.stats"}
    )
    table.environment.catalog.commit(
        table.state,
        [
            SetStatisticsUpdate(statistics=of_table),
            SetPartitionStatisticsUpdate(partition_statistics=of_partitions),
        ],
    )


def aliases(table):
    """Another engine spells the locations in its own way."""
    files = table._write(table.refresh().state, rows_of((20, "us", "alias")))
    spelled = [file.with_(file_path=file.file_path.replace("file:///", "file:/")) for file in files]
    change = Changeset(kind=CommitKind.APPEND, added_data_files=tuple(spelled))
    commit(table.environment, table.identifier, change)
    path = Path(table.refresh().metadata_location.removeprefix("file://"))

    def spell(metadata):
        for snapshot in metadata["snapshots"]:
            snapshot["manifest-list"] = snapshot["manifest-list"].replace("file:///", "file:/")

    edit_metadata(path, spell)
    return opened_again(table)


def other_versions(table):
    table.refs.create_tag("then")
    table.overwrite(rows_of((30, "us", "new")))
    table.refs.create_branch("audit")
    table.append(rows_of((31, "us", "audit")), branch="audit")


@pytest.mark.parametrize(
    "needed",
    [staged_changes, vectors, statistics, aliases, other_versions],
    ids=lambda each: each.__name__,
)
def test_r75_orphan_removal_never_takes_what_the_table_needs(catalog, table, needed):
    """Everything is old, and the handle is from before all that the table needs was written."""
    writer = catalog.load_table("t.rows")
    table = needed(writer) or table
    orphan = folder_of(table) / "data" / "orphan.parquet"
    orphan.write_bytes(b"left behind")
    before = {path for path in folder_of(table).rglob("*") if path.is_file()}
    branches = writer.refresh().state.metadata.refs
    expected = {name: _merged(writer, name) for name in branches}
    make_old(folder_of(table))
    assert remove_orphans(table, OLD).removed_files == 1
    assert {path for path in folder_of(table).rglob("*") if path.is_file()} == before - {orphan}
    fresh = opened_again(table)
    assert {name: _merged(fresh, name) for name in branches} == expected


def _merged(table, ref):
    """Rows of a branch or tag as merge-on-read shows them."""
    kind = table.refresh().state.metadata.refs[ref].snapshot_ref_type.value
    return scanned_rows(table, **{kind: ref})


@pytest.mark.parametrize("committed", ["before", "after"], ids=lambda when: f"{when} the clean-up")
def test_r75_orphan_removal_never_takes_files_of_a_write_under_way(catalog, table, committed):
    """Written and not committed when the files are listed; old where that is no excuse."""
    writer = catalog.load_table("t.rows")
    make_old(folder_of(table))
    files = writer._write(writer.state, rows_of((40, "us", "in flight")))
    change = Changeset(kind=CommitKind.APPEND, added_data_files=tuple(files))
    if committed == "before":
        make_old(folder_of(table))

        def land() -> None:
            commit(writer.environment, writer.identifier, change)

        interrupt(table, "orphans.after_list", land)
        remove_orphans(table, OLD)
    else:
        remove_orphans(table, OLD)
        commit(writer.environment, writer.identifier, change)
    assert_holds(table, Counter([*BASE, (40, "us", "in flight")]))


def test_r75_expiry_never_takes_a_file_that_is_needed_under_another_spelling(table):
    """The same file, left by one snapshot and kept by another, in two spellings."""
    [entry] = [task.entry for task in table.scan().plan.tasks]
    file = entry.data_file
    alias = file.with_(file_path=file.file_path.replace("file:///", "file:/"), first_row_id=None)
    change = Changeset(
        kind=CommitKind.OVERWRITE,
        added_data_files=(alias,),
        removed_entries=(entry,),
        validation=Validation(starting_snapshot_id=head_id(table)),
    )
    commit(table.environment, table.identifier, change)
    policy = ExpiryPolicy(max_snapshot_age_ms=0, min_snapshots_to_keep=1)
    assert len(expire(table, ExpireOptions(policy=policy)).snapshots) == 1
    assert_holds(table, Counter(BASE))


# -- R77 -----------------------------------------------------------------------------------------


@pytest.fixture
def victim(tmp_path):
    """A file outside the warehouse that looks like an orphan."""
    victim = tmp_path / "elsewhere" / "data" / "precious.parquet"
    victim.parent.mkdir(parents=True)
    victim.write_bytes(b"precious")
    make_old(tmp_path)
    return victim


def poison(table, **properties):
    """Rewrite the current metadata file as somebody with access to the bucket might."""
    path = Path(table.refresh().metadata_location.removeprefix("file://"))
    named = {name.replace("_", "."): value for name, value in properties.items()}
    edit_metadata(path, lambda metadata: metadata["properties"].update(named))
    return opened_again(table)


@pytest.mark.parametrize("name", ["write_data_path", "write_metadata_path"])
@pytest.mark.parametrize(
    "root",
    ["{victim}", "file://{victim}", "{warehouse}/t/rows/../../../elsewhere/data", "/", "file:///",
     "{warehouse}/t/rows/data/%2e%2e/%2e%2e/%2e%2e/%2e%2e/elsewhere/data"],
)  # fmt: skip
def test_r77_clean_up_root_outside_the_table_never_deletes_there(table, victim, name, root):
    warehouse = folder_of(table).parents[1]
    place = root.format(victim=victim.parent, warehouse=warehouse)
    with pytest.raises(InvalidInputError):
        table.set_properties({name.replace("_", "."): place})
    poisoned = poison(table, **{name: place})
    with pytest.raises(InvalidInputError):
        remove_orphans(poisoned, OLD)
    assert victim.read_bytes() == b"precious"
    assert raw_rows(table) == Counter(BASE)


def test_r77_clean_up_root_of_another_table_never_deletes_its_files(catalog, table):
    """Inside the warehouse, so that no allow-list helps."""
    other = catalog.create_table("t.other", SCHEMA, primary_key=["id"])
    other.append(rows_of(*BASE))
    for place in (f"{other.state.metadata.location}/data", other.state.metadata.location):
        for name in ("write.data.path", "write.metadata.path"):
            given = table.set_properties({name: place})
            make_old(folder_of(table).parent)
            with pytest.raises(InvalidInputError, match=r"t\.other"):
                remove_orphans(given, OLD)
            table.set_properties(remove=[name])
    assert_holds(other, Counter(BASE))
    assert_holds(table, Counter(BASE))


@pytest.mark.parametrize("through", ["symbolic link", "name with dots", "plain path"])
def test_r77_file_that_metadata_names_outside_the_table_is_never_deleted(table, victim, through):
    """A data file entry that points elsewhere is removed from the table, and expires."""
    data = folder_of(table) / "data"
    data.joinpath("link").symlink_to(victim.parent)
    place = {
        "symbolic link": f"file://{data}/link/precious.parquet",
        "name with dots": f"file://{data}/../../../../elsewhere/data/precious.parquet",
        "plain path": f"file://{victim}",
    }[through]
    file = DataFile(
        content=FileContent.DATA,
        file_path=place,
        file_format="PARQUET",
        spec_id=0,
        partition=(),
        record_count=1,
        file_size_in_bytes=8,
    )
    change = Changeset(kind=CommitKind.APPEND, added_data_files=(file,))
    commit(table.environment, table.identifier, change)
    entries = [task.entry for task in table.scan().plan.tasks]
    [entry] = [each for each in entries if each.data_file.file_path == place]
    change = Changeset(kind=CommitKind.DELETE, removed_entries=(entry,))
    commit(table.environment, table.identifier, change)
    policy = ExpiryPolicy(max_snapshot_age_ms=0, min_snapshots_to_keep=1)
    assert len(expire(table, ExpireOptions(policy=policy)).snapshots) == 2
    make_old(folder_of(table))
    remove_orphans(table, OLD)
    assert victim.read_bytes() == b"precious"
    assert_holds(table, Counter(BASE))
