import gc
from dataclasses import replace

from pyiceberg.types import DecimalType, LongType, NestedField, StructType

from tableformat.codec.avro import manifest
from tableformat.codec.avro.manifest import encode_manifest
from tableformat.object_memory import ObjectMemory
from tableformat.spec.manifest_file import ManifestContent
from tests.support.manifests import SCHEMA, SPEC, data_file, existing


class Part:
    pass


def test_bytes_are_kept_as_long_as_the_value_lives():
    memory, part, layout = ObjectMemory(), Part(), object()
    memory.put(part, b"x", layout)
    assert memory.get(part, layout) == b"x"
    del part
    gc.collect()
    assert len(memory) == 0


def test_another_layout_is_not_answered():
    memory, part = ObjectMemory(), Part()
    memory.put(part, b"x", "old")
    assert memory.get(part, "new") is None
    memory.put(part, b"y", "new")
    assert memory.get(part, "new") == b"y"


def test_equal_but_other_value_is_not_answered():
    memory, entry = ObjectMemory(), existing(data_file())
    memory.put(entry, b"x")
    assert memory.get(replace(entry), None) is None


def test_entry_is_encoded_again_for_another_partition_type():
    wide = StructType(NestedField(1000, "d", DecimalType(18, 2), required=False))
    narrow = StructType(NestedField(1000, "d", LongType(), required=False))
    assert manifest._layout(wide, 3) is not manifest._layout(narrow, 3)
    assert manifest._layout(wide, 3) is manifest._layout(wide, 3)


def test_remembered_manifest_is_byte_equal_to_a_fresh_one():
    entries = [existing(data_file(name)) for name in "abc"]
    options = {"schema": SCHEMA, "spec": SPEC, "content": ManifestContent.DATA}

    def body(data):  # the sync marker is random
        return data[:-16].rsplit(data[-16:], 1)[-1]

    first = encode_manifest(entries, **options)
    again = encode_manifest(entries, **options)
    fresh = encode_manifest([replace(each) for each in entries], **options)
    assert body(first) == body(again) == body(fresh)
