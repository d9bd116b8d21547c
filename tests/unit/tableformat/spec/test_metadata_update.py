from __future__ import annotations

import json
from typing import Any
from uuid import UUID

import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata, TableMetadataV3
from pyiceberg.table.sorting import SortField, SortOrder
from pyiceberg.table.statistics import PartitionStatisticsFile, StatisticsFile
from pyiceberg.table.update import (
    AddPartitionSpecUpdate,
    AddSchemaUpdate,
    AddSnapshotUpdate,
    AddSortOrderUpdate,
    AssignUUIDUpdate,
    RemovePartitionSpecsUpdate,
    RemovePartitionStatisticsUpdate,
    RemovePropertiesUpdate,
    RemoveSchemasUpdate,
    RemoveSnapshotRefUpdate,
    RemoveSnapshotsUpdate,
    RemoveStatisticsUpdate,
    SetCurrentSchemaUpdate,
    SetDefaultSortOrderUpdate,
    SetDefaultSpecUpdate,
    SetLocationUpdate,
    SetPartitionStatisticsUpdate,
    SetPropertiesUpdate,
    SetStatisticsUpdate,
    UpgradeFormatVersionUpdate,
)
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import IntegerType, LongType, NestedField, StringType, TimestampNanoType

from tableformat.errors import (
    AlreadyExistsError,
    CommitConflictError,
    InvalidInputError,
    NotFoundError,
    TableError,
    UnsupportedError,
)
from tableformat.spec.metadata_json import decode_metadata, encode_metadata
from tableformat.spec.metadata_update import apply_updates
from tests.support.table_metadata import (
    append_updates,
    metadata_of,
    next_snapshot,
    raw_metadata,
    set_ref,
)

BASE = "memory://warehouse/t/metadata/00002-x.metadata.json"
NOW = 1_700_000_100_000


def apply(metadata: TableMetadata, *updates: Any, now_ms: int = NOW) -> Any:
    """Apply, and hold the result against the decoder's rules."""
    result = apply_updates(metadata, updates, base_location=BASE, now_ms=now_ms)
    reread = decode_metadata(encode_metadata(result), location="again")
    assert reread == result
    return result


# -- appending


def test_append_moves_main_and_takes_the_next_numbers() -> None:
    base = metadata_of(2)
    after = apply(base, *append_updates(base))
    added = after.snapshots[-1]
    assert after.current_snapshot_id == added.snapshot_id == after.refs["main"].snapshot_id
    assert (after.last_sequence_number, after.next_row_id) == (3, 30)
    assert after.last_updated_ms == added.timestamp_ms
    assert after.snapshot_log[-1].snapshot_id == added.snapshot_id
    assert after.snapshot_log[-1].timestamp_ms == added.timestamp_ms
    assert after.metadata_log[-1].metadata_file == BASE
    assert after.metadata_log[-1].timestamp_ms == base.last_updated_ms


def test_base_is_not_changed_and_its_parts_are_shared() -> None:
    base = metadata_of(2)
    before = encode_metadata(base)
    after = apply(base, *append_updates(base))
    assert encode_metadata(base) == before
    assert all(a is b for a, b in zip(base.snapshots, after.snapshots, strict=False))
    assert after.schemas is base.schemas


def test_append_to_a_branch_leaves_main_and_its_log() -> None:
    base = metadata_of(2)
    after = apply(base, *append_updates(base, "staging"))
    assert after.current_snapshot_id == 2
    assert after.snapshot_log == base.snapshot_log
    assert after.refs["staging"].snapshot_id == after.snapshots[-1].snapshot_id
    assert after.last_sequence_number == 3


def test_first_append_to_an_empty_table() -> None:
    base = metadata_of(0)
    after = apply(base, *append_updates(base))
    assert after.next_row_id == 10
    assert after.last_sequence_number == 1


