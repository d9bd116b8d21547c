"""A table on a store that fails before or after what it is asked for (I1, I10, I11, I23, G9).

Memory fails at once; S3 answers 500, 503 and 409, loses answers and cuts bodies, and the store
tries again. What was done is in the table once, what failed is not, what is unknown is or is not,
and no row is anywhere that was not asked for.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest

import tableformat as tf
from maintenance.tasks.compact import compact
from maintenance.tasks.options import CompactOptions
from resolver import resolve
from tableformat import Table, TableCatalog
from tableformat.commit.expire import apply_expiry
from tableformat.commit.expiry_plan import ExpiryPolicy
from tableformat.environment import Environment
from tableformat.errors import CommitUnknownError, StoreUnavailableError, TableError
from tableformat.runtime import Runtime
from tableformat.store import bucket_objects
from tableformat.store.base import ObjectInfo
from tests.support.goals import goal
from tests.support.memory_catalog import MemoryCatalog
from tests.support.memory_store import MemoryObjectStore, _MemoryOutput
from tests.support.table_checker import check_table

SCHEMA = pa.schema([("id", pa.int64()), ("amount", pa.int64())])
NAME = "t.rows"
PROPERTIES = {
    f"commit.{what}.{limit}": "1"
    for what in ("retry", "status-check")
    for limit in ("min-wait-ms", "max-wait-ms")
}


class FailingStore(MemoryObjectStore):
    """Fails at a rate, before or after the effect."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self.rng = rng
        self.rate = 0.0
        self.operations = 0
        self.faults: Counter[str] = Counter()

    def strike(self, operation: str) -> None:
        self.operations += not operation.endswith("done")
        if self.rng.random() < self.rate:
            self.faults[operation] += 1
            raise StoreUnavailableError("injected", operation=operation)

    def get(self, location: str, **options: Any) -> bytes:
        self.strike("get")
        return super().get(location, **options)

    def size_bytes(self, location: str) -> int:
        self.strike("size")
        return super().size_bytes(location)

    def put(self, location: str, data: bytes | memoryview) -> None:
        self.strike("put")
        super().put(location, data)
        self.strike("put done")

    def open_input(self, location: str) -> pa.NativeFile:
        self.strike("open")
        return super().open_input(location)

    def open_output(self, location: str) -> _MemoryOutput:
        self.strike("create")
        return super().open_output(location)

    def list_prefix(self, prefix: str) -> Iterator[ObjectInfo]:
        self.strike("list")
        return super().list_prefix(prefix)

    def delete(self, locations: Sequence[str]) -> None:
        self.strike("delete")
        super().delete(locations)
        self.strike("delete done")


class Workload:
    """Operations on one table, and the rows that it must hold."""

    def __init__(self, table: Table, rng: random.Random) -> None:
        self.table = table
        self.rng = rng
        self.rows: dict[int, int] = {}
        self.staged: list[tuple[dict[int, int], int]] = []
        self.serial = 0
        self.outcomes: Counter[str] = Counter()

    def run(self, between: Callable[[bool], None]) -> None:
        """One operation; `between` switches faults on and off."""
        kind = self.rng.choice(["append", "delete", "update", "stage", "resolve", "compact",
                                "expire", "read"])  # fmt: skip
        wanted, act = getattr(self, f"_{kind}")()
        between(True)
        try:
            act()
            outcome = "ok"
        except CommitUnknownError:
            outcome = "unknown"
        except TableError:
            outcome = "failed"
        between(False)
        self.outcomes[f"{kind} {outcome}"] += 1
        self.table.refresh()
        found = self.published()
        staged = kind == "stage" and self._has_staged()
        if outcome == "ok":
            assert found == wanted, kind
            assert kind != "stage" or staged
        elif outcome == "failed" and kind != "resolve":  # which goes on after its publish
            assert found == self.rows, kind
            assert not staged
        else:
            assert found in (self.rows, wanted), kind
        if kind == "resolve" and found == wanted:
            self.staged.clear()
        if staged:
            self.staged.append(self.pending)
        self.rows = found

    def published(self) -> dict[int, int]:
        rows = self.table.scan().to_arrow().to_pylist()
        found = {row["id"]: row["amount"] for row in rows}
        assert len(found) == len(rows), "a key twice"
        return found

    def _has_staged(self) -> bool:
        if self.table.state.head("staging") is None:
            return False
        rows = self.table.scan(branch="staging").to_arrow().to_pylist()
        return self.pending[0].items() <= {row["id"]: row["amount"] for row in rows}.items()

    def _fresh(self, key: int) -> dict[int, int]:
        self.serial += 1
        return {key: self.serial}

    def _append(self) -> tuple[dict[int, int], Callable[[], object]]:
        rows = self._fresh(1_000 + self.serial)
        return self.rows | rows, lambda: self.table.append(as_table(rows))

    def _stage(self) -> tuple[dict[int, int], Callable[[], object]]:
        self.pending = (self._fresh(self.rng.randrange(10)), self.rng.randrange(10, 20))
        gone = pa.table({"id": pa.array([self.pending[1]], pa.int64())})
        return self.rows, lambda: self.table.stage(upserts=as_table(self.pending[0]), deletes=gone)

    def _resolve(self) -> tuple[dict[int, int], Callable[[], object]]:
        wanted = dict(self.rows)
        for rows, gone in self.staged:
            wanted.pop(gone, None)
            wanted |= rows
        if self.table.state.head("staging") is None:
            return wanted, lambda: None
        return wanted, lambda: resolve(self.table, engine="local")

    def _delete(self) -> tuple[dict[int, int], Callable[[], object]]:
        low = self.rng.randrange(1_000 + self.serial)
        wanted = {key: amount for key, amount in self.rows.items() if not low <= key < low + 3}
        return wanted, lambda: self.table.delete(f"id >= {low} AND id < {low + 3}")

    def _update(self) -> tuple[dict[int, int], Callable[[], object]]:
        key = self.rng.randrange(20)
        wanted = {k: amount + 1_000 if k < key else amount for k, amount in self.rows.items()}
        change = {"amount": "amount + 1000"}
        return wanted, lambda: self.table.update(change, f"id < {key}")

    def _compact(self) -> tuple[dict[int, int], Callable[[], object]]:
        def act() -> None:
            report = compact(self.table, CompactOptions(rewrite_all=True))
            if report.errors:
                raise StoreUnavailableError("; ".join(report.errors))

        return self.rows, act

    def _expire(self) -> tuple[dict[int, int], Callable[[], object]]:
        policy = ExpiryPolicy(max_snapshot_age_ms=0, min_snapshots_to_keep=2)
        environment, identifier = self.table.environment, self.table.identifier
        return self.rows, lambda: apply_expiry(environment, identifier, policy, fence=None)

    def _read(self) -> tuple[dict[int, int], Callable[[], object]]:
        def act() -> None:
            assert self.published() == self.rows

        return self.rows, act

    def finish(self) -> None:
        """Without faults: nothing is left behind, and a foreign checker agrees."""
        wanted, act = self._resolve()
        act()
        assert self.published() == wanted
        check_table(self.table.environment.store.get, self.table.refresh().metadata_location)


