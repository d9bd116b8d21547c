"""Metadata files carry a checksum: changed bytes are an error, never another table."""

import gzip
import json

import pytest
from pyiceberg.table.metadata import TableMetadataUtil

from tableformat.errors import CorruptDataError
from tableformat.spec.kept_text import KEPT_BYTES_MIN
from tableformat.spec.metadata_checksum import CHECKSUM_KEY
from tableformat.spec.metadata_json import (
    decode_metadata,
    encode_metadata,
    encode_metadata_file,
    metadata_from_json,
)
from tests.support.table_metadata import metadata_of

LOCATION = "memory://warehouse/t/metadata/v.metadata.json"
METADATA = metadata_of(2)
FILE = encode_metadata_file(METADATA, location=LOCATION)


def decode(data):
    return decode_metadata(data, location=LOCATION)


def test_file_of_this_metadata_never_changes():
    """On disk: files with this member exist."""
    assert encode_metadata(METADATA)[:-1] + b',"icefold.crc32":"c7f3ab33"}' == FILE


def test_checksum_is_no_part_of_the_table():
    assert decode(FILE) == METADATA
    assert CHECKSUM_KEY not in json.loads(encode_metadata(decode(FILE)))
    assert metadata_from_json(json.loads(FILE), location=LOCATION) == METADATA  # from a server
    assert encode_metadata_file(decode(FILE), location=LOCATION) == FILE


def test_every_flipped_bit_is_an_error_or_spoils_the_name_of_the_checksum():
    name = FILE.rindex(CHECKSUM_KEY.encode())
    for place in range(len(FILE)):
        for bit in range(8):
            data = bytearray(FILE)
            data[place] ^= 1 << bit
            try:
                found = decode(bytes(data))
            except CorruptDataError:
                continue
            assert name <= place < name + len(CHECKSUM_KEY)
            (unknown,) = found.model_extra
            assert found.model_copy(update={unknown: None}).snapshots == METADATA.snapshots
            assert found.schemas == METADATA.schemas
            assert found.properties == METADATA.properties


def test_long_table_has_the_checksum_of_all_its_bytes_each_time():
    metadata = metadata_of(600)
    data = encode_metadata_file(metadata, location=LOCATION)
    assert len(data) > 2 * KEPT_BYTES_MIN
    assert encode_metadata_file(metadata, location=LOCATION) == data
    assert decode(data) == metadata
    moved = metadata.model_copy(update={"location": "memory://elsewhere"})
    assert decode(encode_metadata_file(moved, location=LOCATION)) == moved


def test_wrong_checksum_is_an_error_that_says_what_to_do():
    changed = FILE.replace(b'"next-row-id":2', b'"next-row-id":3')
    with pytest.raises(CorruptDataError, match="does not match its checksum") as caught:
        decode(changed)
    assert caught.value.context["location"] == LOCATION
    by_hand = json.loads(changed)
    with pytest.raises(CorruptDataError, match=r"icefold\.crc32"):
        decode(json.dumps(by_hand, indent=2).encode())
    del by_hand[CHECKSUM_KEY]
    assert decode(json.dumps(by_hand, indent=2).encode()).next_row_id == METADATA.next_row_id + 10


@pytest.mark.parametrize("value", [None, 7, "", "c7f3ab3", ["c7f3ab33"], {}])
def test_checksum_that_is_none_is_an_error(value):
    with pytest.raises(CorruptDataError, match="does not match its checksum"):
        decode(json.dumps(json.loads(FILE) | {CHECKSUM_KEY: value}).encode())


def test_zipped_file_has_it_inside():
    zipped = encode_metadata_file(METADATA, location="x.gz.metadata.json")
    assert gzip.decompress(zipped) == FILE
    assert decode(zipped) == METADATA


def test_file_of_another_writer_is_read_without():
    assert decode(encode_metadata(METADATA)) == METADATA


def test_pyiceberg_reads_it():
    assert TableMetadataUtil.parse_raw(FILE.decode()).snapshots == METADATA.snapshots
