"""Parquet data files, damaged: an error, or the rows that were written."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC

from tableformat.codec.parquet.reader import read_data_file
from tableformat.codec.parquet.rows import ParquetRows
from tableformat.codec.parquet.thrift_compact import decode_struct, encode_struct
from tableformat.errors import CorruptDataError
from tableformat.spec.data_file import DataFile, EntryStatus, FileContent, ManifestEntry
from tableformat.table_definition import define_schema
from tests.fuzz.mutate_bytes import BYTE_MUTATORS, flip_bit, put_integer, put_varint, set_bytes
from tests.fuzz.target import CORPUS, Accepted, Target
from tests.support.memory_store import MemoryObjectStore

ROWS = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("name", pa.string()),
        pa.field("price", pa.decimal128(10, 2)),
        pa.field("at", pa.timestamp("us", tz="UTC")),
        pa.field("tags", pa.list_(pa.string())),
    ]
)
SCHEMA = define_schema(ROWS, ["id"])
LOCATION = "memory://warehouse/t/data/0.parquet"
RECORD_COUNT = 40
_SOME_ROWS = np.array([0, 1, 17, 39])
_MAGIC = b"PAR1"


def _entry(size_bytes: int) -> DataFile:
    return DataFile(
        content=FileContent.DATA,
        file_path=LOCATION,
        file_format="PARQUET",
        spec_id=0,
        partition=(),
        record_count=RECORD_COUNT,
        file_size_in_bytes=size_bytes,
    )


def _read_all(data: bytes) -> pa.Table:
    store = MemoryObjectStore()
    store.put(LOCATION, data)
    spec = UNPARTITIONED_PARTITION_SPEC
    batches = read_data_file(
        store, _entry(len(data)), schema=SCHEMA, spec=spec, row_group_filter=lambda _: True
    )
    return pa.Table.from_batches(list(batches))


def _read_some(data: bytes) -> pa.RecordBatch:
    """As lookups do: by the page index, with an own decoder of footers and page headers."""
    store = MemoryObjectStore()
    store.put(LOCATION, data)
    entry = ManifestEntry(
        status=EntryStatus.ADDED,
        snapshot_id=1,
        sequence_number=1,
        file_sequence_number=1,
        data_file=_entry(len(data)),
    )
    rows = ParquetRows(store)
    try:
        return rows.read(entry, _SOME_ROWS, schema=SCHEMA, spec=UNPARTITIONED_PARTITION_SPEC)
    finally:
        rows.close()


@lru_cache
def _written() -> list[pa.Table]:
    paths = sorted(Path(CORPUS / "parquet").glob("written-*"))
    return [_read_all(path.read_bytes()) for path in paths]


def _parse(data: bytes) -> None:
    found = _read_all(data)
    found.validate(full=True)
    if not any(found.equals(each) for each in _written()):
        raise Accepted("rows that nobody wrote")


def _parse_rows(data: bytes) -> None:
    found = pa.Table.from_batches([_read_some(data)])
    found.validate(full=True)
    if not any(found.equals(each.take(pa.array(_SOME_ROWS))) for each in _written()):
        raise Accepted("rows that nobody wrote")


def _footer(data: bytes) -> tuple[bytes, bytes] | None:
    size = int.from_bytes(data[-8:-4], "little")
    if data[-4:] != _MAGIC or size > len(data) - 12:
        return None
    return data[: len(data) - 8 - size], data[len(data) - 8 - size : -8]


def _in_footer(rng: random.Random, data: bytes, corpus: Sequence[bytes]) -> bytes:
    parts = _footer(data)
    if parts is None:
        return flip_bit(rng, data, corpus)
    footer = rng.choice((flip_bit, set_bytes, put_integer, put_varint))(rng, parts[1], corpus)
    return parts[0] + footer + len(footer).to_bytes(4, "little") + _MAGIC


def _parse_thrift(data: bytes) -> None:
    struct, end = decode_struct(data)
    if not 0 < end <= len(data):
        raise Accepted("it ends outside the bytes")
    if decode_struct(encode_struct(struct))[0] != struct:
        raise Accepted("written again it is another struct")


PARQUET = Target(
    name="parquet",
    parse=_parse,
    mutators=(flip_bit, *BYTE_MUTATORS, _in_footer, _in_footer, _in_footer),
    setup=_written,
    inputs=750,
)
PARQUET_ROWS = Target(
    name="parquet_rows",
    parse=_parse_rows,
    mutators=PARQUET.mutators,
    corpus_of=PARQUET.name,
    setup=_written,
    inputs=750,
)
THRIFT = Target(
    name="thrift",
    parse=_parse_thrift,
    mutators=BYTE_MUTATORS,
    errors=(CorruptDataError,),
    inputs=20_000,
)
