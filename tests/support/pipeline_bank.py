"""A bank: accounts in eight tables, transfers between them; the sum of all is what it was."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import psycopg

LETTERS = "abcdefgh"
ACCOUNTS, START = 20, 1_000


class Bank:
    """Each transfer goes round through two to four tables."""

    namespace = "bank"
    prefix = "bank_"
    tables: Mapping[str, str] = {
        f"bank_{letter}": (
            f"CREATE TABLE bank_{letter} (id int, balance bigint NOT NULL, PRIMARY KEY (id))"
        )
        for letter in LETTERS
    }
    conditions: Mapping[str, str] = {
        "all the money is there": "SELECT sum(balance) = {} FROM ({})".format(
            len(LETTERS) * ACCOUNTS * START,
            " UNION ALL ".join(f"SELECT balance FROM bank_{letter}" for letter in LETTERS),
        )
    }

    def open(self, connection: psycopg.Connection[Any]) -> None:
        with connection.transaction():
            for name in self.tables:
                connection.execute(
                    f"INSERT INTO {name} SELECT i, {START} FROM generate_series(1, {ACCOUNTS}) i"  # type: ignore[arg-type]
                )

    def transaction(self, connection: psycopg.Connection[Any], rng: random.Random) -> None:
        touched = rng.sample(list(self.tables), rng.randint(2, 4))
        amount = rng.randint(1, 100)
        changes = [
            f"UPDATE {name} SET balance = balance + {change} WHERE id = {rng.randint(1, ACCOUNTS)}"
            for giver, taker in zip(touched, [*touched[1:], touched[0]], strict=True)
            for name, change in ((giver, -amount), (taker, amount))
        ]
        # One message: PostgreSQL takes its statements as one transaction.
        connection.execute("; ".join(changes))  # type: ignore[arg-type]
