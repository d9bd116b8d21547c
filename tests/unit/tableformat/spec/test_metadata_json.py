from __future__ import annotations

import gc
import gzip
import json
import pickle
import tracemalloc
import weakref
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from pyiceberg.table.metadata import TableMetadataUtil, TableMetadataV3
from pyiceberg.typedef import IcebergBaseModel

from tableformat.errors import CorruptDataError, UnsupportedError
from tableformat.spec import json_texts, list_texts, metadata_json, snapshot_json
from tableformat.spec.metadata_json import decode_metadata, encode_metadata, metadata_from_json
from tableformat.spec.metadata_models import next_row_id
from tests.support.table_metadata import metadata_of, raw_metadata, raw_snapshot

LOCATION = "s3://b/t/metadata/00007-x.metadata.json"


def decode(raw: dict[str, Any] | str | bytes) -> Any:
    if isinstance(raw, dict):
        raw = json.dumps(raw)
    data = raw.encode() if isinstance(raw, str) else raw
    return decode_metadata(data, location=LOCATION)


def column(field_type: Any, **fields: Any) -> dict[str, Any]:
    return {"id": 1, "name": "id", "type": field_type, "required": False, **fields}


def schema(*fields: dict[str, Any], schema_id: int = 0) -> dict[str, Any]:
    return {"type": "struct", "schema-id": schema_id, "fields": list(fields)}


# -- what survives a round trip


def test_spec_that_is_there_twice_is_read_as_one() -> None:
    """PyIceberg on a SQL catalog writes one so."""
    raw = raw_metadata(2)
    twice = decode(raw | {"partition-specs": raw["partition-specs"] * 2})
    assert encode_metadata(twice) == encode_metadata(decode(raw))


def test_v3_metadata_round_trip_loses_nothing() -> None:
    raw = raw_metadata(
        3,
        properties={"a": "b", "ä": '✓ "quoted" \\ \n'},
        **{
            "refs": {
                "main": {"snapshot-id": 3, "type": "branch", "future": [1, {"x": None}]},
                "audit": {
                    "snapshot-id": 2,
                    "type": "branch",
                    "min-snapshots-to-keep": 3,
                    "max-snapshot-age-ms": 4,
                    "max-ref-age-ms": 5,
                },
                "v1": {"snapshot-id": 1, "type": "tag"},
            },
            "encryption-keys": [{"key-id": "k1", "encrypted-key-metadata": "AAEC"}],
            "unknown-future-field": {"deep": [1, 2.5, "x", None, True]},
            "statistics": [
                {
                    "snapshot-id": 1,
                    "statistics-path": "s3://b/s.puffin",
                    "file-size-in-bytes": 7,
                    "file-footer-size-in-bytes": 3,
                    "key-metadata": "AA==",
                    "blob-metadata": [
                        {
                            "type": "some-engine-histogram-v9",
                            "snapshot-id": 1,
                            "sequence-number": 1,
                            "fields": [1],
                            "properties": {"ndv": "5"},
                        }
                    ],
                }
            ],
            "partition-statistics": [
                {"snapshot-id": 1, "statistics-path": "s3://b/p.parquet", "file-size-in-bytes": 9}
            ],
            "metadata-log": [{"metadata-file": "s3://b/0.json", "timestamp-ms": 1_699_999_999_000}],
        },
    )
    raw["snapshots"][1]["key-id"] = "k1"
    raw["snapshots"][1]["future"] = {"nested": [1]}
    raw["schemas"][0]["identifier-field-ids"] = [1]
    raw["schemas"][0]["future"] = 1
    raw["schemas"][0]["fields"][0]["future"] = "kept"
    raw["partition-specs"][0]["fields"] = [
        {"source-id": 1, "field-id": 1000, "name": "b", "transform": "bucket[4]", "future": 1}
    ]
    raw["last-partition-id"] = 1000
    assert json.loads(encode_metadata(decode(raw))) == raw


@pytest.mark.parametrize("version", [1, 2])
def test_older_version_round_trip_loses_nothing(version: int) -> None:
    raw = raw_metadata(2, **{"format-version": version, "next-row-id": None})
    for snapshot in raw["snapshots"]:
        del snapshot["first-row-id"], snapshot["added-rows"]
    if version == 1:
        del raw["last-sequence-number"]
        raw["schema"] = raw["schemas"][0]
        raw["partition-spec"] = []
        for snapshot in raw["snapshots"]:
            del snapshot["sequence-number"]
    assert json.loads(encode_metadata(decode(raw))) == raw


