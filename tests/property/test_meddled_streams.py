"""A stream runs while other tools act on its tables: each table is the stream's fold at the end.

No cut that is named shows anything but one state of the source, whatever was done to its tables.
"""

from __future__ import annotations

import pytest

from tests.support.meddled_streams import run


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "count"), [(108, 4), pytest.param(1000, 300, marks=pytest.mark.long)]
)
def test_stream_beside_meddlers_ends_as_its_source_and_tears_no_cut(first, count) -> None:
    for seed in range(first, first + count):
        run(seed)
