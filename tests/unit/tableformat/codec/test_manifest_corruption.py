"""Damaged manifests and manifest lists: a typed error that names the file, or valid entries."""

import io
import json
import random
from dataclasses import replace

import fastavro
import pytest

from tableformat.codec.avro.container import decode_container, encode_container
from tableformat.codec.avro.manifest_entries import decode_manifest
from tableformat.codec.avro.manifest_list import decode_manifest_list, encode_manifest_list
from tableformat.errors import CorruptDataError, UnsupportedError
from tableformat.spec.manifest_file import ManifestContent
from tests.support.manifests import (
    LOCATION,
    added,
    data_file,
    deletion_vector,
    equality_delete,
    existing,
    full_data_file,
    written_manifest,
)

DELETES = ManifestContent.DELETES
TYPED = (CorruptDataError, UnsupportedError)


def edited(data, *, record=None, schema=None, metadata=None, codec="null"):
    """The manifest written again by fastavro, after the records, schema or header were changed."""
    reader = fastavro.reader(io.BytesIO(data))
    records = list(reader)
    for each in records:
        if record:
            record(each)
    tree = json.loads(reader.metadata["avro.schema"])
    if schema:
        schema(tree)
    header = {k: v for k, v in reader.metadata.items() if not k.startswith("avro.")}
    header.update(metadata or {})
    out = io.BytesIO()
    kept = {k: v for k, v in header.items() if v is not None}
    fastavro.writer(out, tree, records, codec=codec, metadata=kept)
    return out.getvalue()


def file_field(tree, name):
    return next(each for each in tree["fields"][4]["type"]["fields"] if each["name"] == name)


def set_file(**values):
    return lambda record: record["data_file"].update(values)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"record": lambda r: r.update(status=3)}, "status 3"),
        ({"record": lambda r: r.update(status=-1)}, "status -1"),
        ({"record": set_file(content=3)}, "content 3"),
        ({"record": set_file(content=2)}, "EQUALITY_DELETES in a manifest of data"),
        ({"record": set_file(content=1)}, "POSITION_DELETES in a manifest of data"),
        ({"record": set_file(file_path="")}, "without a path"),
        ({"record": set_file(record_count=-1)}, "negative count"),
        ({"record": set_file(file_size_in_bytes=-1)}, "negative count"),
        ({"record": set_file(first_row_id=-7)}, "negative first_row_id"),
        ({"metadata": {"content": "deletes"}}, "the manifest list says 'data'"),
        ({"metadata": {"partition-spec-id": "4"}}, "its spec is 4"),
        ({"metadata": {"format-version": "two"}}, "format-version"),
        ({"metadata": {"format-version": "0"}}, "format-version"),
        ({"metadata": {"partition-spec": "[["}}, "not JSON"),
        ({"metadata": {"partition-spec": "[1]"}}, "not a list of fields"),
        ({"metadata": {"partition-spec": '[{"field-id": "a"}]'}}, "wrong field ids"),
        ({"metadata": {"partition-spec": "[" * 100_000}}, "not JSON"),
        ({"metadata": {"partition-spec": '[{"field-id": 9}]'}}, "partition-spec header"),
        ({"metadata": {"partition-spec": "[]"}}, "partition-spec header"),
    ],
)
def test_data_manifest_that_breaks_the_spec_is_refused(change, problem):
    data, manifest = written_manifest([existing(data_file())])

    with pytest.raises(CorruptDataError, match=problem) as caught:
        decode_manifest(edited(data, **change), manifest)

    assert caught.value.context["location"] == LOCATION


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (set_file(content=0), "DATA in a manifest of deletes"),
        (set_file(referenced_data_file=None), "without referenced_data_file"),
        (set_file(content_offset=None), "offset or size"),
        (set_file(content_size_in_bytes=None), "offset or size"),
        (set_file(content_offset=-4), "outside its Puffin file"),
        (set_file(content_size_in_bytes=397), "outside its Puffin file"),
        (set_file(content_size_in_bytes=2**62), "outside its Puffin file"),
        (set_file(content=2), "without equality_ids"),
    ],
)
def test_delete_manifest_that_breaks_the_spec_is_refused(change, problem):
    data, manifest = written_manifest([added(deletion_vector())], content=DELETES)

    with pytest.raises(CorruptDataError, match=problem):
        decode_manifest(edited(data, record=change), manifest)


def drop_field(name):
    def change(tree):
        fields = tree["fields"][4]["type"]["fields"]
        fields.remove(file_field(tree, name))

    return change


def retype(name, avro_type):
    def change(tree):
        field = file_field(tree, name)
        field.pop("default", None)
        field["type"] = avro_type

    return change