def test_oldest_v1_metadata_gets_what_it_lacks() -> None:
    raw = {
        "format-version": 1,
        "table-uuid": "6d2b6a5e-0c4f-4e3c-9a52-5f2f1d6c9a11",
        "location": "s3://b/t",
        "last-updated-ms": 1,
        "last-column-id": 1,
        "schema": {"type": "struct", "fields": [column("long")]},
        "partition-spec": [],
        "properties": {},
        "current-snapshot-id": -1,
        "snapshots": [],
    }
    metadata = decode(raw)
    assert metadata.current_snapshot_id is None
    again = decode(encode_metadata(metadata))
    assert again.schema() == metadata.schema()
    assert len(again.partition_specs) == 1


def test_v1_summary_without_operation_is_read_without_a_warning() -> None:
    snapshot = raw_snapshot(1, summary={"x": "y"})
    snapshot = {k: v for k, v in snapshot.items() if k not in ("first-row-id", "added-rows")}
    raw = raw_metadata(1, **{"format-version": 2, "next-row-id": None, "snapshots": [snapshot]})
    assert decode(raw).snapshots[0].summary["x"] == "y"


@pytest.mark.parametrize(
    ("field_type", "value"),
    [
        ("boolean", True),
        ("int", 7),
        ("long", 2**40),
        ("float", 1.5),
        ("double", 2.25),
        ("decimal(9, 2)", "1.20"),
        ("date", "1970-01-04"),
        ("time", "01:02:03.000004"),
        ("timestamp", "2020-01-01T00:00:00.000001"),
        ("timestamptz", "2020-01-01T00:00:00.000001+00:00"),
        ("string", "x"),
        ("uuid", "00000000-0000-0000-0000-000000000003"),
        ("fixed[2]", "ff00"),
        ("binary", "ff00"),
    ],
)
def test_default_values_round_trip(field_type: str, value: Any) -> None:
    field = column(field_type, **{"initial-default": value, "write-default": value})
    raw = raw_metadata(0, schemas=[schema(field)])
    metadata = decode(raw)
    assert json.loads(encode_metadata(metadata))["schemas"] == [schema(field)]
    # Also without the file's own text, as for a schema made here.
    copy = metadata.model_copy(update={"schemas": [metadata.schema().model_copy()]})
    written = json.loads(encode_metadata(copy))["schemas"][0]["fields"][0]
    assert written["initial-default"] == value


def test_every_type_is_read() -> None:
    inner = {"type": "struct", "fields": [column("unknown") | {"id": 9}]}
    types: list[Any] = ["timestamp_ns", "timestamptz_ns", "unknown", "decimal(38, 0)"]
    types += [{"type": "list", "element-id": 5, "element": inner, "element-required": False}]
    types += [
        {
            "type": "map",
            "key-id": 6,
            "key": "string",
            "value-id": 7,
            "value": "long",
            "value-required": True,
        }
    ]
    fields = [
        {"id": 20 + index, "name": f"c{index}", "type": one, "required": False}
        for index, one in enumerate(types)
    ]
    raw = raw_metadata(0, schemas=[schema(*fields)], **{"last-column-id": 30})
    assert json.loads(encode_metadata(decode(raw))) == raw


def test_pyiceberg_reads_what_we_write() -> None:
    metadata = metadata_of(3)
    theirs = TableMetadataUtil.parse_raw(encode_metadata(metadata).decode())
    assert isinstance(theirs, TableMetadataV3)
    assert theirs.snapshots == metadata.snapshots
    assert theirs.next_row_id == 30


def test_models_of_pyiceberg_itself_can_be_written() -> None:
    theirs = TableMetadataUtil.parse_obj(raw_metadata(2))
    assert json.loads(encode_metadata(theirs))["snapshots"] == raw_metadata(2)["snapshots"]
    assert decode(encode_metadata(theirs)).snapshots == theirs.snapshots