@pytest.mark.parametrize("number", [1, 2])
def test_taken_sequence_number_is_a_conflict_on_any_branch(number: int) -> None:
    base = metadata_of(2)
    for branch in ("main", "staging"):
        with pytest.raises(CommitConflictError, match="sequence number"):
            apply(base, *append_updates(base, branch, sequence_number=number))


def test_two_snapshots_in_one_commit_need_two_numbers() -> None:
    base = metadata_of(2)
    first = next_snapshot(base)
    second = next_snapshot(base, "staging", first_row_id=30, sequence_number=4)
    same = next_snapshot(base, "staging", first_row_id=30)
    updates = [AddSnapshotUpdate(snapshot=first), set_ref(first.snapshot_id)]
    after = apply(
        base, *updates, AddSnapshotUpdate(snapshot=second), set_ref(second.snapshot_id, "staging")
    )
    assert (after.last_sequence_number, after.next_row_id) == (4, 40)
    with pytest.raises(CommitConflictError):
        apply(base, *updates, AddSnapshotUpdate(snapshot=same))


def test_taken_row_ids_are_a_conflict() -> None:
    base = metadata_of(2)
    with pytest.raises(CommitConflictError, match="row ids"):
        apply(base, *append_updates(base, first_row_id=19))


def test_row_ids_after_a_gap_are_never_given_out_twice() -> None:
    base = metadata_of(2)
    assert apply(base, *append_updates(base, first_row_id=50)).next_row_id == 60


@pytest.mark.parametrize("missing", [{"first_row_id": None}, {"added_rows": None}])
def test_v3_snapshot_without_row_lineage_is_refused(missing: dict[str, Any]) -> None:
    base = metadata_of(2)
    with pytest.raises(InvalidInputError, match="first-row-id"):
        apply(base, *append_updates(base, **missing))


def test_snapshot_without_rows_keeps_next_row_id() -> None:
    base = metadata_of(2)
    assert apply(base, *append_updates(base, added_rows=0)).next_row_id == 20


def test_snapshot_id_in_use_may_be_ours_and_is_not_safe_to_clean() -> None:
    base = metadata_of(2)
    updates = append_updates(base)
    after = apply(base, *updates)
    with pytest.raises(AlreadyExistsError) as caught:
        apply(after, *updates)
    assert not caught.value.files_safe_to_delete


# -- time


def test_last_updated_never_goes_back() -> None:
    base = metadata_of(2)
    late = apply(base, *append_updates(base, timestamp_ms=base.last_updated_ms - 3_600_000))
    assert late.last_updated_ms == base.last_updated_ms
    assert late.snapshot_log[-1].timestamp_ms == base.last_updated_ms
    properties = SetPropertiesUpdate(updates={"a": "b"})
    assert apply(base, properties, now_ms=5).last_updated_ms == base.last_updated_ms
    assert apply(base, properties).last_updated_ms == NOW


# -- metadata log


def test_metadata_log_keeps_the_newest_entries() -> None:
    metadata = metadata_of(1, properties={"write.metadata.previous-versions-max": "3"})
    for number in range(6):
        update = SetPropertiesUpdate(updates={"n": str(number)})
        metadata = apply_updates(metadata, [update], base_location=f"m://x/{number}", now_ms=NOW)
    assert [entry.metadata_file for entry in metadata.metadata_log] == [
        "m://x/3",
        "m://x/4",
        "m://x/5",
    ]


@pytest.mark.parametrize(("value", "kept"), [("0", 1), ("-5", 1), ("2", 2)])
def test_metadata_log_limit_is_at_least_one(value: str, kept: int) -> None:
    log = [{"metadata-file": f"m://x/{n}", "timestamp-ms": 1} for n in range(4)]
    base = metadata_of(1, **{"metadata-log": log})
    after = apply(
        base, SetPropertiesUpdate(updates={"write.metadata.previous-versions-max": value})
    )
    assert len(after.metadata_log) == kept


