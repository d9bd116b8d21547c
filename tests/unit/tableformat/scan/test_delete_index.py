from __future__ import annotations

import pytest
from pyiceberg.conversions import to_bytes
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.transforms import IdentityTransform, VoidTransform
from pyiceberg.types import LongType, NestedField

from tableformat.errors import CorruptDataError
from tableformat.scan.delete_index import DeleteIndex, FileDeletes
from tableformat.spec.data_file import DataFile, EntryStatus, FileContent, ManifestEntry
from tableformat.spec.names import DELETE_FILE_PATH_FIELD_ID

SPECS = {
    0: PartitionSpec(spec_id=0),
    1: PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "p"), spec_id=1),
    2: PartitionSpec(PartitionField(2, 1000, VoidTransform(), "p"), spec_id=2),
}
KEYS = {1: NestedField(1, "id", LongType(), required=False)}


def entry(path: str, sequence: int, content=FileContent.DATA, **fields) -> ManifestEntry:
    file = DataFile(
        **{
            "content": content,
            "file_path": path,
            "file_format": "PARQUET",
            "spec_id": 0,
            "partition": (),
            "record_count": 10,
            "file_size_in_bytes": 1,
            **fields,
        }
    )
    return ManifestEntry(
        status=EntryStatus.EXISTING,
        snapshot_id=1,
        sequence_number=sequence,
        file_sequence_number=sequence,
        data_file=file,
    )


def dv(path: str, sequence: int, of: str, **fields) -> ManifestEntry:
    defaults = {"file_format": "puffin", "content_offset": 4, "content_size_in_bytes": 40}
    return entry(
        path,
        sequence,
        FileContent.POSITION_DELETES,
        **{**defaults, "referenced_data_file": of, **fields},
    )


def positions(path: str, sequence: int, **fields) -> ManifestEntry:
    return entry(path, sequence, FileContent.POSITION_DELETES, **fields)


def keys(path: str, sequence: int, **fields) -> ManifestEntry:
    return entry(path, sequence, FileContent.EQUALITY_DELETES, **{"equality_ids": (1,), **fields})


def found(data: ManifestEntry, *deletes: ManifestEntry) -> tuple[str | None, str, str]:
    """The DV's path, and the first letters of the others that reach the file."""
    result = DeleteIndex(deletes, specs=SPECS, key_fields=KEYS).for_data_file(data)
    return (
        result.dv and result.dv.data_file.file_path,
        "".join(each.data_file.file_path for each in result.position_deletes),
        "".join(each.data_file.file_path for each in result.equality_deletes),
    )


def bounds(low: int, high: int, nulls: int = 0, values: int = 10) -> dict:
    return {
        "lower_bounds": {1: to_bytes(LongType(), low)},
        "upper_bounds": {1: to_bytes(LongType(), high)},
        "null_value_counts": {1: nulls},
        "value_counts": {1: values},
    }


def test_no_delete_reaches_a_file_of_a_table_without_deletes() -> None:
    index = DeleteIndex([], specs=SPECS, key_fields=KEYS)
    assert index.is_empty
    assert index.for_data_file(entry("f", 1)) == FileDeletes()


@pytest.mark.parametrize(("sequence", "reached"), [(4, ""), (5, ""), (6, "e")])
def test_equality_delete_reaches_strictly_older_files(sequence: int, reached: str) -> None:
    assert found(entry("f", 5), keys("e", sequence))[2] == reached


@pytest.mark.parametrize(("sequence", "reached"), [(4, ""), (5, "p"), (6, "p")])
def test_position_delete_reaches_files_of_its_own_commit(sequence: int, reached: str) -> None:
    assert found(entry("f", 5), positions("p", sequence))[1] == reached


def test_partitioned_delete_reaches_its_spec_and_partition_only() -> None:
    data = entry("f", 1, spec_id=1, partition=("a",))
    here, there = {"spec_id": 1, "partition": ("a",)}, {"spec_id": 1, "partition": ("b",)}
    assert found(data, keys("e", 2, **here), keys("x", 2, **there))[2] == "e"
    assert found(data, positions("p", 2, **here), positions("x", 2, **there))[1] == "p"


def test_unpartitioned_equality_delete_is_global_and_position_delete_is_not() -> None:
    data = entry("f", 1, spec_id=1, partition=("a",))
    assert found(data, keys("e", 2))[2] == "e"
    assert found(data, positions("p", 2))[1] == ""
    assert found(entry("f", 1), keys("x", 2, spec_id=1, partition=("a",)))[2] == ""


def test_equality_delete_of_void_partition_fields_is_global() -> None:
    delete = keys("e", 2, spec_id=2, partition=(None,))
    assert found(entry("f", 1, spec_id=1, partition=("a",)), delete)[2] == "e"
    assert found(entry("f", 1), delete)[2] == "e"