def test_empty_v3_table_has_a_next_row_id() -> None:
    theirs = TableMetadataUtil.parse_obj(raw_metadata(0, **{"next-row-id": None}))
    assert json.loads(encode_metadata(theirs))["next-row-id"] == 0


def test_row_ids_beyond_next_row_id_are_not_given_again() -> None:
    """A transaction of DuckDB 1.5 leaves such metadata."""
    raw = bad_snapshot(added_rows=11)
    last = raw["snapshots"][1]
    assert last["first-row-id"] + 11 > raw["next-row-id"]
    metadata = metadata_from_json(raw, location="x")
    assert next_row_id(metadata) == last["first-row-id"] + 11


def test_no_current_snapshot_is_left_out() -> None:
    assert "current-snapshot-id" not in json.loads(encode_metadata(metadata_of(0)))


def test_gzip_is_read() -> None:
    raw = raw_metadata(2)
    assert json.loads(encode_metadata(decode(gzip.compress(json.dumps(raw).encode())))) == raw


def test_decoded_metadata_equals_its_pickled_and_reread_copies() -> None:
    metadata = metadata_of(3)
    metadata.snapshot_by_id(1)
    assert decode(encode_metadata(metadata)) == metadata
    assert pickle.loads(pickle.dumps(metadata)) == metadata
    assert metadata.model_copy() == metadata


# -- what makes it cheap


def test_snapshot_lookup_follows_a_changed_list() -> None:
    metadata = metadata_of(3)
    assert metadata.snapshot_by_id(2) is metadata.snapshots[1]
    shorter = metadata.model_copy(update={"snapshots": metadata.snapshots[:1]})
    assert shorter.snapshot_by_id(2) is None
    assert metadata.snapshot_by_id(2) is not None


def test_snapshots_of_the_next_version_are_those_of_this_one() -> None:
    first = metadata_of(3)
    second = metadata_of(4)
    assert [a is b for a, b in zip(first.snapshots, second.snapshots, strict=False)] == [True] * 3


def test_schema_that_another_version_has_is_that_one_unless_it_was_changed() -> None:
    first = decode(raw_metadata(2))
    assert decode(raw_metadata(3)).schema() is first.schema()
    raw = raw_metadata(3)
    raw["schemas"][0]["fields"][0]["doc"] = "another"
    changed = decode(raw)
    assert changed.schema().fields[0].doc == "another"
    assert json.loads(encode_metadata(changed))["schemas"] == raw["schemas"]


@pytest.mark.parametrize(
    "change",
    [
        {"timestamp-ms": 1_700_000_000_009},
        {"manifest-list": "memory://warehouse/t/metadata/other.avro"},
        {"summary": {"operation": "append"}},
        {"summary": {"operation": "delete", "added-records": "10"}},
        {"schema-id": 1},
        {"added-rows": 9},
        {"parent-snapshot-id": 77},
        {"key-id": "k"},
    ],
)
def test_changed_snapshot_with_a_known_id_is_read_anew(change: dict[str, Any]) -> None:
    kept = metadata_of(2)
    raw = raw_metadata(2)
    raw["snapshots"][1] |= change
    assert json.loads(encode_metadata(decode(raw)))["snapshots"] == raw["snapshots"]
    assert json.loads(encode_metadata(kept)) == raw_metadata(2)


def outcome(data: bytes) -> tuple[bytes, str] | str:
    """What becomes of a file: it is read, and written again, or refused."""
    try:
        metadata = decode(data)
        return encode_metadata(metadata), repr(metadata.snapshots)
    except (CorruptDataError, UnsupportedError) as error:
        return f"{type(error).__name__}: {error.message}"


def broken_lists(data: bytes, snapshots: list[bytes]) -> Iterator[bytes]:
    """A file with its list of snapshots in other words, and with every byte of it damaged."""
    first, second, third = snapshots
    for items in (
        [], [first], [second, third], [third, first], [first, first, second], [first, b"", second],
        [first, second, b""], [b"", first], [first, b"7", second], [first, second[:-1]],
        [first[:-1] + b',"key-id":"k"}', second], [second.replace(b":2", b":02"), third],
        [first, second.replace(b"append", b"delete"), third], [first, b" " + second, third],
    ):  # fmt: skip
        yield data.replace(b",".join(snapshots), b",".join(items))
    yield data.replace(b'"properties":{}', b'"properties":{"snapshots":[]}')
    yield data.replace(b'"properties":{}', b'"x":{"snapshots":[%s]}' % first)
    yield data.replace(b'"properties":{}', b'"snapshots":[%s]' % first)
    begin = data.index(b'"snapshots":[')
    for at in range(begin, data.index(third) + len(third) + 3):
        yield data[:at] + data[at + 1 :]
        yield data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :]
    old = json.dumps({"format-version": 1, "partition-spec": [], "schema": schema(column("long"))})
    yield data.replace(b'{"format-version":3', old[:-1].encode())


