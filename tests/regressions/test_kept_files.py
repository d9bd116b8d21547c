"""Tables, indexes, locks and checkpoints of earlier releases are opened and carried on.

The judge is a dict: what `tests/fixtures/kept/make.py` did, done again.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import tarfile
from pathlib import Path

import pyarrow as pa
import pytest

from lock import open_lock
from resolver import resolve
from resolver.index_check import verify
from tableformat import open_catalog
from tableformat.runtime import Runtime
from tableformat.spark.stream_writer import file_events
from tests.support.spark import spark  # noqa: F401

KEPT = Path(__file__).parents[1] / "fixtures" / "kept"
ROOT = Path("/tmp/icefold-kept")
ARCHIVES = sorted(KEPT.glob("*.tar.xz"))
# Debian 12's Python has no filters yet; newer ones want to be told one.
SAFELY = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}


@pytest.fixture(params=ARCHIVES, ids=lambda path: path.name.split(".")[0])
def catalog(request):
    """The catalog of an archive. Its folder's name is in the files: one process at a time."""
    if ROOT.exists() and ROOT.stat().st_uid != os.getuid():
        pytest.skip(f"{ROOT} belongs to another user")
    with ROOT.with_suffix(f".{os.getuid()}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        shutil.rmtree(ROOT, ignore_errors=True)
        ROOT.mkdir(mode=0o700)
        with tarfile.open(request.param) as tar:
            tar.extractall(ROOT, **SAFELY)
        yield open_catalog("local", warehouse=str(ROOT / "warehouse"))
        shutil.rmtree(ROOT)


def published():
    model = dict.fromkeys(range(200), "new")
    model.update(dict.fromkeys(range(0, 200, 10), "paid"))
    del model[1], model[11]
    model.update(dict.fromkeys(range(5, 205, 20), "sent"))
    return model


def with_the_waiting_batch():
    model = published() | dict.fromkeys([0, 5, 300], "late")
    del model[2], model[10]
    return model


def rows_of(table, branch="main"):
    found = table.refresh().scan(branch=branch).to_arrow()
    model = dict(zip(found["id"].to_pylist(), found["status"].to_pylist(), strict=True))
    assert len(model) == found.num_rows
    return model


def test_archives_hold_every_index_format_that_is_read():
    found = set()
    for archive in ARCHIVES:
        with tarfile.open(archive) as tar:
            names = tar.getnames()
        local = "runs" if any("/.icefold/" in n and n.endswith(".run") for n in names) else "shards"
        shared = "runs" if any("/indexes/" in n and n.endswith(".run") for n in names) else "shards"
        found |= {("local", local), ("shared", shared)}
    assert found == {(place, kind) for place in ("local", "shared") for kind in ("runs", "shards")}


@pytest.mark.parametrize(
    ("name", "index"),
    [
        ("shop.orders", {}),
        ("shop.shared", {"index_location": f"file://{ROOT}/warehouse/indexes"}),
    ],
    ids=["local", "shared"],
)
def test_backlog_is_resolved_on_the_kept_index(catalog, name, index):
    table = catalog.load_table(name)
    assert rows_of(table) == published()
    report = resolve(table, **index)
    assert (report.staged_snapshots, report.index) == (1, "current")
    assert rows_of(table) == with_the_waiting_batch()
    changed = {"id": [300, 3], "status": ["again", "again"]}
    table.stage(upserts=pa.table(changed, schema=table.scan().to_arrow().schema))
    assert resolve(table, **index).index == "current"
    assert rows_of(table) == with_the_waiting_batch() | {300: "again", 3: "again"}


def test_kept_index_equals_a_full_scan(catalog):
    check = verify(catalog.load_table("shop.orders"))
    assert check.snapshots_behind == 0
    assert check.report.is_sound


@pytest.mark.parametrize(
    "url", [f"sqlite:///{ROOT}/locks/locks.db", f"file://{ROOT}/locks/records"]
)
def test_tokens_go_on_from_the_kept_lock(catalog, url):
    runtime = Runtime()
    manager = open_lock(url, clock=runtime.clock, ids=runtime.ids)
    with manager.hold("shop.orders", task="resolve", timeout_ms=1_000) as lease:
        assert lease.token == 4
    manager.close()


@pytest.mark.spark
@pytest.mark.slow
def test_stream_goes_on_from_the_kept_checkpoint(catalog, spark):  # noqa: F811
    table = catalog.load_table("shop.streamed")
    assert rows_of(table, "staging") == dict.fromkeys(range(5), "first")
    more = {"before": None, "after": {"id": 3, "status": "second"}, "op": "u"}
    (ROOT / "events" / "2.jsonl").write_text(json.dumps(more) + "\n")
    table.write_stream(
        file_events(spark, str(ROOT / "events")),
        checkpoint=str(ROOT / "checkpoint"),
        trigger={"availableNow": True},
    ).awaitTermination()
    assert rows_of(table, "staging") == dict.fromkeys(range(5), "first") | {3: "second"}
    assert resolve(table).staged_snapshots == 2
    assert rows_of(table)[3] == "second"