def test_metadata_log_limit_that_is_no_number_is_refused() -> None:
    update = SetPropertiesUpdate(updates={"write.metadata.previous-versions-max": "many"})
    with pytest.raises(InvalidInputError, match="previous-versions-max"):
        apply(metadata_of(1), update)


def test_new_table_has_no_metadata_log() -> None:
    update = SetPropertiesUpdate(updates={"a": "b"})
    after = apply_updates(metadata_of(0), [update], base_location=None, now_ms=NOW)
    assert after.metadata_log == []


# -- refs


def test_rollback_of_main_is_logged_and_keeps_numbers() -> None:
    after = apply(metadata_of(3), set_ref(1))
    assert after.current_snapshot_id == 1
    assert [entry.snapshot_id for entry in after.snapshot_log] == [1, 2, 3, 1]
    assert after.last_sequence_number == 3


def test_snapshot_that_main_is_moved_to_is_logged_after_its_own_time() -> None:
    """Even where the writer's clock was ahead: the time tells what was committed to main."""
    base = metadata_of(2)
    base = apply(base, *append_updates(base, "staging", timestamp_ms=NOW + 5_000))
    staged = base.snapshots[-1]
    after = apply(base, set_ref(staged.snapshot_id))
    assert after.snapshot_log[-1].snapshot_id == staged.snapshot_id
    assert after.snapshot_log[-1].timestamp_ms > staged.timestamp_ms
    assert after.last_updated_ms == after.snapshot_log[-1].timestamp_ms


def test_only_the_last_head_of_a_commit_is_logged() -> None:
    base = metadata_of(2)
    first = next_snapshot(base)
    second = next_snapshot(
        base, parent_snapshot_id=first.snapshot_id, sequence_number=4, first_row_id=30
    )
    after = apply(
        base,
        AddSnapshotUpdate(snapshot=first),
        set_ref(first.snapshot_id),
        AddSnapshotUpdate(snapshot=second),
        set_ref(second.snapshot_id),
    )
    assert [entry.snapshot_id for entry in after.snapshot_log] == [1, 2, second.snapshot_id]


def test_ref_that_stays_changes_nothing() -> None:
    base = metadata_of(2)
    assert apply_updates(base, [set_ref(2)], base_location=BASE, now_ms=NOW) is base


def test_branch_and_tag_are_set_and_dropped() -> None:
    base = apply(metadata_of(2), set_ref(1, "v1", "tag"), set_ref(2, "staging"))
    assert base.refs["v1"].snapshot_ref_type == "tag"
    after = apply(base, RemoveSnapshotRefUpdate(ref_name="v1"))
    assert sorted(after.refs) == ["main", "staging"]
    same = apply_updates(
        after, [RemoveSnapshotRefUpdate(ref_name="v1")], base_location=BASE, now_ms=NOW
    )
    assert same is after


def test_ref_to_unknown_snapshot_is_refused() -> None:
    with pytest.raises(NotFoundError, match="snapshot"):
        apply(metadata_of(2), set_ref(9, "x"))


def test_main_as_a_tag_is_refused() -> None:
    with pytest.raises(InvalidInputError):
        apply(metadata_of(2), set_ref(1, "main", "tag"))


def test_dropped_main_leaves_no_current_snapshot_and_no_log() -> None:
    after = apply(metadata_of(2), RemoveSnapshotRefUpdate(ref_name="main"))
    assert after.current_snapshot_id is None
    assert after.snapshot_log == []
    assert len(after.snapshots) == 2


# -- expiry


def test_expiry_cuts_the_log_after_the_last_expired_entry() -> None:
    after = apply(metadata_of(5), RemoveSnapshotsUpdate(snapshot_ids=[1, 3]))
    assert [one.snapshot_id for one in after.snapshots] == [2, 4, 5]
    assert [entry.snapshot_id for entry in after.snapshot_log] == [4, 5]
    assert after.snapshot_by_id(4).parent_snapshot_id == 3


