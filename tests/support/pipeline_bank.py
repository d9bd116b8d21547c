"""A bank in PostgreSQL: accounts in a few tables, transfers between tables in transactions.

Its connector tells transactions (`provide.transaction.metadata`), and `icefold run --cut
transaction` takes them. At every cut the sum over all tables is the starting sum. The tables are
empty in the connector's snapshot, which is no transaction.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import psycopg

import tableformat as tf
from tableformat.cdc.cuts import Cut
from tableformat.errors import NotFoundError
from tests.support.interop_engines import duckdb_connection

NAMESPACE = "bank"
TABLES = tuple(f"bank_{letter}" for letter in "abcdefgh")
ACCOUNTS, START = 20, 1_000
TOTAL = len(TABLES) * ACCOUNTS * START
CONNECTOR = {
    "table.include.list": r"public\\.bank_.",
    "provide.transaction.metadata": "true",
}
Balances = dict[int, int]


def create_bank(connection: psycopg.Connection[Any]) -> None:
    """The tables, empty."""
    for name in TABLES:
        connection.execute(
            f"CREATE TABLE {name} (id int PRIMARY KEY, balance bigint NOT NULL)"  # type: ignore[arg-type]
        )


def open_accounts(connection: psycopg.Connection[Any]) -> None:
    """All accounts, in one transaction."""
    with connection.transaction():
        for name in TABLES:
            connection.execute(
                f"INSERT INTO {name} SELECT i, {START} FROM generate_series(1, {ACCOUNTS}) i"  # type: ignore[arg-type]
            )


def transfer(connection: psycopg.Connection[Any], rng: random.Random) -> None:
    """A transaction: money goes round through two to four tables."""
    touched = rng.sample(TABLES, rng.randint(2, 4))
    amount = rng.randint(1, 100)
    with connection.transaction():
        for giver, taker in zip(touched, [*touched[1:], touched[0]], strict=True):
            for name, change in ((giver, -amount), (taker, amount)):
                connection.execute(
                    f"UPDATE {name} SET balance = balance + %s WHERE id = %s",  # type: ignore[arg-type]
                    (change, rng.randint(1, ACCOUNTS)),
                )


def source_balances(connection: psycopg.Connection[Any]) -> dict[str, Balances]:
    """What PostgreSQL holds, by table."""
    return {
        name: {
            int(key): int(value)
            for key, value in connection.execute(f"SELECT id, balance FROM {name}")  # type: ignore[arg-type]
        }
        for name in TABLES
    }


def words(warehouse: str, servers: str, *more: str) -> list[str]:
    """`icefold run` of the bank."""
    return [
        *("--warehouse", warehouse, "run", "--kafka", servers, "--into", NAMESPACE),
        *("--topics", f"{NAMESPACE}.public.bank_*", "--cut", "transaction", "--json", *more),
    ]


def balances(catalog: tf.TableCatalog, name: str, snapshot_id: int | None = None) -> Balances:
    """What a snapshot holds, by icefold's scan."""
    table = catalog.load_table(f"{NAMESPACE}.{name}")
    rows = table.scan(snapshot_id=snapshot_id).to_arrow().to_pylist()
    assert len({row["id"] for row in rows}) == len(rows), f"a key has two rows in {name}"
    return {row["id"]: row["balance"] for row in rows}


def shown(catalog: tf.TableCatalog) -> dict[str, Balances]:
    """The heads of `main`; tables that do not exist yet are left out."""
    found = {}
    for name in TABLES:
        try:
            found[name] = balances(catalog, name)
        except NotFoundError:
            continue
    return found


def check_cuts(catalog: tf.TableCatalog, checked: set[object]) -> None:
    """Every cut that was not checked yet holds all the money; the newest in DuckDB as well."""
    try:
        cuts = catalog.cuts(NAMESPACE)
    except NotFoundError:
        return
    new = [cut for cut in cuts if (cut.name, tuple(cut.snapshots.items())) not in checked]
    for cut in new:
        held: Mapping[str, Balances] = {
            name: balances(catalog, name.partition(".")[2], at)
            for name, at in cut.snapshots.items()
        }
        total = sum(sum(each.values()) for each in held.values())
        assert total == TOTAL, f"{total} of {TOTAL} at cut {cut.name}, {cut.transaction}"
        checked.add((cut.name, tuple(cut.snapshots.items())))
    if new:
        check_in_duckdb(catalog, catalog.cut(NAMESPACE))


def check_in_duckdb(catalog: tf.TableCatalog, cut: Cut) -> None:
    """DuckDB and icefold's scan read the same sum of each table of a cut, and all the money."""
    connection = duckdb_connection()
    sums = {}
    for name in cut.tables:
        location = catalog.load_table(name).metadata_location
        pinned = f"iceberg_scan('{location}', snapshot_from_id={cut.snapshot_id(name)})"
        found = connection.execute(f"SELECT sum(balance) FROM {pinned}").fetchone()
        assert found is not None
        sums[name] = int(found[0])
        ours = balances(catalog, name.partition(".")[2], cut.snapshot_id(name))
        assert sums[name] == sum(ours.values()), f"{name} in {pinned}"
    assert sum(sums.values()) == TOTAL, f"{sums} at cut {cut.name}, {cut.transaction}"
