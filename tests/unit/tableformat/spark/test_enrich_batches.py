"""What a task of the lookup join does with its batches: order, bounds, retries. No JVM."""

from __future__ import annotations

import threading
import time

import numpy as np
import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from tableformat.errors import CorruptDataError, NotFoundError, StoreUnavailableError
from tableformat.lookup.result import LookupResult, LookupSource
from tableformat.spark import enrich

BATCHES, CONCURRENCY = 20, 3


class Squares:
    """A lookup that knows the square of every key; `before` runs first, with the keys."""

    def __init__(self, before):
        self.before = before
        self.running = self.most = self.calls = 0
        self.lock = threading.Lock()

    def find(self, keys, columns, *, index, head_age_max_ms):
        with self.lock:
            self.calls += 1
            self.running += 1
            self.most = max(self.most, self.running)
        try:
            self.before(keys["id"].to_pylist())
        finally:
            with self.lock:
                self.running -= 1
        rows = pa.table({"square": pa.array([i * i for i in keys["id"].to_pylist()], pa.int64())})
        count = rows.num_rows
        return LookupResult(
            rows=rows.select(columns), key=np.arange(count), key_count=count,
            source=LookupSource.INDEX, reason=None, snapshot_id=1,
        )  # fmt: skip


def join(**changes):
    values = {
        "identifier": ("t", "squares"), "pinned": None, "store": None, "catalog": ("local", {}),
        "index": None, "on": {"id": "id"}, "names": ("square",), "how": "left",
        "schema": Schema(NestedField(1, "square", LongType(), required=False)),
        "concurrency": CONCURRENCY, "retries": 2, "head_age_max_ms": 0,
    }  # fmt: skip
    return enrich._Join(**{**values, **changes})


def batches(pulled=None, count=BATCHES):
    for number in range(count):
        if pulled is not None:
            pulled.append(number)
        yield pa.record_batch({"id": [2 * number, 2 * number + 1]})


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch):
    monkeypatch.setattr(enrich, "_WAIT_S", (0.001, 0.01))


def test_rows_keep_their_order_whichever_lookup_ends_first():
    lookup = Squares(lambda ids: time.sleep(0.002 * (ids[0] % 7)))
    found = pa.Table.from_batches(enrich.join_batches(batches(), lookup, join()))
    assert found["id"].to_pylist() == list(range(2 * BATCHES))
    assert found["square"].to_pylist() == [i * i for i in range(2 * BATCHES)]


def test_lookups_run_side_by_side_and_no_more_of_them_than_told():
    meeting = threading.Barrier(CONCURRENCY, timeout=20)

    def meet(ids):
        if ids[0] < 2 * CONCURRENCY:
            meeting.wait()  # passes only when that many run at once

    lookup, pulled = Squares(meet), []
    stream = enrich.join_batches(batches(pulled), lookup, join())
    for number, _ in enumerate(stream):
        assert len(pulled) <= number + CONCURRENCY, "batches ahead are memory"
    assert lookup.most == CONCURRENCY


def test_one_at_a_time_is_one_at_a_time():
    lookup = Squares(lambda _: time.sleep(0.001))
    assert len(list(enrich.join_batches(batches(), lookup, join(concurrency=1)))) == BATCHES
    assert lookup.most == 1


def test_a_store_that_is_away_for_a_moment_is_asked_again():
    failures = iter([StoreUnavailableError("away"), StoreUnavailableError("away")])

    def fail(ids):
        error = next(failures, None) if ids[0] == 4 else None
        if error is not None:
            raise error

    lookup = Squares(fail)
    found = pa.Table.from_batches(enrich.join_batches(batches(), lookup, join()))
    assert found["id"].to_pylist() == list(range(2 * BATCHES))
    assert lookup.calls == BATCHES + 2


def raising(error):
    def fail(ids):
        if ids[0] == 4:
            raise error

    return fail


def test_a_store_that_stays_away_fails_the_task_with_one_line():
    lookup = Squares(raising(StoreUnavailableError("store did not answer", location="s3://b/k")))
    with pytest.raises(StoreUnavailableError) as caught:
        list(enrich.join_batches(batches(count=3), lookup, join()))
    assert str(caught.value) == (
        "store did not answer; location=s3://b/k, lookups_tried=3, table=t.squares"
    )
    assert lookup.calls == 2 + 3


@pytest.mark.parametrize("kind", [CorruptDataError, NotFoundError, ValueError])
def test_what_is_final_is_not_tried_again_and_ends_the_task(kind):
    lookup = Squares(raising(kind("no")))
    stream = enrich.join_batches(batches(), lookup, join())
    assert [next(stream)["id"].to_pylist() for _ in range(2)] == [[0, 1], [2, 3]]
    with pytest.raises(kind):
        next(stream)
    assert lookup.calls <= 2 + CONCURRENCY + 1


def test_a_task_that_stops_early_leaves_no_lookups_waiting():
    lookup = Squares(lambda _: time.sleep(0.01))
    stream = enrich.join_batches(batches(), lookup, join())
    next(stream)
    stream.close()
    begun = lookup.calls
    time.sleep(0.1)
    deadline = time.monotonic() + 30
    while lookup.running:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert begun <= lookup.calls <= CONCURRENCY
