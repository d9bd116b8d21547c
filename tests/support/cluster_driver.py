"""The driver of the cluster test: `python -m tests.support.cluster_driver FOLDER`.

Every change goes to two tables with the same history, one resolved on the cluster and one in this
process, and to a dict. At the end the driver kills itself between publish and apply.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa

import resolver.batch_parts as batch_parts
import tableformat as tf
from resolver import resolve
from resolver.index.depot import IndexDepot
from resolver.shared_keeper import default_root, index_depot
from tableformat import Table
from tableformat.commit.changeset import Changeset, CommitKind, Validation
from tableformat.commit.engine import commit
from tableformat.paths import equality_delete_locations
from tableformat.write.equality_deletes import write_equality_deletes
from tests.support.crash_child import waiting_lock
from tests.support.spark_cluster import cluster_session, executor_folders
from tests.support.watched_store import WatchedStore

SCHEMA = pa.schema([("id", pa.int64()), ("note", pa.string())])
ON_CLUSTER, HERE = "t.cluster", "t.here"
ROWS = 20_000
LARGE = 100  # keys of a batch that tasks match, if it is no other kind
DRIVER_LEASE_MS = 3_000  # of the driver that is killed; its successor waits for so long


def rows(ids, note: str) -> pa.Table:
    ids = list(ids)
    return pa.table({"id": pa.array(ids, pa.int64()), "note": [note] * len(ids)}, schema=SCHEMA)


class Twins:
    """Two tables and a dict with the same content."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tables: dict[str, Table] = {}
        for name in (ON_CLUSTER, HERE):
            catalog = tf.open_catalog("local", warehouse=str(folder / "warehouse"))
            if name == ON_CLUSTER:
                store = WatchedStore(catalog.environment.store, folder, os.getpid())
                catalog.environment = replace(catalog.environment, store=store)
            self.tables[name] = catalog.create_table(name, SCHEMA, primary_key=["id"])
        self.model: dict[int, str] = {}
        self.staged = 0

    @property
    def depot(self) -> IndexDepot:
        table = self.tables[ON_CLUSTER]
        root = default_root(table.environment)
        return index_depot(table.environment, root, table.refresh().state, "main")

    def append(self, ids, note: str) -> None:
        for table in self.tables.values():
            table.append(rows(ids, note))
        self.model.update(dict.fromkeys(ids, note))

    def stage(self, ids, note: str, deletes=()) -> None:
        for table in self.tables.values():
            gone = pa.table({"id": pa.array(list(deletes), pa.int64())})
            table.stage(upserts=rows(ids, note), deletes=gone)
        for key in deletes:
            self.model.pop(key, None)
        self.model.update(dict.fromkeys(ids, note))
        self.staged += 1

    def stage_deletes_of_note(self, note: str) -> None:
        """Equality deletes on a column that is not the key."""
        for table in self.tables.values():
            metadata = table.refresh().state.metadata
            environment = table.environment
            files = write_equality_deletes(
                environment.store,
                pa.table({"note": [note]}),
                schema=metadata.schema(),
                equality_ids=[metadata.schema().find_field("note").field_id],
                spec=metadata.spec(),
                properties=metadata.properties,
                location_for=equality_delete_locations(metadata, environment.runtime.ids),
            )
            head = table.state.head("staging")
            changeset = Changeset(
                kind=CommitKind.ROW_DELTA,
                branch="staging",
                added_delete_files=tuple(files),
                validation=Validation(
                    starting_snapshot_id=None if head is None else head.snapshot_id
                ),
            )
            commit(environment, table.identifier, changeset)
        self.model = {key: value for key, value in self.model.items() if value != note}
        self.staged += 1

    def resolve(self, *, engine: str = "spark") -> str:
        """Resolve both and compare; how the cluster's index got to the head."""
        here = resolve(self.tables[HERE], engine="local", index_directory=self.folder / "local")
        there = resolve(self.tables[ON_CLUSTER], engine=engine)
        expected = sorted(self.model.items())
        for table in self.tables.values():
            found = table.refresh().scan().to_arrow()
            assert sorted(zip(*found.to_pydict().values(), strict=True)) == expected, table
        assert (here.deleted_rows, here.dvs) == (there.deleted_rows, there.dvs)
        assert there.staged_snapshots == 1
        return there.index