@pytest.mark.parametrize(
    "name", ["file_path", "file_format", "partition", "record_count", "file_size_in_bytes"]
)
def test_manifest_without_a_required_field_is_refused(name):
    data, manifest = written_manifest([existing(data_file())])

    with pytest.raises(CorruptDataError, match=f"{name} is not in the schema"):
        decode_manifest(edited(data, schema=drop_field(name)), manifest)


def test_null_path_is_refused():
    data, manifest = written_manifest([existing(data_file())])
    nullable = edited(
        data, record=set_file(file_path=None), schema=retype("file_path", ["null", "string"])
    )

    with pytest.raises(CorruptDataError, match="file_path is null"):
        decode_manifest(nullable, manifest)


@pytest.mark.parametrize(
    ("name", "value", "avro_type"),
    [
        ("file_path", 5, "long"),
        ("record_count", "5", "string"),
        ("first_row_id", [5], {"type": "array", "items": "long", "element-id": 1}),
        ("split_offsets", 5, "long"),
        ("lower_bounds", b"x", "bytes"),
    ],
)
def test_field_of_another_type_is_refused(name, value, avro_type):
    data, manifest = written_manifest([existing(data_file())])
    other = edited(data, record=set_file(**{name: value}), schema=retype(name, avro_type))

    with pytest.raises(CorruptDataError, match=f"{name} is a"):
        decode_manifest(other, manifest)


def test_existing_entry_that_inherits_a_sequence_number_is_refused():
    data, manifest = written_manifest([existing(data_file())])
    without = edited(data, record=lambda r: r.update(sequence_number=None))

    with pytest.raises(CorruptDataError, match="no sequence number"):
        decode_manifest(without, manifest)


def test_later_format_version_is_not_supported():
    data, manifest = written_manifest([existing(data_file())])

    with pytest.raises(UnsupportedError, match="later format version"):
        decode_manifest(edited(data, metadata={"format-version": "4"}), manifest)


def test_encrypted_manifest_is_not_supported():
    data, manifest = written_manifest([existing(data_file())])

    with pytest.raises(UnsupportedError, match="encrypted"):
        decode_manifest(data, replace(manifest, key_metadata=b"key"))


def test_unknown_fields_are_read_over():
    def extend(tree):
        fields = tree["fields"][4]["type"]["fields"]
        item = {"type": "array", "items": {"type": "map", "values": "bytes"}}
        fields.insert(3, {"name": "new", "type": ["null", item], "field-id": 9999, "default": None})
        fields.append({"name": "no_id", "type": "string", "default": "x"})

    data, manifest = written_manifest([existing(full_data_file())])
    extended = edited(data, record=set_file(new=[{"k": b"v"}], no_id="text"), schema=extend)

    assert decode_manifest(extended, manifest) == decode_manifest(data, manifest)


def test_optional_fields_may_be_missing():
    data, manifest = written_manifest([existing(data_file())])
    small = edited(data, schema=drop_field("content_offset"))

    assert decode_manifest(small, manifest) == decode_manifest(data, manifest)


def test_header_keys_that_java_leaves_out_are_not_needed():
    data, manifest = written_manifest([existing(data_file())])
    header = dict.fromkeys(["schema", "schema-id", "partition-spec", "partition-spec-id"])

    assert decode_manifest(edited(data, metadata=header), manifest) == decode_manifest(
        data, manifest
    )


@pytest.mark.parametrize("count", ["added_files_count", "existing_files_count"])
def test_manifest_with_other_counts_than_listed_is_refused(count):
    data, manifest = written_manifest([existing(data_file()), added(data_file("b"))])

    with pytest.raises(CorruptDataError, match="the manifest list says 2"):
        decode_manifest(data, replace(manifest, **{count: 2}))


def test_file_cut_between_blocks_is_not_a_shorter_manifest():
    data, manifest = written_manifest([existing(data_file(str(i))) for i in range(40)])
    reader = fastavro.reader(io.BytesIO(data))
    records = list(reader)
    out = io.BytesIO()
    header = {k: v for k, v in reader.metadata.items() if not k.startswith("avro.")}
    fastavro.writer(
        out, json.loads(reader.metadata["avro.schema"]), records, metadata=header, sync_interval=200
    )
    blocks = list(fastavro.block_reader(io.BytesIO(out.getvalue())))
    assert len(blocks) > 3
    cut = out.getvalue()[: blocks[2].offset]

    with pytest.raises(CorruptDataError, match="the manifest list says 40"):
        decode_manifest(cut, manifest)


def with_extra_byte(data):
    """The container with one byte more in its block."""
    container = decode_container(data, location=LOCATION)
    (block,) = container.blocks
    return encode_container(
        [block.decompressed() + b"\x00"],
        schema=container.schema,
        metadata=container.metadata,
        codec="gzip",
    )