def test_expiry_takes_refs_and_statistics_along() -> None:
    statistics = {
        "snapshot-id": 1,
        "statistics-path": "m://s",
        "file-size-in-bytes": 1,
        "file-footer-size-in-bytes": 1,
        "blob-metadata": [],
    }
    partition = {"snapshot-id": 1, "statistics-path": "m://p", "file-size-in-bytes": 1}
    base = metadata_of(3, **{"statistics": [statistics], "partition-statistics": [partition]})
    base = apply(base, set_ref(1, "old"), set_ref(2, "kept", "tag"))
    after = apply(base, RemoveSnapshotsUpdate(snapshot_ids=[1]))
    assert sorted(after.refs) == ["kept", "main"]
    assert after.statistics == []
    assert after.partition_statistics == []


def test_expiry_of_mains_head_leaves_no_current_snapshot() -> None:
    after = apply(metadata_of(2), RemoveSnapshotsUpdate(snapshot_ids=[2]))
    assert after.current_snapshot_id is None
    assert after.refs == {}


def test_expiry_of_unknown_snapshot_is_refused() -> None:
    with pytest.raises(NotFoundError):
        apply(metadata_of(2), RemoveSnapshotsUpdate(snapshot_ids=[1, 9]))


def test_expired_snapshot_cannot_be_referenced_in_the_same_commit() -> None:
    with pytest.raises(NotFoundError):
        apply(metadata_of(2), RemoveSnapshotsUpdate(snapshot_ids=[1]), set_ref(1, "x"))


# -- properties, location, uuid, statistics


def test_properties_are_merged_and_removed() -> None:
    base = metadata_of(1, properties={"a": "1", "b": "2"})
    after = apply(
        base,
        SetPropertiesUpdate(updates={"b": "3", "c": "4"}),
        RemovePropertiesUpdate(removals=["a", "missing"]),
    )
    assert after.properties == {"b": "3", "c": "4"}
    assert base.properties == {"a": "1", "b": "2"}


def test_updates_that_change_nothing_give_the_base_itself() -> None:
    base = metadata_of(1, properties={"a": "1"})
    updates = [
        SetPropertiesUpdate(updates={"a": "1"}),
        RemovePropertiesUpdate(removals=["b"]),
        SetLocationUpdate(location=base.location + "/"),
        AssignUUIDUpdate(uuid=base.table_uuid),
        SetCurrentSchemaUpdate(schema_id=0),
        UpgradeFormatVersionUpdate(format_version=3),
    ]
    assert apply_updates(base, updates, base_location=BASE, now_ms=NOW) is base


def test_location_moves() -> None:
    after = apply(metadata_of(1), SetLocationUpdate(location="memory://warehouse/u/"))
    assert after.location == "memory://warehouse/u"


def test_uuid_of_a_table_with_history_is_fixed() -> None:
    other = UUID(int=5)
    assert apply(metadata_of(0), AssignUUIDUpdate(uuid=other)).table_uuid == other
    with pytest.raises(InvalidInputError, match="uuid"):
        apply(metadata_of(1), AssignUUIDUpdate(uuid=other))


def test_statistics_are_replaced_per_snapshot() -> None:
    def statistics(path: str) -> StatisticsFile:
        return StatisticsFile(
            snapshot_id=1,
            statistics_path=path,
            file_size_in_bytes=1,
            file_footer_size_in_bytes=1,
            blob_metadata=[],
        )

    partition = PartitionStatisticsFile(
        snapshot_id=1, statistics_path="m://p", file_size_in_bytes=1
    )
    after = apply(
        metadata_of(1),
        SetStatisticsUpdate(statistics=statistics("m://a")),
        SetStatisticsUpdate(statistics=statistics("m://b")),
        SetPartitionStatisticsUpdate(partition_statistics=partition),
    )
    assert [one.statistics_path for one in after.statistics] == ["m://b"]
    gone = apply(
        after,
        RemoveStatisticsUpdate(snapshot_id=1),
        RemovePartitionStatisticsUpdate(snapshot_id=1),
    )
    assert gone.statistics == gone.partition_statistics == []


