"""One icefold, the one that is first on `PYTHONPATH`, driven through lines of JSON.

Each request is `{"do": <operation>, "warehouse": ..., ...}` on standard input, each answer
`{"value": ...}` or `{"error": "..."}` on standard output. It keeps to names that releases share.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

import tableformat as tf
from maintenance.tasks.compact import compact
from maintenance.tasks.drop_dead_deletes import drop_dead_deletes
from maintenance.tasks.expire import expire
from maintenance.tasks.options import (
    CompactOptions,
    ExpireOptions,
    RewriteManifestsOptions,
    RewriteVectorsOptions,
)
from maintenance.tasks.rewrite_manifests import rewrite_manifests
from maintenance.tasks.rewrite_vectors import rewrite_vectors
from resolver import resolve
from tableformat.commit.expiry_plan import ExpiryPolicy

NAME = "t.rows"
SCHEMA = pa.schema(
    [pa.field("id", pa.int64(), False), ("region", pa.string()), ("amount", pa.int64())]
)

Rows = Sequence[Sequence[Any]]


def _rows(rows: Rows) -> pa.Table | None:
    columns = zip(*rows, strict=True)
    return pa.table([*map(list, columns)], schema=SCHEMA) if rows else None


def create(warehouse: str, partition_by: Sequence[str], properties: dict[str, str]) -> None:
    catalog = tf.open_catalog("local", warehouse=warehouse)
    catalog.create_table(
        NAME, SCHEMA, primary_key=["id"], partition_by=partition_by, properties=properties
    )


def stage(table: tf.Table, upserts: Rows, deletes: Sequence[int]) -> None:
    keys = pa.table({"id": pa.array(deletes, pa.int64())}) if deletes else None
    table.stage(upserts=_rows(upserts), deletes=keys)


def append(table: tf.Table, rows: Rows) -> None:
    table.append(_rows(rows))


def publish(table: tf.Table, limit: int | None) -> None:
    resolve(table, limit=limit)


def rewrite(table: tf.Table) -> None:
    compact(table, CompactOptions(rewrite_all=True, input_files_min=1))


def drop_snapshots(table: tf.Table, keep: int) -> None:
    policy = ExpiryPolicy(max_snapshot_age_ms=0, min_snapshots_to_keep=keep)
    expire(table, ExpireOptions(policy=policy))


def manifests(table: tf.Table) -> None:
    rewrite_manifests(table, RewriteManifestsOptions())


def vectors(table: tf.Table) -> None:
    rewrite_vectors(table, RewriteVectorsOptions())


def dead_deletes(table: tf.Table) -> None:
    drop_dead_deletes(table)


def delete(table: tf.Table, where: str) -> None:
    table.delete(where)


def update(table: tf.Table, where: str, amount: int) -> None:
    table.update({"amount": str(amount)}, where)


def scan(table: tf.Table) -> Rows:
    columns = table.scan().to_arrow().select(SCHEMA.names).columns
    return [*zip(*(each.to_pylist() for each in columns), strict=True)]


OPERATIONS: dict[str, Callable[..., Any]] = {
    each.__name__: each
    for each in (
        stage, append, publish, rewrite, drop_snapshots, manifests, vectors, dead_deletes, delete,
        update, scan,
    )
}  # fmt: skip


def answer(do: str, warehouse: str, **arguments: Any) -> Any:
    if do == "create":
        return create(warehouse, **arguments)
    table = tf.open_catalog("local", warehouse=warehouse).load_table(NAME)
    return OPERATIONS[do](table, **arguments)


if __name__ == "__main__":
    for line in sys.stdin:
        try:
            said = {"value": answer(**json.loads(line))}
        except Exception as error:
            said = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(said), flush=True)