def test_float_partitions_are_compared_by_bits_with_one_nan() -> None:
    nan, other = float("nan"), -float("nan")
    data = entry("f", 1, spec_id=1, partition=(nan,))
    assert found(data, keys("e", 2, spec_id=1, partition=(other,)))[2] == "e"
    zero = entry("f", 1, spec_id=1, partition=(0.0,))
    assert found(zero, keys("e", 2, spec_id=1, partition=(-0.0,)))[2] == ""


def test_dv_makes_position_deletes_void_but_not_equality_deletes() -> None:
    deletes = [
        dv("d", 3, "f"),
        positions("p", 4),
        positions("q", 4, referenced_data_file="f"),
        keys("e", 4),
    ]
    assert found(entry("f", 1), *deletes) == ("d", "", "e")
    assert found(entry("g", 1), *deletes) == (None, "p", "e")


def test_dvs_of_one_puffin_file_belong_to_their_own_data_files() -> None:
    deletes = [dv("d", 2, "f"), dv("d", 2, "g", content_offset=44)]
    index = DeleteIndex(deletes, specs=SPECS, key_fields=KEYS)
    assert index.for_data_file(entry("f", 1)).dv is deletes[0]
    assert index.for_data_file(entry("g", 1)).dv is deletes[1]


def test_two_dvs_for_one_file_are_refused_in_the_reference_readers_words() -> None:
    text = r"Can't index multiple DVs for f: d\[4:\+40\] and d\[44:\+40\]"
    with pytest.raises(CorruptDataError, match=text):
        DeleteIndex(
            [dv("d", 2, "f"), dv("d", 2, "f", content_offset=44)], specs=SPECS, key_fields=KEYS
        )


@pytest.mark.parametrize(
    ("data", "vector", "text"),
    [
        (
            entry("f", 3),
            dv("d", 2, "f"),
            r"DV data sequence number \(2\) must be greater than or equal to .* number \(3\)",
        ),
        (
            entry("f", 1),
            dv("d", 2, "f", spec_id=1, partition=("a",)),
            "Mismatched partition specs .* for delete file d.* and data file f: metadata is",
        ),
        (
            entry("f", 1, spec_id=1, partition=("b",)),
            dv("d", 2, "f", spec_id=1, partition=("a",)),
            r"Mismatched partition tuples \(\('a',\), \('b',\)\) for delete file d",
        ),
    ],
)
def test_dv_that_contradicts_its_file_is_refused(data, vector, text: str) -> None:
    with pytest.raises(CorruptDataError, match=text):
        found(data, vector)


def test_damaged_delete_entries_are_refused() -> None:
    for damaged, text in [
        (dv("d", 2, "f", referenced_data_file=None), "references no data file"),
        (keys("e", 2, equality_ids=None), "names no columns"),
        (entry("f", 2), "lists a data file"),
    ]:
        with pytest.raises(CorruptDataError, match=text):
            DeleteIndex([damaged], specs=SPECS, key_fields=KEYS)


def test_position_delete_is_skipped_when_its_paths_are_elsewhere() -> None:
    span = {
        "lower_bounds": {DELETE_FILE_PATH_FIELD_ID: b"b"},
        "upper_bounds": {DELETE_FILE_PATH_FIELD_ID: b"d"},
    }
    reached = {path: found(entry(path, 1), positions("p", 2, **span))[1] for path in "abcde"}
    assert reached == {"a": "", "b": "p", "c": "p", "d": "p", "e": ""}


def test_equal_path_bounds_make_a_position_delete_file_scoped() -> None:
    one = {
        "lower_bounds": {DELETE_FILE_PATH_FIELD_ID: b"f"},
        "upper_bounds": {DELETE_FILE_PATH_FIELD_ID: b"f"},
    }
    assert found(entry("f", 1), positions("p", 2, **one))[1] == "p"
    assert found(entry("f2", 1), positions("p", 2, **one))[1] == ""


@pytest.mark.parametrize(
    ("data", "delete", "reached"),
    [
        (bounds(1, 5), bounds(6, 9), ""),
        (bounds(1, 5), bounds(5, 9), "e"),
        (bounds(1, 5), {}, "e"),
        ({}, bounds(6, 9), "e"),
        (bounds(1, 5, nulls=1), bounds(6, 9, nulls=1), "e"),
        (bounds(1, 5, nulls=1), bounds(6, 9), ""),
        (bounds(1, 5), bounds(6, 9, nulls=1), ""),
        ({"null_value_counts": {1: 10}, "value_counts": {1: 10}}, bounds(6, 9), ""),
        ({"null_value_counts": {1: 10}, "value_counts": {1: 10}}, bounds(6, 9, nulls=1), "e"),
        (
            {"null_value_counts": {1: 0}},
            {"null_value_counts": {1: 10}, "value_counts": {1: 10}},
            "",
        ),
        # int bounds from before a promotion to long
        ({**bounds(1, 5), "upper_bounds": {1: b"\x09\x00\x00\x00"}}, bounds(6, 9), "e"),
    ],
)
def test_equality_delete_is_skipped_only_when_statistics_prove_it(data, delete, reached) -> None:
    assert found(entry("f", 1, **data), keys("e", 2, **delete))[2] == reached
