"""Table metadata: plain, zipped, and what else is read out of it."""

from __future__ import annotations

import gzip
import random
import zlib
from collections.abc import Sequence

from maintenance.cycle_history import read_history
from maintenance.settings import parse_config
from tableformat.errors import CorruptDataError, InvalidInputError, UnsupportedError
from tableformat.spec.constraints import immutable_columns, sequence_field_id
from tableformat.spec.metadata_json import decode_metadata, encode_metadata
from tableformat.spec.properties import dv_placement
from tableformat.spec.secondary_indexes import secondary_indexes
from tests.fuzz.mutate_bytes import BYTE_MUTATORS
from tests.fuzz.mutate_text import JSON_MUTATORS
from tests.fuzz.target import Accepted, Target

LOCATION = "memory://warehouse/t/metadata/v.metadata.json"
_GZIP = b"\x1f\x8b"


def _parse(data: bytes) -> None:
    metadata = decode_metadata(data, location=LOCATION)
    again = decode_metadata(encode_metadata(metadata), location=LOCATION)
    if again.snapshots != metadata.snapshots or again.properties != metadata.properties:
        raise Accepted("written again it is another table")
    read_history(metadata, "main")


def _parse_properties(data: bytes) -> None:
    metadata = decode_metadata(data, location=LOCATION)
    for read in (immutable_columns, sequence_field_id, secondary_indexes):
        read(metadata)
    parse_config(metadata.properties)
    dv_placement(metadata.properties)


def _zip(rng: random.Random, data: bytes, corpus: Sequence[bytes]) -> bytes:
    """Zipped, or plain if it was; at times damaged then, cut or with another member behind."""
    if data.startswith(_GZIP):
        try:
            return gzip.decompress(data)
        except (OSError, EOFError, zlib.error):
            return data
    zipped = gzip.compress(data, mtime=0)
    kind = rng.randrange(4)
    if kind == 0:
        return zipped + zipped
    return BYTE_MUTATORS[kind](rng, zipped, corpus) if kind < 3 else zipped


def _bomb(rng: random.Random, data: bytes, corpus: Sequence[bytes]) -> bytes:
    if rng.random() > 0.01:
        return _zip(rng, data, corpus)
    piece = rng.choice((b" ", b"[],", b"{},", b"[[[[0]]]],", b'{"a":{"a":0}},', b'"",', b"1000,"))
    size = rng.choice((1 << 20, 4 << 20, 8 << 20, 9 << 20))
    start = rng.choice((b'{"snapshots":[', b'{"format-version":3,"x":[', b"["))
    return gzip.compress(start + piece * (size // len(piece)) + b"0]}", mtime=0)


METADATA = Target(
    name="metadata",
    parse=_parse,
    mutators=(*JSON_MUTATORS, *JSON_MUTATORS, *BYTE_MUTATORS, _zip, _bomb),
    inputs=12_500,
)
TABLE_PROPERTIES = Target(
    name="table_properties",
    parse=_parse_properties,
    mutators=(*JSON_MUTATORS, *JSON_MUTATORS, *BYTE_MUTATORS),
    errors=(CorruptDataError, UnsupportedError, InvalidInputError),
    inputs=7_500,
)