def test_what_is_in_use_changes_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = metadata_of(3)
    data = encode_metadata(kept)
    texts = [json_texts.text_of(each) for each in kept.snapshots]
    known, rest = snapshot_json.cut_known_snapshots(data)
    assert list(map(id, known)) == list(map(id, kept.snapshots))
    assert b'"snapshots":[]' in rest
    files = [data, *broken_lists(data, texts)]
    answers = [outcome(each) for each in files]
    for each, answer in zip(files, answers, strict=True):
        monkeypatch.setattr(snapshot_json, "_in_use", weakref.WeakValueDictionary())
        assert outcome(each) == answer, each
    assert 10 < sum(isinstance(answer, tuple) for answer in answers) < 0.9 * len(answers)


def test_growing_and_shrinking_lists_are_written_right() -> None:
    metadata = metadata_of(5)
    for kept in ([0], [0, 1], [0, 1, 2], [1, 2], [0, 2], [], [4], [0, 1, 2, 3, 4]):
        some = [metadata.snapshots[index] for index in kept]
        written = json.loads(encode_metadata(metadata.model_copy(update={"snapshots": some})))
        assert [one["snapshot-id"] for one in written["snapshots"]] == [i + 1 for i in kept]


def test_text_memory_goes_with_its_objects() -> None:
    encode_metadata(metadata_of(50))
    gc.collect()
    before = len(json_texts._texts._entries)
    for _ in range(3):
        encode_metadata(metadata_of(50))
    gc.collect()
    assert len(json_texts._texts._entries) <= before


def own_metadata_of(count: int) -> Any:
    """With snapshots that were met in no file."""
    metadata = metadata_of(count)
    own = [each.model_copy() for each in metadata.snapshots]
    return metadata.model_copy(update={"snapshots": own})


def test_text_of_snapshots_is_not_kept_one_by_one() -> None:
    metadata = own_metadata_of(50)
    encode_metadata(metadata)
    assert all(json_texts._texts.get(each) is None for each in metadata.snapshots)


@pytest.mark.parametrize("changed", [slice(0, 19), slice(3, None), slice(0, None)])
def test_long_list_serializes_no_snapshot_of_a_whole_chunk_again(
    monkeypatch: pytest.MonkeyPatch, changed: slice
) -> None:
    monkeypatch.setattr(list_texts, "KEPT_BYTES_MIN", 1_000)  # three or four snapshots
    metadata = own_metadata_of(20)
    encode_metadata(metadata)
    calls: list[object] = []
    original = IcebergBaseModel.model_dump_json
    monkeypatch.setattr(
        IcebergBaseModel,
        "model_dump_json",
        lambda self, *a, **k: calls.append(self) or original(self, *a, **k),
    )
    after = metadata.model_copy(update={"snapshots": metadata.snapshots[changed]})
    written = json.loads(encode_metadata(after))["snapshots"]
    assert [one["snapshot-id"] for one in written] == list(range(1, 21))[changed]
    assert len(calls) <= 8  # of the first and the last chunk
    calls.clear()
    encode_metadata(after)
    assert calls == []


# -- what is refused


def bad(**fields: Any) -> dict[str, Any]:
    return raw_metadata(2, **{key.replace("_", "-"): value for key, value in fields.items()})


def bad_snapshot(index: int = 1, **fields: Any) -> dict[str, Any]:
    raw = raw_metadata(2)
    raw["snapshots"][index] |= {key.replace("_", "-"): value for key, value in fields.items()}
    return raw


