"""Rows that were added since the index, found in memory: a dict says which."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from pyiceberg.types import LongType, StringType

from resolver import resolve
from resolver.index.base import IndexedFile
from resolver.index.follow import RowsToPut
from resolver.keys import EncodedKeys, KeySchema, encode_keys
from resolver.keys.schema import KeyField
from resolver.lookup import _AddedRows
from tableformat import open_catalog

FILES = ("a.parquet", "b.parquet")


def sources(column, files):
    def read(values):
        positions = pa.array(np.arange(len(values)))
        yield pa.record_batch([pa.array(values, column), positions], names=["id", "_pos"])

    return [
        RowsToPut(IndexedFile(file_path=path, spec_id=0), lambda values=values: read(values))
        for path, values in files.items()
    ]


@pytest.mark.parametrize("collide", [False, True], ids=["hashes", "equal-hashes"])
@pytest.mark.parametrize("kind", ["long", "string"])
def test_added_rows_are_those_of_a_dict_whatever_the_hashes(monkeypatch, kind, collide):
    if collide:
        monkeypatch.setattr(EncodedKeys, "hash64", lambda self: np.zeros(len(self), np.uint64))
    random = np.random.default_rng(7)
    column, iceberg = (pa.int64(), LongType()) if kind == "long" else (pa.string(), StringType())
    make = int if kind == "long" else (lambda number: "k" * (int(number) % 5) + str(number))
    files = {path: [make(n) for n in random.integers(0, 40, 30)] for path in FILES}
    key = KeySchema((KeyField(field_id=1, path=("id",), field_type=iceberg),))
    added = _AddedRows.read(sources(column, files), key)
    wanted = [make(n) for n in range(60)]
    found = added.lookup(encode_keys([pa.array(wanted, column)], key))
    rows = {
        (wanted[ordinal], found.files[file].file_path, position)
        for ordinal, file, position in zip(
            found.key_ordinal.tolist(), found.file_id.tolist(), found.position.tolist(), strict=True
        )
    }
    expected = {
        (value, path, at) for path, values in files.items() for at, value in enumerate(values)
    }
    assert rows == expected
    assert len(found) == len(expected)
    assert found.key_ordinal.tolist() == sorted(found.key_ordinal.tolist())


def test_no_added_rows_match_nothing():
    key = KeySchema((KeyField(field_id=1, path=("id",), field_type=LongType()),))
    added = _AddedRows.read([], key)
    assert len(added.lookup(encode_keys([pa.array([1, 2])], key))) == 0


def test_lookup_goes_on_where_the_table_has_got_another_partition_spec(tmp_path):
    """The rows that are followed are in files of a spec that the last lookup did not know."""
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("region", pa.string())])
    catalog = open_catalog("local", warehouse=str(tmp_path))
    table = catalog.create_table("t.rows", schema, primary_key=["id"])
    table.stage(pa.table([[1], ["eu"]], schema=schema))
    resolve(table)

    def append(key):
        table.refresh().append(pa.table([[key], ["us"]], schema=schema))
        return table.refresh().lookup({"id": key}).to_pylist()

    assert append(2) == [{"id": 2, "region": "us"}]
    table.update_partitioning(lambda update: update.add_identity("region"))
    assert append(3) == [{"id": 3, "region": "us"}]
