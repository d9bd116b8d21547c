import random
from copy import deepcopy
from dataclasses import replace

import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.transforms import IdentityTransform

from tableformat.codec.avro import manifest_entries
from tableformat.codec.avro.container import decode_container
from tableformat.codec.avro.manifest_entries import EncodedManifest, decode_manifest
from tableformat.codec.avro.values import MalformedAvroError
from tableformat.codec.avro.vector_blocks import VectorBlocks
from tableformat.errors import CorruptDataError
from tableformat.spec.manifest_file import ManifestContent
from tests.support.manifests import (
    added,
    deleted,
    deletion_vector,
    equality_delete,
    existing,
    full_data_file,
    written_manifest,
)

BY_NAME = PartitionSpec(PartitionField(2, 1001, IdentityTransform(), "name"), spec_id=3)


def vector(name="a", **changes):
    return deletion_vector(name, **({"lower_bounds": None, "upper_bounds": None} | changes))


def position_delete(name="pos", **changes):
    own = {"file_path": f"memory://t/{name}.parquet", "file_format": "PARQUET"}
    return vector(name, **(own | changes))


def written(entries, **options):
    return written_manifest(entries, content=ManifestContent.DELETES, **options)


def others_of(data, manifest):
    """What is no vector, by decoding all of it."""
    entries = decode_manifest(data, manifest)
    return tuple(e for e in entries if e.is_live and e.data_file.file_format != "PUFFIN")


@pytest.fixture
def decoded(monkeypatch):
    """How many entries were decoded so far."""
    count = []
    inherit = manifest_entries._inherit
    monkeypatch.setattr(
        manifest_entries, "_inherit", lambda *given: count.append(1) or inherit(*given)
    )
    return count


def test_vectors_are_told_without_decoding_them(decoded):
    entries = [added(vector(f"{number:04}")) for number in range(700)]

    assert EncodedManifest(*written(entries)).live_delete_files == ()
    assert len(decoded) == 1, "the first, for the lengths of its strings"


def test_names_of_other_lengths_are_learned(decoded):
    names = [f"p={number % 12}/{'x' * (number % 12)}" for number in range(2000)]
    entries = [existing(vector(name, partition=(name,))) for name in names]

    assert EncodedManifest(*written(entries, spec=BY_NAME)).live_delete_files == ()
    assert len(decoded) < 800, "the blocks behind the first are told"


@pytest.mark.parametrize(
    "other",
    [
        position_delete(),
        position_delete("aa\x0cPUFFIN\x0cPUFFIN"),
        position_delete(file_format="puffi"),
        vector("0000", file_format="PARQUET"),  # as long as the others
        equality_delete(),
        vector(lower_bounds={1: b"x"}),
    ],
)
def test_files_among_vectors_are_found_wherever_they_stand(other):
    for at, status in ((0, added), (256, existing), (279, deleted), (279, added)):
        entries = [added(vector(f"{number:04}")) for number in range(280)]
        entries[at] = status(other)
        data, manifest = written(entries)

        found = EncodedManifest(data, manifest).live_delete_files

        assert found == others_of(data, manifest)


def test_histories_at_random_give_what_decoding_gives():
    chance = random.Random(24)
    kinds = [position_delete, equality_delete, full_data_file]
    for _ in range(20):
        entries = []
        for number in range(chance.choice([1, 30, 300, 600])):
            file = vector("v" * chance.choice([3, 3, 3, 9]) + str(number), partition=("p",))
            if chance.random() < 0.003:
                file = kinds[chance.randrange(2)](str(number), partition=(None,))
            entries.append(chance.choice([added, existing, existing])(file))
        data, manifest = written(entries, spec=BY_NAME)

        assert EncodedManifest(data, manifest).live_delete_files == others_of(data, manifest)


def test_a_block_of_any_bytes_is_taken_for_vectors_only_if_it_decodes_to_vectors():
    """Flips, cuts and splices; the decoder, which reads value by value, is the oracle."""
    data, manifest = written([added(vector(f"{n:02}", partition=("p",))) for n in range(4)],
                             spec=BY_NAME)  # fmt: skip
    other, _ = written([added(position_delete("q", partition=("p",)))], spec=BY_NAME)
    container = decode_container(data, location="m")
    block = container.blocks[0].decompressed()
    stray = decode_container(other, location="m").blocks[0].decompressed()
    blocks = VectorBlocks(container.schema)
    blocks.learn(decode_manifest(data, manifest))
    assert blocks.only(block)
    assert not blocks.only(stray)
    variants = [
        *(block[:at] + bytes([block[at] ^ 1 << bit]) + block[at + 1 :]
          for at in range(len(block)) for bit in range(8)),
        *(block[:at] for at in range(1, len(block))),
        *(block[:at] + stray + block[at:] for at in range(len(block))),
        *(block[:at] + block[at + 1 :] for at in range(len(block))),
    ]  # fmt: skip

    taken = [each for each in variants if blocks.only(each)]

    assert taken, "numbers and names may be others"
    for each in taken:
        assert all(entry.data_file.is_dv and entry.is_live for entry in _decoded(
            container, manifest, each))  # fmt: skip


def _decoded(container, manifest, data):
    """Entries up to where the bytes end, whatever count the block would give."""

    class Block:
        record_count = 1000

    Block.decompressed = staticmethod(lambda: data)
    entries = []
    try:
        for entry in manifest_entries._decode_entries(container, manifest, [Block], None):
            entries.append(entry)
    except IndexError:
        return entries  # at the end
    except (MalformedAvroError, UnicodeDecodeError):
        return []  # noticed by whoever looks
    raise AssertionError


@pytest.mark.parametrize("field", ["status", "content", "file_format", "referenced_data_file"])
def test_a_schema_that_lacks_what_makes_a_vector_is_decoded(field):
    data, manifest = written([added(vector())])
    schema = deepcopy(decode_container(data, location="m").schema)
    record = schema["fields"][-1]["type"]
    for each in (schema, record):
        each["fields"] = [known for known in each["fields"] if known["name"] != field]
    blocks = VectorBlocks(schema)
    blocks.learn(decode_manifest(data, manifest))

    assert not blocks.only(decode_container(data, location="m").blocks[0].decompressed())
    assert not blocks.only(b"")


def test_a_manifest_with_other_counts_than_its_list_is_refused():
    data, manifest = written([added(vector()), added(vector("b"))])

    with pytest.raises(CorruptDataError, match="2 entries, the manifest list says 3"):
        EncodedManifest(data, replace(manifest, added_files_count=3)).live_delete_files  # noqa: B018