CORRUPT: dict[str, dict[str, Any] | str | bytes] = {
    "empty file": b"",
    "not JSON": b"<html>",
    "not UTF-8": b'{"a":"\xff"}',
    "cut": json.dumps(raw_metadata(2))[:-5],
    "an array": b"[]",
    "trailing bytes": json.dumps(raw_metadata(2)) + "x",
    "key twice": '{"format-version":3,' + json.dumps(raw_metadata(2))[1:],
    "key twice inside": json.dumps(raw_metadata(2)).replace(
        '"snapshot-id": 1,', '"snapshot-id": 1, "snapshot-id": 2,', 1
    ),
    "NaN": json.dumps(raw_metadata(2, future=float("nan"))),
    "huge number": json.dumps(raw_metadata(2)).replace('"next-row-id": 20', '"next-row-id": 1e400'),
    "endless digits": '{"format-version": ' + "9" * 5000 + "}",
    "no version": bad(format_version=None),
    "version zero": bad(format_version=0),
    "version as text": bad(format_version="3"),
    "version as bool": bad(format_version=True),
    "no uuid": bad(table_uuid=None),
    "bad uuid": bad(table_uuid="x"),
    "no location": bad(location=None),
    "blank location": bad(location=" "),
    "no last-updated-ms": bad(last_updated_ms=None),
    "no next-row-id": bad(next_row_id=None),
    "negative next-row-id": bad(next_row_id=-1),
    "negative sequence number": bad(last_sequence_number=-1),
    "sequence number beyond long": bad(last_sequence_number=2**63),
    "fractional sequence number": bad(last_sequence_number=2.0),
    "no schemas": bad(schemas=None),
    "unknown current schema": bad(current_schema_id=5),
    "unknown default spec": bad(default_spec_id=5),
    "unknown sort order": bad(default_sort_order_id=5),
    "two schemas with one id": bad(schemas=raw_metadata()["schemas"] * 2),
    "two specs with one id": bad(
        partition_specs=[
            {"spec-id": 0, "fields": []},
            {
                "spec-id": 0,
                "fields": [
                    {"source-id": 1, "field-id": 1000, "name": "id", "transform": "identity"}
                ],
            },
        ]
    ),
    "schemas as object": bad(schemas={"a": 1}),
    "snapshots as object": bad(snapshots={"a": 1}),
    "snapshot as text": bad(snapshots=["x"]),
    "refs as list": bad(refs=[1]),
    "ref to unknown snapshot": bad(
        refs={
            "main": {"snapshot-id": 2, "type": "branch"},
            "x": {"snapshot-id": 9, "type": "branch"},
        }
    ),
    "ref of unknown type": bad(refs={"main": {"snapshot-id": 2, "type": "twig"}}),
    "main is not current": bad(refs={"main": {"snapshot-id": 1, "type": "branch"}}),
    "main without current": bad(current_snapshot_id=None),
    "current without snapshot": bad(current_snapshot_id=9, refs={}),
    "snapshot twice": bad(snapshots=[raw_snapshot(1), raw_snapshot(2), raw_snapshot(1)]),
    "snapshot without id": bad_snapshot(snapshot_id=None),
    "negative snapshot id": bad_snapshot(snapshot_id=-2),
    "snapshot id as text": bad_snapshot(snapshot_id="2"),
    "snapshot without time": bad_snapshot(timestamp_ms=None),
    "snapshot without manifest list": bad_snapshot(manifest_list=None),
    "negative snapshot sequence number": bad_snapshot(sequence_number=-1),
    "sequence number above the last": bad_snapshot(sequence_number=3),
    "sequence number going back": bad_snapshot(sequence_number=1),
    "negative added rows": bad_snapshot(added_rows=-1),
    "row ids beyond all numbers": bad_snapshot(added_rows=2**63 - 1),
    "summary with a number": bad_snapshot(summary={"operation": "append", "added-records": 1}),
    "summary as list": bad_snapshot(summary=[1]),
    "unknown operation": bad_snapshot(summary={"operation": "explode"}),
    "own parent": bad_snapshot(index=0, parent_snapshot_id=1),
    "parent cycle": bad(
        snapshots=[
            raw_snapshot(1, **{"parent-snapshot-id": 2, "sequence-number": 0}),
            raw_snapshot(2, **{"sequence-number": 0}),
        ]
    ),
    "time back by a day": bad(last_updated_ms=1_700_000_000_002 - 86_400_000),
    "log back by a day": bad(
        snapshot_log=[
            {"snapshot-id": 1, "timestamp-ms": 1_700_000_000_001},
            {"snapshot-id": 2, "timestamp-ms": 1_700_000_000_001 - 86_400_000},
        ]
    ),
    "metadata log in the future": bad(
        metadata_log=[{"metadata-file": "x", "timestamp-ms": 1_700_000_000_002 + 60_001}]
    ),
    "log entry without time": bad(snapshot_log=[{"snapshot-id": 1}]),
    "statistics as text": bad(statistics=["x"]),
    "property with null": bad(properties={"a": None}),
    "half a character": bad(properties={"a": "\ud800"}),
    "infinite number": json.dumps(raw_metadata(2)).replace(
        '"location"', '"x": 1e999, "location"', 1
    ),
    "deep array": b"[" * 100_000,
    "deep extra": json.dumps(raw_metadata(2)).replace(
        '"location"', '"x": ' + "[" * 300 + "]" * 300 + ', "location"', 1
    ),
    "deep snapshot extra": json.dumps(raw_metadata(2)).replace(
        '"manifest-list"', '"x": ' + "[" * 300 + "]" * 300 + ', "manifest-list"', 1
    ),
    "cut gzip": gzip.compress(json.dumps(raw_metadata(2)).encode())[:-9],
    "gzip and more": gzip.compress(json.dumps(raw_metadata(2)).encode()) + b"x",
    "broken gzip": b"\x1f\x8b" + b"\x00" * 40,
}