# -- schema, spec, order, version


def wider_schema(schema_id: int = 1, field_id: int = 2) -> Schema:
    return Schema(
        NestedField(1, "id", LongType(), required=True),
        NestedField(field_id, "n", IntegerType(), required=False),
        schema_id=schema_id,
    )


def test_schema_is_added_and_made_current() -> None:
    after = apply(
        metadata_of(1),
        AddSchemaUpdate(schema=wider_schema()),
        SetCurrentSchemaUpdate(schema_id=-1),
    )
    assert after.schema() == wider_schema()
    assert (after.current_schema_id, after.last_column_id) == (1, 2)
    back = apply(after, SetCurrentSchemaUpdate(schema_id=0), RemoveSchemasUpdate(schema_ids=[1]))
    assert [one.schema_id for one in back.schemas] == [0]
    assert back.last_column_id == 2


def test_schema_id_taken_by_another_evolution_is_a_conflict() -> None:
    base = apply(metadata_of(1), AddSchemaUpdate(schema=wider_schema()))
    other = Schema(NestedField(1, "id", LongType(), required=False), schema_id=1)
    with pytest.raises(CommitConflictError):
        apply(base, AddSchemaUpdate(schema=other))
    same = apply(base, AddSchemaUpdate(schema=wider_schema()), SetCurrentSchemaUpdate(schema_id=-1))
    assert len(same.schemas) == 2


@pytest.mark.parametrize(
    ("update", "error"),
    [
        (SetCurrentSchemaUpdate(schema_id=-1), InvalidInputError),
        (SetCurrentSchemaUpdate(schema_id=7), NotFoundError),
        (RemoveSchemasUpdate(schema_ids=[0]), InvalidInputError),
        (RemoveSchemasUpdate(schema_ids=[7]), NotFoundError),
        (SetDefaultSpecUpdate(spec_id=-1), InvalidInputError),
        (SetDefaultSpecUpdate(spec_id=7), NotFoundError),
        (RemovePartitionSpecsUpdate(spec_ids=[0]), InvalidInputError),
        (RemovePartitionSpecsUpdate(spec_ids=[7]), NotFoundError),
        (SetDefaultSortOrderUpdate(sort_order_id=-1), InvalidInputError),
        (SetDefaultSortOrderUpdate(sort_order_id=7), NotFoundError),
        (SetLocationUpdate(location="/"), InvalidInputError),
        (AddSchemaUpdate(schema=wider_schema(field_id=2147483540)), InvalidInputError),
        (SetPropertiesUpdate(updates={"format-version": "2"}), InvalidInputError),
        (UpgradeFormatVersionUpdate(format_version=2), InvalidInputError),
        (UpgradeFormatVersionUpdate(format_version=4), UnsupportedError),
        ("not an update", InvalidInputError),
    ],
)
def test_wrong_update_is_refused(update: Any, error: type[TableError]) -> None:
    with pytest.raises(error):
        apply(metadata_of(1), update)


def test_partition_spec_is_added_and_made_default() -> None:
    spec = PartitionSpec(
        PartitionField(source_id=1, field_id=1000, transform=BucketTransform(4), name="b"),
        spec_id=1,
    )
    after = apply(
        metadata_of(1), AddPartitionSpecUpdate(spec=spec), SetDefaultSpecUpdate(spec_id=-1)
    )
    assert after.spec() == spec
    assert after.last_partition_id == 1000
    back = apply(after, SetDefaultSpecUpdate(spec_id=0), RemovePartitionSpecsUpdate(spec_ids=[1]))
    assert len(back.partition_specs) == 1
    assert back.last_partition_id == 1000


