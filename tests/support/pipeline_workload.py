"""Transactions against the pipeline's tables, drawn by a seed.

Inserts, updates of every column and of those that leave large values alone, deletes, changes of
keys, keys that come back, several changes of a row in one transaction, and roll-backs.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import psycopg

from tests.support.pipeline_tables import LARGE

ACCOUNTS = ("account", "account_full")
KEYS = 2_000
ORDERS, LINES = 60, 8
CHANGES_MAX = 8
ACCOUNT_COLUMNS = (
    "region, balance, weird, created, updated, ms, day, tod, doc, tags, ints, note, mood, uid, "
    "raw, ok, small, n, r, d, iv, ip, c, vc, loc"
)


class Workload:
    """Changes over one connection. A transaction is whole or rolled back."""

    def __init__(self, connection: psycopg.Connection[Any], seed: int) -> None:
        self._connection = connection
        self._random = random.Random(seed)
        self._version = 0
        self.transactions = 0
        self.changes = 0

    def seed_rows(self, count: int) -> None:
        """What a snapshot finds."""
        for table in ACCOUNTS:
            self._insert_accounts(table, range(1, count + 1))
        self._execute(
            "INSERT INTO line SELECT o, l, 'sku' || o, o * 1.25 + l, "
            "timestamptz '2024-03-31 01:30Z' + o * interval '1 minute' "
            "FROM generate_series(1, %s) o, generate_series(1, %s) l",
            ORDERS // 2,
            LINES // 2,
        )
        for table in ("toast", "torn"):
            self._execute(
                f"INSERT INTO {table} SELECT r.* FROM generate_series(1, 6) i, "
                "LATERAL toast_row(i, 1) r"
            )
        self._execute(
            "INSERT INTO untold SELECT r.* FROM generate_series(1, 4) i, LATERAL untold_row(i) r"
        )
        self._execute("INSERT INTO wiped SELECT i, 'w' || i FROM generate_series(1, 20) i")
        self._execute("INSERT INTO grown SELECT i, -i, 'g' || i FROM generate_series(1, 20) i")

    def run(self, transactions: int) -> None:
        """So many transactions."""
        for _ in range(transactions):
            self.transaction()

    def transaction(self) -> None:
        """One transaction of a few changes."""
        self.transactions += 1
        rolls_back = self._random.random() < 0.05
        with self._connection.transaction(force_rollback=rolls_back):
            for _ in range(self._random.randint(1, CHANGES_MAX)):
                change = self._random.choice(_CHANGES)
                self.changes += 1
                change(self)

    def _account(self) -> tuple[str, int]:
        return self._random.choice(ACCOUNTS), self._random.randint(1, KEYS)

    def upsert(self) -> None:
        table, key = self._account()
        # An ON CONFLICT without a change of `note` would leave a large value where it is.
        self._execute(f"DELETE FROM {table} WHERE id = %s", key)
        self._insert_accounts(table, [key])

    def insert(self) -> None:
        table, key = self._account()
        keys = range(key, key + self._random.randint(1, 5))
        self._insert_accounts(table, keys)

    def update_all(self) -> None:
        table, key = self._account()
        self._execute(
            f"UPDATE {table} a SET ({ACCOUNT_COLUMNS}) = "
            f"(SELECT {ACCOUNT_COLUMNS} FROM account_row(a.id, %s)) WHERE id BETWEEN %s AND %s",
            self._next(),
            key,
            key + 5,
        )

    def update_small(self) -> None:
        """A change that leaves `note` alone: with the default identity nobody knows it then."""
        _, key = self._account()
        self._execute(
            "UPDATE account_full SET n = %s, ms = ms + interval '1 ms' WHERE id BETWEEN %s AND %s",
            self._next(),
            key,
            key + 5,
        )

    def update_twice(self) -> None:
        table, key = self._account()
        for _ in range(2):
            self._execute(
                f"UPDATE {table} SET n = %s, note = 'n' || %s::text WHERE id = %s",
                *[self._next()] * 2,
                key,
            )

    def delete(self) -> None:
        table, key = self._account()
        self._execute(f"DELETE FROM {table} WHERE id BETWEEN %s AND %s", key, key + 2)

    def change_key(self) -> None:
        table, key = self._account()
        to = self._random.randint(1, KEYS)
        self._execute(
            f"UPDATE {table} SET id = %s, note = 'moved' WHERE id = %s "
            f"AND NOT EXISTS (SELECT FROM {table} WHERE id = %s)",
            to,
            key,
            to,
        )

    def change_lines(self) -> None:
        order, line = self._random.randint(1, ORDERS), self._random.randint(1, LINES)
        match self._random.randrange(4):
            case 0:
                self._execute(
                    "INSERT INTO line VALUES (%s, %s, 'new', %s, now()) ON CONFLICT DO NOTHING",
                    *(order, line, self._next()),
                )
            case 1:
                self._execute("UPDATE line SET qty = qty + 0.01 WHERE order_id = %s", order)
            case 2:
                self._execute("DELETE FROM line WHERE order_id = %s AND line_no = %s", order, line)
            case _:
                self._execute(
                    "UPDATE line SET line_no = %s WHERE order_id = %s AND line_no = "
                    "(SELECT max(line_no) FROM line WHERE order_id = %s)",
                    *(LINES + self._next(), order, order),
                )

    def change_toasted(self) -> None:
        key, table = self._random.randint(1, 8), self._random.choice(["toast", "torn"])
        match self._random.randrange(6):
            case 0:
                self._execute(f"DELETE FROM {table} WHERE id = %s", key)
                query = f"INSERT INTO {table} SELECT r.* FROM toast_row(%s, %s) r"
                self._execute(query, key, self._next() % 1000)
            case 1:
                self._update_large(table, key, key)
            case _:
                self._execute(f"UPDATE {table} SET n = n + 1 WHERE id = %s", key)

    def tear(self, rows: int, updates: int) -> None:
        """So many updated rows among the first of `torn`, nearly all of small columns only."""
        self._execute(
            "INSERT INTO torn SELECT r.* FROM generate_series(1, %s) i, "
            "LATERAL toast_row(i, i) r WHERE i NOT IN (SELECT id FROM torn)",
            rows,
        )
        done = 0
        while done < updates:
            first = self._random.randint(1, rows)
            last = min(first + self._random.randint(0, 99), rows, first + updates - done - 1)
            if self._random.random() < 0.1:
                self._update_large("torn", first, last)
            else:
                self._execute("UPDATE torn SET n = n + 1 WHERE id BETWEEN %s AND %s", first, last)
            done += last - first + 1

    def _update_large(self, table: str, first: int, last: int) -> None:
        name = self._random.choice(LARGE)
        self._execute(
            f"UPDATE {table} t SET {name} = (SELECT r.{name} FROM toast_row(t.id, %s) r) "
            "WHERE id BETWEEN %s AND %s",
            self._next() % 1000,
            first,
            last,
        )

    def _insert_accounts(self, table: str, keys: range | list[int]) -> None:
        self._execute(
            f"INSERT INTO {table} SELECT r.* FROM unnest(%s::bigint[]) i, "
            "LATERAL account_row(i, %s) r ON CONFLICT DO NOTHING",
            list(keys),
            self._next(),
        )

    def _execute(self, query: str, *values: Any) -> None:
        self._connection.execute(query, values)  # type: ignore[arg-type]

    def _next(self) -> int:
        self._version += 1
        return self._version


_CHANGES: tuple[Callable[[Workload], None], ...] = (
    Workload.upsert,
    Workload.insert,
    Workload.update_all,
    Workload.update_small,
    Workload.update_twice,
    Workload.delete,
    Workload.change_key,
    Workload.change_lines,
    Workload.change_toasted,
)