@pytest.mark.parametrize("name", CORRUPT)
def test_broken_metadata_is_corrupt_data_naming_the_file(name: str) -> None:
    with pytest.raises(CorruptDataError) as caught:
        decode(CORRUPT[name])
    assert caught.value.context["location"] == LOCATION
    assert "\n" not in str(caught.value)


def test_struct_nested_too_deeply_is_corrupt_data() -> None:
    inner: Any = "long"
    for number in range(100, 180):
        inner = {
            "type": "struct",
            "fields": [{"id": number, "name": "x", "type": inner, "required": False}],
        }
    with pytest.raises(CorruptDataError):
        decode(raw_metadata(0, schemas=[schema(column(inner))]))


@pytest.mark.parametrize(
    "raw",
    [
        bad(format_version=4),
        bad(schemas=[schema(column("variant"))]),
        bad(schemas=[schema(column("int128"))]),
    ],
)
def test_later_version_or_type_is_unsupported_and_names_the_file(raw: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedError) as caught:
        decode(raw)
    assert caught.value.context["location"] == LOCATION


def _struct(name: str, kind: Any) -> dict[str, Any]:
    field = {"id": 7, "name": name, "type": kind, "required": False}
    return {"type": "struct", "fields": [field]}


VARIANT_LIST = {"type": "list", "element-id": 7, "element": "variant", "element-required": False}
VARIANT_MAP = {
    "type": "map", "key-id": 7, "key": "string", "value-id": 8, "value": "variant",
    "value-required": False,
}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "name", "inner"),
    [
        ("variant", "variant", ""),
        ("int128", "int128", ""),
        (_struct("body", "variant"), "variant", ".body"),
        (VARIANT_LIST, "variant", ".element"),
        (VARIANT_MAP, "variant", ".value"),
    ],
)
def test_column_of_a_type_that_icefold_does_not_know_is_named(
    kind: Any, name: str, inner: str
) -> None:
    wrong = column(kind)
    with pytest.raises(UnsupportedError) as caught:
        decode(bad(schemas=[schema(wrong)]))
    assert caught.value.message.endswith(f"has a column of type {name}, which icefold cannot read")
    assert caught.value.context == {"column": wrong["name"] + inner, "location": LOCATION}
    assert caught.value.action


@pytest.mark.parametrize("name", ["initial-default", "write-default"])
def test_struct_with_a_default_is_named(name: str) -> None:
    wrong = column(_struct("body", "int")) | {name: {}}
    with pytest.raises(UnsupportedError, match="type struct with a default, which") as caught:
        decode(bad(schemas=[schema(wrong)]))
    assert caught.value.context["column"] == wrong["name"]