def test_partition_spec_that_does_not_fit_the_schema_is_refused() -> None:
    spec = PartitionSpec(
        PartitionField(source_id=9, field_id=1000, transform=IdentityTransform(), name="b"),
        spec_id=1,
    )
    with pytest.raises(InvalidInputError, match="disagree"):
        apply(metadata_of(1), AddPartitionSpecUpdate(spec=spec), SetDefaultSpecUpdate(spec_id=1))


def test_sort_order_is_added_and_made_default() -> None:
    order = SortOrder(SortField(source_id=1, transform=IdentityTransform()), order_id=1)
    after = apply(
        metadata_of(1),
        AddSortOrderUpdate(sort_order=order),
        SetDefaultSortOrderUpdate(sort_order_id=-1),
    )
    assert after.sort_order() == order


@pytest.mark.parametrize("version", [1, 2])
def test_older_table_is_upgraded_to_v3_with_its_history(version: int) -> None:
    raw = raw_metadata(2, **{"format-version": version, "next-row-id": None, "future": {"kept": 1}})
    for snapshot in raw["snapshots"]:
        del snapshot["first-row-id"], snapshot["added-rows"]
        if version == 1:
            del snapshot["sequence-number"]
    if version == 1:
        raw |= {"schema": raw["schemas"][0], "partition-spec": [], "last-sequence-number": None}
    raw = {key: value for key, value in raw.items() if value is not None}
    base = decode_metadata(json.dumps(raw).encode(), location="x")
    after = apply(base, UpgradeFormatVersionUpdate(format_version=3))
    assert isinstance(after, TableMetadataV3)
    assert after.next_row_id == 0
    written = json.loads(encode_metadata(after))
    assert written["future"] == {"kept": 1}
    assert "schema" not in written
    assert [one["snapshot-id"] for one in written["snapshots"]] == [1, 2]
    grown = apply(after, *append_updates(after))
    assert grown.next_row_id == 10


def test_type_of_v3_is_refused_on_a_v2_table() -> None:
    raw = raw_metadata(0, **{"format-version": 2, "next-row-id": None})
    base = decode_metadata(json.dumps(raw).encode(), location="x")
    schema = Schema(NestedField(1, "t", TimestampNanoType(), required=False), schema_id=1)
    with pytest.raises(InvalidInputError):
        apply(base, AddSchemaUpdate(schema=schema), SetCurrentSchemaUpdate(schema_id=1))
    upgraded = apply(
        base,
        UpgradeFormatVersionUpdate(format_version=3),
        AddSchemaUpdate(schema=schema),
        SetCurrentSchemaUpdate(schema_id=1),
    )
    assert upgraded.schema() == schema


def test_models_of_pyiceberg_itself_are_updated_too() -> None:
    base = TableMetadataV3.model_validate(raw_metadata(0, **{"next-row-id": None}))
    assert base.next_row_id is None
    after = apply_updates(
        base, [SetPropertiesUpdate(updates={"a": "b"})], base_location=BASE, now_ms=NOW
    )
    assert json.loads(encode_metadata(after))["next-row-id"] == 0
    snapshot = next_snapshot(metadata_of(0))
    after = apply_updates(
        base, [AddSnapshotUpdate(snapshot=snapshot)], base_location=BASE, now_ms=NOW
    )
    assert after.next_row_id == 10


def test_string_columns_survive_an_evolution_untouched() -> None:
    raw = raw_metadata(1)
    raw["schemas"][0]["fields"][0]["future"] = "kept"
    base = decode_metadata(json.dumps(raw).encode(), location="x")
    other = Schema(
        NestedField(1, "id", LongType(), required=True),
        NestedField(2, "s", StringType(), required=False),
        schema_id=1,
    )
    after = apply(base, AddSchemaUpdate(schema=other), SetCurrentSchemaUpdate(schema_id=1))
    assert json.loads(encode_metadata(after))["schemas"][0] == raw["schemas"][0]
