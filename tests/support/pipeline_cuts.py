"""Workloads of transactions in PostgreSQL, and what has to hold at every cut of their tables.

A workload's connector tells transactions (`provide.transaction.metadata`), and `icefold run --cut
transaction` takes them. Its tables are empty in the connector's snapshot, which is no transaction.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

import psycopg

import tableformat as tf
from tableformat.cdc.cuts import Cut
from tableformat.errors import NotFoundError
from tests.support.interop_engines import duckdb_connection

CONNECTOR = {"provide.transaction.metadata": "true"}
Rows = dict[str, list[tuple[Any, ...]]]  # of each table, in order


class CutWorkload(Protocol):
    """Tables of one database, and transactions over them.

    Attributes:
        namespace: Of the tables in icefold; their names there are those in PostgreSQL.
        tables: `CREATE TABLE` by name, in words that DuckDB knows as well.
        prefix: What the names of all its tables begin with, and of no others.
        conditions: By name, a query in DuckDB whose one value is true after every transaction.
    """

    namespace: str
    prefix: str
    tables: Mapping[str, str]
    conditions: Mapping[str, str]

    def open(self, connection: psycopg.Connection[Any]) -> None:
        """The first rows, in one transaction, and what the others call."""

    def transaction(self, connection: psycopg.Connection[Any], rng: random.Random) -> None:
        """One more; whoever runs it may run it again after a deadlock."""


def connector(workload: CutWorkload) -> dict[str, str]:
    """What its connector is told beside the usual."""
    return {**CONNECTOR, "table.include.list": rf"public\\.{workload.prefix}.*"}


def words(workload: CutWorkload, warehouse: str, servers: str, *more: str) -> list[str]:
    """`icefold run` of its tables."""
    topics = f"{workload.namespace}.public.{workload.prefix}*"
    return [
        *("--warehouse", warehouse, "run", "--kafka", servers, "--into", workload.namespace),
        *("--topics", topics, "--cut", "transaction", "--json", *more),
    ]


def source_rows(workload: CutWorkload, connection: psycopg.Connection[Any]) -> Rows:
    """What PostgreSQL holds; tables without rows are left out."""
    found = {
        name: sorted(connection.execute(f"SELECT * FROM {name}").fetchall(), key=repr)  # type: ignore[arg-type]
        for name in workload.tables
    }
    return {name: rows for name, rows in found.items() if rows}


def shown(workload: CutWorkload, catalog: tf.TableCatalog) -> Rows:
    """The heads of `main`; tables without rows, or that do not exist yet, are left out."""
    found = {}
    for name in workload.tables:
        try:
            rows = catalog.load_table(f"{workload.namespace}.{name}").scan().to_arrow()
        except NotFoundError:
            continue
        columns = [column.to_pylist() for column in rows.columns]
        found[name] = sorted(zip(*columns, strict=True), key=repr)
    return {name: rows for name, rows in found.items() if rows}


def check_cuts(workload: CutWorkload, catalog: tf.TableCatalog, checked: set[object]) -> None:
    """Every cut that was not checked yet meets all conditions; the newest in DuckDB, too."""
    try:
        cuts = catalog.cuts(workload.namespace)
    except NotFoundError:
        return
    new = [cut for cut in cuts if (cut.name, tuple(cut.snapshots.items())) not in checked]
    for cut in new:
        check_in_scan(workload, catalog, cut)
        checked.add((cut.name, tuple(cut.snapshots.items())))
    if new:
        check_in_duckdb(workload, catalog, new[0])


def check_in_scan(workload: CutWorkload, catalog: tf.TableCatalog, cut: Cut) -> None:
    """The conditions over what icefold's scan gives at a cut."""
    with _schema() as duck:
        for name, snapshot_id in cut.snapshots.items():
            duck.register("read", catalog.load_table(name).scan(snapshot_id=snapshot_id).to_arrow())
            duck.execute(f"CREATE TABLE {_short(name)} AS SELECT * FROM read")
        _check(workload, duck, cut)


def check_in_duckdb(workload: CutWorkload, catalog: tf.TableCatalog, cut: Cut) -> None:
    """The conditions over what DuckDB reads of a cut."""
    with _schema() as duck:
        for name, snapshot_id in cut.snapshots.items():
            location = catalog.load_table(name).metadata_location
            pinned = f"iceberg_scan('{location}', snapshot_from_id={snapshot_id})"
            duck.execute(f"CREATE TABLE {_short(name)} AS SELECT * FROM {pinned}")
        _check(workload, duck, cut)


@contextmanager
def _schema() -> Iterator[Any]:
    """DuckDB, where a schema of its own is the current one."""
    duck = duckdb_connection()
    duck.execute("CREATE SCHEMA cut; USE cut")
    try:
        yield duck
    finally:
        duck.execute("USE main; DROP SCHEMA cut CASCADE")


def _short(name: str) -> str:
    return name.partition(".")[2]


def _check(workload: CutWorkload, duck: Any, cut: Cut) -> None:
    there = {_short(name) for name in cut.snapshots}
    for name, ddl in workload.tables.items():
        if name not in there:
            duck.execute(ddl)
        (keys, rows) = duck.execute(
            f"SELECT count(DISTINCT ({_key(ddl)})), count(*) FROM {name}"
        ).fetchone()
        assert keys == rows, f"a key has two rows in {name} at cut {cut.name}"
    broken = [
        what
        for what, query in workload.conditions.items()
        if duck.execute(query).fetchone() != (True,)
    ]
    assert not broken, f"{broken} at cut {cut.name}, {cut.transaction}"


def _key(ddl: str) -> str:
    """Columns of a table's key, as its DDL ends: `..., PRIMARY KEY (a, b))`."""
    return ddl.rpartition("PRIMARY KEY (")[2].rstrip(")")