@pytest.mark.parametrize("fields", [[7], "id", 7, [{"id": 1}], [{"name": 1, "type": []}]])
def test_fields_that_are_none_are_damage_not_a_crash(fields: Any) -> None:
    with pytest.raises(CorruptDataError) as caught:
        decode(bad(schemas=[schema() | {"fields": fields}]))
    assert caught.value.context["location"] == LOCATION


def test_unknown_type_of_an_older_schema_has_its_own_advice() -> None:
    older = schema(column("variant")) | {"schema-id": 9}
    with pytest.raises(UnsupportedError, match="had a column of type variant") as caught:
        decode(bad(schemas=[schema(column("string")), older]))
    assert "clean_expired_metadata" in str(caught.value)


def test_clock_skew_of_a_minute_is_tolerated() -> None:
    decode(bad(last_updated_ms=1_700_000_000_002 - 59_000))


def test_expired_parent_is_no_error() -> None:
    assert decode(bad_snapshot(index=0, parent_snapshot_id=12345)).snapshots[0] is not None


def test_unnumbered_v1_snapshots_in_a_v2_table_are_no_error() -> None:
    raw = raw_metadata(2, **{"format-version": 2, "next-row-id": None, "last-sequence-number": 0})
    for snapshot in raw["snapshots"]:
        del snapshot["sequence-number"], snapshot["first-row-id"], snapshot["added-rows"]
    assert json.loads(encode_metadata(decode(raw)))["last-sequence-number"] == 0


def test_too_large_file_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata_json, "METADATA_BYTES_MAX", 1000)
    with pytest.raises(CorruptDataError, match="too large"):
        decode(raw_metadata(20))
    with pytest.raises(CorruptDataError, match="unzipped"):
        decode(gzip.compress(json.dumps(raw_metadata(20)).encode()))


def test_gzip_bomb_is_refused_in_little_memory() -> None:
    bomb = gzip.compress(b" " * (1 << 28), compresslevel=1)
    assert len(bomb) < 2_000_000
    tracemalloc.start()
    try:
        with pytest.raises(CorruptDataError, match="unzipped"):
            decode(bomb)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 256 << 20


def test_every_cut_and_flipped_byte_is_a_typed_error_or_valid() -> None:
    data = json.dumps(raw_metadata(1)).encode()
    for position in range(len(data)):
        broken = [data[:position], data[:position] + b"\x01" + data[position + 1 :]]
        broken.append(data[:position] + bytes([data[position] ^ 0x10]) + data[position + 1 :])
        for one in broken:
            with suppress(CorruptDataError, UnsupportedError):
                decode(one)


@pytest.mark.parametrize("default", ["%", "1e999999999", "1E-99999999"])
def test_default_that_is_no_decimal_is_refused_at_once(default: str) -> None:
    both = {"initial-default": default, "write-default": default}
    wrong = schema(column("decimal(9, 2)", **both))
    with pytest.raises(CorruptDataError):
        decode(raw_metadata(schemas=[wrong]))


@pytest.mark.parametrize("key", ["initial-default", "write-default"])
@pytest.mark.parametrize(
    ("kind", "default"),
    [
        ("int", "5"), ("int", 5.5), ("int", True), ("int", 2**31), ("long", 2**63),
        ("string", 5), ("boolean", 1), ("boolean", "true"), ("double", "1"), ("float", False),
    ],
)  # fmt: skip
def test_default_of_another_type_is_refused_with_its_column(
    kind: str, default: Any, key: str
) -> None:
    inner = {"type": "struct", "fields": [column(kind, **{key: default})]}
    listed = {"type": "list", "element-id": 9, "element": inner, "element-required": False}
    wrong = schema(
        column("long") | {"id": 7, "name": "id"}, column(listed) | {"id": 8, "name": "l"}
    )
    with pytest.raises(CorruptDataError, match="default of another type") as told:
        decode(raw_metadata(schemas=[wrong]))
    assert told.value.context["column"].startswith("l.element.")


def test_small_gzip_of_many_small_values_is_refused() -> None:
    bomb = gzip.compress(b'{"x":[' + b"[[[[0]]]]," * 300_000 + b"0]}")
    assert len(bomb) < 20_000
    with pytest.raises(CorruptDataError, match="grows too much"):
        decode(bomb)
