"""A batch of events in pieces."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from tableformat.cdc.events import EventBatch

SCHEMA = pa.schema([("value", pa.string())])


@settings(deadline=None)
@given(
    sizes=st.lists(st.integers(0, 9), max_size=12),
    most=st.integers(1, 30),
    skipped=st.integers(0, 10),
)
def test_pieces_are_as_large_as_they_may_be_however_the_events_came(sizes, most, skipped):
    chunks = [pa.table({"value": [f"{c}.{n}" for n in range(s)]}) for c, s in enumerate(sizes)]
    rows = pa.concat_tables([each.cast(SCHEMA) for each in chunks] or [SCHEMA.empty_table()])
    rows = rows.slice(skipped)
    pieces = EventBatch.split(rows, most)
    assert [text for each in pieces for text in each.required("value").to_pylist()] == (
        rows["value"].to_pylist()
    )
    assert [len(each) for each in pieces[:-1]] == [most] * (len(pieces) - 1)
    assert len(pieces) == max(-(-rows.num_rows // most), 1)
