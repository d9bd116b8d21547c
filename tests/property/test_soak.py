"""Two hundred cycles over a million keys: nothing grows but what was asked for (I27, G19)."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pyarrow as pa
import pytest

from maintenance.tasks.expire import expire
from maintenance.tasks.options import ExpireOptions
from resolver import resolve
from resolver.index_check import verify
from tableformat.commit.expiry_plan import ExpiryPolicy
from tests.support.goals import goal
from tests.support.memory_tables import memory_catalog
from tests.support.table_checker import check_snapshot, read_metadata

SCHEMA = pa.schema([("id", pa.int64()), ("amount", pa.int64())])
KEYS = 1_000_000
CYCLES = 200
BATCH = 50
WARM = 40  # cycles until caches and pools are filled
MANIFESTS_MAX = 60  # of each content a few more than commit.manifest.min-count-to-merge
GROWTH_MAX_BYTES = 96 << 20


def rows(keys: list[int], amount: int) -> pa.Table:
    return pa.table({"id": keys, "amount": [amount] * len(keys)}, schema=SCHEMA)


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def open_handles() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.slow
def test_two_hundred_cycles_over_a_million_keys_stay_within_budget(tmp_path: Path) -> None:
    rng = random.Random(1)
    table = memory_catalog(str(tmp_path)).create_table("t.rows", SCHEMA, primary_key=["id"])
    table.append(pa.table({"id": range(KEYS), "amount": [0] * KEYS}, schema=SCHEMA))
    model = dict.fromkeys(range(KEYS), 0)
    policy = ExpiryPolicy(max_snapshot_age_ms=0, min_snapshots_to_keep=3)
    warm = (0, 0)
    for cycle in range(1, CYCLES + 1):
        changed = rng.sample(range(KEYS + 100), BATCH)
        gone = rng.sample(range(KEYS), 5)
        keys = pa.table({"id": pa.array(gone, pa.int64())})
        table.stage(upserts=rows(changed, cycle), deletes=keys)
        for key in gone:
            model.pop(key, None)
        model |= dict.fromkeys(changed, cycle)
        report = resolve(table)
        assert report.index == ("built" if cycle == 1 else "current")
        if cycle % 20 == 0:
            expire(table, ExpireOptions(policy=policy))
        if cycle == WARM:
            warm = (resident_bytes(), open_handles())
    assert resident_bytes() - warm[0] < GROWTH_MAX_BYTES
    assert open_handles() <= warm[1] + 4
    check_objects(table)
    found = table.scan().to_arrow()
    assert dict(zip(*(column.to_pylist() for column in found.columns), strict=True)) == model
    assert verify(table).report.is_sound
    goal("G19", cycles=CYCLES, keys=KEYS)


def check_objects(table) -> None:
    """Few manifests, and vectors no larger than what they delete."""
    read = table.environment.store.get
    metadata = read_metadata(read, table.refresh().metadata_location)
    head = metadata["refs"]["main"]["snapshot-id"]
    [snapshot] = [each for each in metadata["snapshots"] if each["snapshot-id"] == head]
    checked = check_snapshot(read, metadata, snapshot)
    assert len(checked.manifests) < MANIFESTS_MAX
    vectors = [file for file in checked.live if file.offset is not None]
    assert sum(file.size for file in vectors) < 100 * len(vectors) + 8 * CYCLES * (BATCH + 5)
    assert len(metadata["snapshots"]) < 100