def uploaders(twins: Twins) -> list[set[str]]:
    """Per shard of the newest version, the executors that made its files."""
    made = {}
    for line in (twins.folder / "trace").read_text().splitlines():
        verb, location, place, _ = line.split(" ")
        if verb == "write":
            made[location.rsplit("/", 1)[-1]] = Path(place).name
    version = twins.depot.load(twins.depot.newest_number())
    return [{made[run.object_name] for run in shard} for shard in version.shards]


def executor_of(pid: int) -> int:
    """The executor's JVM that a Python worker belongs to."""
    while pid > 1:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        if b"CoarseGrainedExecutorBackend" in command:
            return pid
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    raise AssertionError("no executor")


def kill_executor_while(twins: Twins, text: str) -> threading.Thread:
    """SIGKILL the executor that first opens an object whose trace has `text`."""
    waiting, wanted = twins.folder / "waiting", twins.folder / "wait"
    waiting.unlink(missing_ok=True)
    wanted.write_text(text)

    def kill() -> None:
        while not (waiting.exists() and waiting.read_text()):
            time.sleep(0.02)
        wanted.unlink()
        os.kill(executor_of(int(waiting.read_text())), signal.SIGKILL)

    thread = threading.Thread(target=kill, daemon=True)
    thread.start()
    return thread


def main(folder: Path) -> None:
    os.environ["XDG_CACHE_HOME"] = str(folder / "driver-cache")
    batch_parts.PART_KEYS = LARGE
    spark = cluster_session(folder)
    twins = Twins(folder)
    draw = np.random.default_rng(5)
    for start in range(0, ROWS, ROWS // 4):
        twins.append(range(start, start + ROWS // 4), "first")
    how = []

    def some(count: int) -> list[int]:
        return (draw.choice(ROWS - 100, count, replace=False) + 100).tolist()

    twins.stage(some(500), "a", deletes=range(10, 20))
    how.append(twins.resolve())
    twins.stage(some(500), "b", deletes=range(20, 30))
    how.append(twins.resolve())
    before = uploaders(twins)

    # Killed before the publish: while it reads staged keys.
    killer = kill_executor_while(twins, "eq-deletes")
    twins.stage(some(500), "c")
    how.append(twins.resolve())
    killer.join()

    # Others commit to the target: followed on the executors.
    twins.append(range(ROWS, ROWS + 3000), "others")
    twins.stage(range(ROWS - 100, ROWS + 100), "d", deletes=[ROWS + 2999])
    how.append(twins.resolve())

    # Killed after the publish: while it uploads the next version of a shard.
    killer = kill_executor_while(twins, f"write {twins.depot.root}/files")
    twins.stage(some(500), "e")
    how.append(twins.resolve())
    killer.join()

    twins.stage_deletes_of_note("b")
    how.append(twins.resolve())
    twins.stage(some(50), "f")
    how.append(twins.resolve(engine="auto"))  # small: in this process, from the same index
    twins.stage(some(500), "g")
    how.append(twins.resolve())

    # Killed before the publish: while it writes deletion vectors.
    killer = kill_executor_while(twins, "-dvs.puffin")
    twins.stage(some(500), "h", deletes=range(30, 40))
    how.append(twins.resolve())
    killer.join()

    report = {
        "how": how,
        "uploaders_before": [sorted(each) for each in before],
        "uploaders_after": [sorted(each) for each in uploaders(twins)],
        "executors": [path.name for path in executor_folders(folder)],
        "model": sorted(twins.model.items()),
        "staged": twins.staged,
    }

    twins.stage(range(1, LARGE), "last")
    report["model_after"] = sorted(twins.model.items())
    (folder / "report.json").write_text(json.dumps(report))
    points = twins.tables[ON_CLUSTER].environment.runtime.fail_points
    points.armed["resolve.after_publish"] = lambda _: os.kill(os.getpid(), signal.SIGKILL)
    table = twins.tables[ON_CLUSTER]
    resolve(table, engine="spark", spark=spark, lock=waiting_lock(table, DRIVER_LEASE_MS))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