def test_bytes_behind_the_last_entry_are_refused():
    data, manifest = written_manifest([existing(data_file())])

    with pytest.raises(CorruptDataError, match="after its last record"):
        decode_manifest(with_extra_byte(data), manifest)


def test_bytes_behind_the_last_manifest_are_refused():
    _, manifest = written_manifest([existing(data_file())])
    encoded = encode_manifest_list(
        [manifest], snapshot_id=1, parent_snapshot_id=None, sequence_number=10, first_row_id=0
    )

    with pytest.raises(CorruptDataError, match="after its last record"):
        decode_manifest_list(with_extra_byte(encoded.data), location=LOCATION)


MANIFESTS = [
    written_manifest([added(full_data_file()), existing(data_file("b"))], codec="uncompressed"),
    written_manifest(
        [added(deletion_vector()), added(equality_delete())], content=DELETES, codec="gzip"
    ),
]


@pytest.mark.parametrize(("data", "manifest"), MANIFESTS, ids=["data", "deletes"])
def test_manifest_cut_anywhere_is_refused(data, manifest):
    for size in range(len(data)):
        with pytest.raises(CorruptDataError):
            decode_manifest(data[:size], manifest)


@pytest.mark.parametrize(("data", "manifest"), MANIFESTS, ids=["data", "deletes"])
def test_manifest_with_changed_bytes_gives_entries_or_a_typed_error(data, manifest):
    refused = 0
    source = random.Random(20_260_101)
    # Every byte of the records, and bytes of the header at random.
    body = data.index(b"\x00", data.index(b"avro.codec"))
    positions = [*range(body, len(data)), *source.choices(range(body), k=600)]
    for position in positions:
        damaged = bytearray(data)
        damaged[position] ^= 1 << source.randrange(8)
        try:
            decode_manifest(bytes(damaged), manifest)
        except TYPED as error:
            refused += 1
            assert error.context["location"] == LOCATION  # noqa: PT017 - valid is fine too

    assert refused > 100


def test_manifest_list_with_changed_bytes_gives_manifests_or_a_typed_error():
    _, manifest = MANIFESTS[0]
    encoded = encode_manifest_list(
        [manifest, replace(manifest, manifest_path="memory://warehouse/other.avro")],
        snapshot_id=1,
        parent_snapshot_id=None,
        sequence_number=10,
        first_row_id=0,
        codec="uncompressed",
    )
    source = random.Random(7)
    refused = 0
    for position in range(len(encoded.data)):
        damaged = bytearray(encoded.data)
        damaged[position] ^= 1 << source.randrange(8)
        try:
            decode_manifest_list(bytes(damaged), location=LOCATION)
        except TYPED as error:
            refused += 1
            assert error.context["location"] == LOCATION  # noqa: PT017

    assert refused > 100


def test_manifest_list_cut_anywhere_is_refused():
    _, manifest = MANIFESTS[0]
    encoded = encode_manifest_list(
        [manifest], snapshot_id=1, parent_snapshot_id=None, sequence_number=10, first_row_id=0
    )
    header = encoded.data.index(b"avro.codec")
    for size in range(len(encoded.data)):
        try:
            assert decode_manifest_list(encoded.data[:size], location=LOCATION) == []
            assert size > header  # the header alone is a valid, empty list
        except CorruptDataError:
            pass


def test_random_bytes_are_refused():
    source = random.Random(3)
    _, manifest = MANIFESTS[0]
    for _ in range(500):
        data = b"Obj\x01" + source.randbytes(source.randrange(200))
        with pytest.raises(TYPED):
            decode_manifest(data, manifest)


def test_partition_value_that_is_a_list_is_refused():
    data, manifest = written_manifest([added(data_file())])

    def as_list(tree):
        partition = file_field(tree, "partition")["type"]["fields"][0]
        partition["type"] = {"type": "array", "items": "int"}
        del partition["default"]

    changed = edited(data, schema=as_list, record=set_file(partition={"id_bucket": [1]}))
    with pytest.raises(CorruptDataError, match="primitive"):
        decode_manifest(changed, replace(manifest, manifest_length=len(changed)))


def test_few_bytes_that_decode_to_millions_of_values_are_refused():
    data, manifest = written_manifest([added(data_file())])

    def with_list(tree):
        items = {"type": "array", "items": "int"}
        tree["fields"].append({"name": "x", "type": {"type": "array", "items": items}})

    def with_items(record):
        record["x"] = [[]] * 2_000_000

    changed = edited(data, schema=with_list, record=with_items, codec="deflate")
    assert len(changed) < 10_000
    with pytest.raises(CorruptDataError, match="far more bytes"):
        decode_manifest(changed, replace(manifest, manifest_length=len(changed)))
