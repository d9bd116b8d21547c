from dataclasses import replace

import pytest

from tableformat.codec.avro.manifest_store import load_manifest_list
from tableformat.commit.changeset import Changeset, CommitKind, Validation
from tableformat.commit.merging import (
    DELETE_ENTRIES_MIN,
    MergePolicy,
    entry_count,
    merge_policy,
    plan_merges,
)
from tableformat.errors import InvalidInputError
from tableformat.spec.manifest_file import ManifestContent, ManifestFile
from tests.support.commit_tables import CommitTable
from tests.support.table_checker import check_table

POLICY = MergePolicy(min_count_to_merge=10, target_size_bytes=1000)


def manifest(name, *, entries=1, size=10, spec=0, content=ManifestContent.DATA):
    return ManifestFile(
        manifest_path=name,
        manifest_length=size,
        partition_spec_id=spec,
        content=content,
        sequence_number=1,
        min_sequence_number=1,
        added_snapshot_id=1,
        added_files_count=entries,
        existing_files_count=0,
        deleted_files_count=0,
        added_rows_count=0,
        existing_rows_count=0,
        deleted_rows_count=0,
    )


def names(groups):
    return [{each.manifest_path for each in group} for group in groups]


def test_few_manifests_are_left_alone():
    assert plan_merges([manifest(f"m{n}") for n in range(9)], POLICY) == []


def test_enough_small_manifests_become_one():
    [group] = plan_merges([manifest(f"m{n}") for n in range(10)], POLICY)
    assert len(group) == 10


def test_merging_can_be_switched_off():
    policy = replace(POLICY, enabled=False)
    assert plan_merges([manifest(f"m{n}") for n in range(50)], policy) == []


def test_specs_and_contents_are_kept_apart():
    manifests = [manifest(f"a{n}", spec=n % 2) for n in range(18)]
    manifests += [manifest(f"d{n}", content=ManifestContent.DELETES) for n in range(9)]
    assert plan_merges(manifests, POLICY) == []
    groups = plan_merges([*manifests, manifest("a18", spec=0)], POLICY)
    assert names(groups) == [{f"a{n}" for n in range(0, 19, 2)}]


def test_a_large_manifest_is_not_rewritten_for_a_few_small_ones():
    manifests = [manifest(f"m{n}") for n in range(10)]
    [group] = plan_merges([*manifests, manifest("large", entries=21)], POLICY)
    assert "large" not in {each.manifest_path for each in group}
    [group] = plan_merges([*manifests, manifest("medium", entries=20)], POLICY)
    assert "medium" in {each.manifest_path for each in group}


def test_a_full_manifest_is_never_merged_again():
    manifests = [manifest(f"m{n}", size=501) for n in range(50)]
    assert plan_merges(manifests, POLICY) == []


def test_no_group_exceeds_the_target_size():
    manifests = [manifest(f"m{n}", size=300) for n in range(20)]
    groups = plan_merges(manifests, POLICY)
    assert [len(group) for group in groups] == [3] * 6 + [2]
    assert all(sum(each.manifest_length for each in group) <= 1000 for group in groups)


def test_delete_manifests_are_full_near_the_square_root_of_the_live_deletes():
    policy = replace(POLICY, target_size_bytes=1 << 30)
    for count, full in ((1000, DELETE_ENTRIES_MIN), (40_000, 200)):
        manifests = [
            manifest(f"m{n}", entries=10, content=ManifestContent.DELETES)
            for n in range(count // 10)
        ]
        merged = [sum(map(entry_count, group)) for group in plan_merges(manifests, policy)]
        assert max(merged) <= full
        assert sorted(merged)[1] > full // 2


@pytest.mark.slow
@pytest.mark.parametrize("content", list(ManifestContent))
def test_manifest_count_and_rewriting_stay_bounded_over_many_commits(content):
    policy = MergePolicy(min_count_to_merge=20, target_size_bytes=1 << 40)
    manifests, rewritten, most = [], 0, 0
    for number in range(20_000):
        manifests.insert(0, manifest(f"m{number}", content=content))
        for group in plan_merges(manifests, policy):
            gone = {each.manifest_path for each in group}
            manifests = [each for each in manifests if each.manifest_path not in gone]
            entries = sum(map(entry_count, group))
            rewritten += entries
            manifests.insert(
                0, manifest(f"g{number}-{rewritten}", entries=entries, content=content)
            )
        if content == ManifestContent.DATA:
            most = max(most, len(manifests))
    assert rewritten <= 20_000 * 20  # log(20,000 / 20) to base 1.5 is 17
    if content == ManifestContent.DATA:
        assert most <= 20 + 10
    else:
        assert len(manifests) <= 20 + 2 * 20_000 // DELETE_ENTRIES_MIN


def test_merged_table_keeps_every_file_and_its_numbers():
    table = CommitTable(properties={"commit.manifest.min-count-to-merge": "4"})
    before = {}
    for number in range(30):
        table.append(table.data(f"f{number}", rows=number + 1))
        for name, entry in table.live().items():
            seen = (
                entry.sequence_number,
                entry.file_sequence_number,
                entry.snapshot_id,
                entry.data_file.first_row_id,
            )
            assert before.setdefault(name, seen) == seen
    assert len(table.live()) == 30
    checked = check_table(table.store.get, table.state.metadata_location)
    assert len(checked[table.head()].manifests) <= 8


def test_entries_of_the_commit_keep_their_status_when_merged_at_once():
    table = CommitTable(properties={"commit.manifest.min-count-to-merge": "2"})
    x, y = table.data("x"), table.data("y")
    start = table.append(x).snapshot
    second = table.append(y).snapshot
    statuses = {table.short_name(e.data_file): e.status.name for e in table.entries()}
    assert statuses == {"x": "EXISTING", "y": "ADDED"}
    # What a manifest that was merged away at once would have cost: nothing was written for it.
    assert len(table.objects(f"{second.snapshot_id}")) == 0
    assert len([each for each in table.objects(".avro") if "-m" in each]) == 2
    assert start.snapshot_id != second.snapshot_id
    check_table(table.store.get, table.state.metadata_location)


def test_only_deletes_of_this_commit_survive_a_merge():
    table = CommitTable(properties={"commit.manifest.min-count-to-merge": "3"})
    x, y, z = table.data("x"), table.data("y"), table.data("z")
    table.append(x, y)
    table.append(z)

    def statuses():
        assert len(load_manifest_list(table.store, table.state.head("main"))) == 1
        return {table.short_name(e.data_file): e.status.name for e in table.entries()}

    change = Changeset(
        kind=CommitKind.OVERWRITE,
        removed_entries=(table.entry(x),),
        added_data_files=(table.data("x2"),),
        validation=Validation(starting_snapshot_id=table.head()),
    )
    table.commit(change)  # a new, a rewritten and an old manifest
    assert statuses() == {"x": "DELETED", "x2": "ADDED", "y": "EXISTING", "z": "EXISTING"}
    table.append(table.data("v"))
    table.append(table.data("w"))
    assert statuses() == {
        "w": "ADDED", "v": "EXISTING", "x2": "EXISTING", "y": "EXISTING", "z": "EXISTING"
    }  # fmt: skip
    check_table(table.store.get, table.state.metadata_location)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("commit.manifest.min-count-to-merge", "many"),
        ("commit.manifest.target-size-bytes", "-1"),
        ("commit.manifest-merge.enabled", "perhaps"),
    ],
)
def test_malformed_property_is_refused_by_name(name, value):
    with pytest.raises(InvalidInputError, match=name):
        merge_policy({name: value})