def as_table(rows: dict[int, int]) -> pa.Table:
    return pa.table({"id": list(rows), "amount": list(rows.values())}, schema=SCHEMA)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_table_on_a_failing_store_holds_what_was_done(seed: int, tmp_path) -> None:
    rng = random.Random(seed)
    store = FailingStore(rng)
    properties = {"lock-url": f"memory:{seed}-{tmp_path}", "index-directory": str(tmp_path)}
    catalog = MemoryCatalog(store, properties=properties)
    environment = Environment(catalog, store, Runtime())
    table = TableCatalog(environment).create_table(
        NAME, SCHEMA, primary_key=["id"], properties=PROPERTIES
    )
    workload = Workload(table, rng)

    def switch(on: bool) -> None:
        store.rate = rng.choice([0.0, 0.02, 0.15]) if on else 0.0

    for _ in range(80):
        workload.run(switch)
    workload.finish()
    assert store.faults.total() > 5, store.faults
    assert sum(v for k, v in workload.outcomes.items() if k.endswith("failed")) > 3
    goal("G9", operations=store.operations)


@pytest.mark.slow
def test_table_on_s3_under_faults_holds_what_was_done(tmp_path, monkeypatch) -> None:
    from tests.support.s3_server import Fault, fresh_bucket, s3_properties, s3_server

    monkeypatch.setattr(bucket_objects, "_WAIT_S", (0.001, 0.01))
    server, rng = s3_server(), random.Random(3)
    properties = s3_properties() | {
        "warehouse": f"s3://{fresh_bucket()}/wh",
        "uri": f"sqlite:///{tmp_path}/catalog.db",
        "lock-url": f"memory:s3-{tmp_path}",
        "index-directory": str(tmp_path / "index"),
        "type": "sql",
    }
    catalog = tf.open_catalog("s3", **properties)
    table = catalog.create_table(NAME, SCHEMA, primary_key=["id"], properties=PROPERTIES)
    workload = Workload(table, rng)
    answers = ("500 Internal Error", "503 Slow Down", "409 Conditional Request Conflict")
    injected = 0

    def switch(on: bool) -> None:
        nonlocal injected
        server.faults.clear()
        for _ in range(rng.randrange(3) if on else 0):
            method = rng.choice(["GET", "PUT", "PUT", "HEAD", "POST"])
            kind = rng.choice(
                ["before", "after", "cut"] if method == "GET" else ["before", "after"]
            )
            status = rng.choice(answers if method == "PUT" else answers[:2])
            server.faults.append(Fault(method, kind, status, times=rng.choice([1, 2, 100])))
            injected += 1

    server.requests.clear()
    for _ in range(25):
        workload.run(switch)
    switch(on=False)
    workload.finish()
    assert injected > 10
    goal("G9", operations=len(server.requests))
