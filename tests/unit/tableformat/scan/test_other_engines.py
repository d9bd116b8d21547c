"""Random mixes of deletes, most of which icefold itself would not write, read by iceberg-rust.

DuckDB 1.5.5 is no oracle here: it drops live rows with a NULL key as soon as an equality delete
reaches their file, and ends with internal errors on NULL partition values.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from datafusion import SessionContext
from pyiceberg_core.datafusion import IcebergDataFusionTable

from tableformat.scan.plan import plan_scan
from tableformat.scan.reader import to_table
from tableformat.spec.metadata_json import encode_metadata
from tableformat.store.arrow_store import ArrowObjectStore
from tableformat.store.locations import AllowedLocations
from tests.support.random_tables import random_table
from tests.support.scan_tables import HandMadeTable


@pytest.mark.interop
@pytest.mark.parametrize("seed", range(30))
def test_random_deletes_read_the_same_in_iceberg_rust(tmp_path: Path, seed: int) -> None:
    location = tmp_path.as_uri()
    store = ArrowObjectStore({}, AllowedLocations([location]))
    table = random_table(seed, lambda *args: HandMadeTable(*args, store=store, location=location))
    state = table.state()
    ours = to_table(table.environment(), plan_scan(table.environment(), state))
    metadata = f"{location}/metadata/00001-x.metadata.json"
    store.put(metadata, encode_metadata(state.metadata))
    context = SessionContext()
    context.register_table("t", IcebergDataFusionTable(["db", "t"], metadata, {}))
    theirs = context.sql("SELECT id, region, amount FROM t").to_arrow_table()
    assert rows_of(ours) == rows_of(theirs)
    assert ours.num_rows == len(table.live_rows())


def rows_of(table) -> Counter[tuple]:
    return Counter(tuple(row.values()) for row in table.to_pylist())
