"""The nine tables of TPC-C in small, and its conditions of consistency (clause 3.3.2 and more).

Orders are entered, paid and delivered; one in a hundred new orders is rolled back. What a condition
speaks of is changed by the transactions in several tables.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import psycopg

WAREHOUSES, DISTRICTS, CUSTOMERS, ITEMS = 2, 10, 30, 200
ROLLED_BACK_SHARE = 100  # one in so many new orders

_DISTRICT = "SELECT d_w_id AS w, d_id AS d, * FROM tpcc_district"
_ORDER = "SELECT o_w_id AS w, o_d_id AS d, o_id AS o, * FROM tpcc_orders"
_NEW = "SELECT no_w_id AS w, no_d_id AS d, no_o_id AS o FROM tpcc_new_order"
_LINE = "SELECT ol_w_id AS w, ol_d_id AS d, ol_o_id AS o, * FROM tpcc_order_line"
_DELIVERED = (
    f"SELECT w, d, o_c_id AS c, sum(ol_amount) AS amount FROM ({_ORDER}) JOIN ({_LINE}) "
    "USING (w, d, o) WHERE ol_delivery_d IS NOT NULL GROUP BY ALL"
)
_PAID = (
    "SELECT h_c_w_id AS w, h_c_d_id AS d, h_c_id AS c, sum(h_amount) AS paid "
    "FROM tpcc_history GROUP BY ALL"
)
_CUSTOMER = (
    "SELECT c_w_id AS w, c_d_id AS d, c_id AS c, c_balance, c_ytd_payment FROM tpcc_customer"
)
_MONEY = (
    f"({_CUSTOMER}) LEFT JOIN ({_DELIVERED}) USING (w, d, c) LEFT JOIN ({_PAID}) USING (w, d, c)"
)


def _equal(left: str, right: str, keys: str) -> str:
    """Both have the same groups with the same value `v`; a group that is missing has 0."""
    return (
        f"SELECT count(*) = 0 FROM ({left}) a FULL JOIN ({right}) b USING ({keys}) "
        "WHERE coalesce(a.v, 0) <> coalesce(b.v, 0)"
    )


class Tpcc:
    """Two warehouses."""

    namespace = "tpcc"
    prefix = "tpcc_"
    tables: Mapping[str, str] = {
        name: f"CREATE TABLE {name} ({columns})"
        for name, columns in {
            "tpcc_warehouse": "w_id int, w_name text NOT NULL, w_tax numeric(4,4) NOT NULL, "
            "w_ytd numeric(12,2) NOT NULL, PRIMARY KEY (w_id)",
            "tpcc_district": "d_w_id int, d_id int, d_tax numeric(4,4) NOT NULL, "
            "d_ytd numeric(12,2) NOT NULL, d_next_o_id int NOT NULL, PRIMARY KEY (d_w_id, d_id)",
            "tpcc_customer": "c_w_id int, c_d_id int, c_id int, c_last text NOT NULL, "
            "c_balance numeric(12,2) NOT NULL, c_ytd_payment numeric(12,2) NOT NULL, "
            "c_payment_cnt int NOT NULL, c_delivery_cnt int NOT NULL, "
            "PRIMARY KEY (c_w_id, c_d_id, c_id)",
            "tpcc_history": "h_id bigint, h_c_w_id int NOT NULL, h_c_d_id int NOT NULL, "
            "h_c_id int NOT NULL, h_w_id int NOT NULL, h_d_id int NOT NULL, "
            "h_date timestamptz NOT NULL, h_amount numeric(6,2) NOT NULL, PRIMARY KEY (h_id)",
            "tpcc_new_order": "no_w_id int, no_d_id int, no_o_id int, "
            "PRIMARY KEY (no_w_id, no_d_id, no_o_id)",
            "tpcc_orders": "o_w_id int, o_d_id int, o_id int, o_c_id int NOT NULL, "
            "o_entry_d timestamptz NOT NULL, o_carrier_id int, o_ol_cnt int NOT NULL, "
            "PRIMARY KEY (o_w_id, o_d_id, o_id)",
            "tpcc_order_line": "ol_w_id int, ol_d_id int, ol_o_id int, ol_number int, "
            "ol_i_id int NOT NULL, ol_supply_w_id int NOT NULL, ol_delivery_d timestamptz, "
            "ol_quantity int NOT NULL, ol_amount numeric(8,2) NOT NULL, "
            "PRIMARY KEY (ol_w_id, ol_d_id, ol_o_id, ol_number)",
            "tpcc_item": "i_id int, i_name text NOT NULL, i_price numeric(5,2) NOT NULL, "
            "PRIMARY KEY (i_id)",
            "tpcc_stock": "s_w_id int, s_i_id int, s_quantity int NOT NULL, s_ytd int NOT NULL, "
            "s_order_cnt int NOT NULL, PRIMARY KEY (s_w_id, s_i_id)",
        }.items()
    }
    conditions: Mapping[str, str] = {
        "1: w_ytd is the sum of d_ytd": _equal(
            "SELECT w_id AS w, w_ytd AS v FROM tpcc_warehouse",
            "SELECT d_w_id AS w, sum(d_ytd) AS v FROM tpcc_district GROUP BY ALL",
            "w",
        ),
        "2: d_next_o_id follows the newest order": _equal(
            f"SELECT w, d, d_next_o_id - 1 AS v FROM ({_DISTRICT})",
            f"SELECT w, d, max(o) AS v FROM ({_ORDER}) GROUP BY ALL",
            "w, d",
        ),
        "2: and the newest that waits": (
            f"SELECT count(*) = 0 FROM (SELECT w, d, max(o) AS o FROM ({_NEW}) GROUP BY ALL) "
            f"JOIN ({_DISTRICT}) USING (w, d) WHERE o <> d_next_o_id - 1"
        ),
        "3: the orders that wait are without a gap": (
            "SELECT count(*) = 0 FROM (SELECT max(o) - min(o) + 1 AS length, count(*) AS rows "
            f"FROM ({_NEW}) GROUP BY w, d) WHERE length <> rows"
        ),
        "4: lines of a district": _equal(
            f"SELECT w, d, sum(o_ol_cnt) AS v FROM ({_ORDER}) GROUP BY ALL",
            f"SELECT w, d, count(*) AS v FROM ({_LINE}) GROUP BY ALL",
            "w, d",
        ),
        "5: an order without carrier waits": _equal(
            f"SELECT w, d, o, 1 AS v FROM ({_ORDER}) WHERE o_carrier_id IS NULL",
            f"SELECT w, d, o, 1 AS v FROM ({_NEW})",
            "w, d, o",
        ),
        "6: lines of an order": _equal(
            f"SELECT w, d, o, o_ol_cnt AS v FROM ({_ORDER})",
            f"SELECT w, d, o, count(*) AS v FROM ({_LINE}) GROUP BY ALL",
            "w, d, o",
        ),
        "7: lines are delivered with their order": (
            f"SELECT count(*) = 0 FROM ({_ORDER}) JOIN ({_LINE}) USING (w, d, o) "
            "WHERE (ol_delivery_d IS NULL) <> (o_carrier_id IS NULL)"
        ),
        "8: w_ytd is what was paid": _equal(
            "SELECT w_id AS w, w_ytd AS v FROM tpcc_warehouse",
            "SELECT h_w_id AS w, sum(h_amount) AS v FROM tpcc_history GROUP BY ALL",
            "w",
        ),
        "9: d_ytd is what was paid": _equal(
            f"SELECT w, d, d_ytd AS v FROM ({_DISTRICT})",
            "SELECT h_w_id AS w, h_d_id AS d, sum(h_amount) AS v FROM tpcc_history GROUP BY ALL",
            "w, d",
        ),
        "10: a balance is what came less what was paid": (
            f"SELECT count(*) = 0 FROM {_MONEY} "
            "WHERE c_balance <> coalesce(amount, 0) - coalesce(paid, 0)"
        ),
        "11: orders of a district wait or were delivered": _equal(
            "SELECT c_w_id AS w, c_d_id AS d, sum(c_delivery_cnt) AS v "
            "FROM tpcc_customer GROUP BY ALL",
            f"SELECT w, d, count(*) AS v FROM ({_ORDER}) ANTI JOIN ({_NEW}) USING (w, d, o) "
            "GROUP BY ALL",
            "w, d",
        ),
        "12: balance and payments are what came": (
            f"SELECT count(*) = 0 FROM {_MONEY} "
            "WHERE c_balance + c_ytd_payment <> coalesce(amount, 0)"
        ),
        "stock: what was ordered has left it": _equal(
            "SELECT s_w_id AS w, s_i_id AS i, s_ytd AS v FROM tpcc_stock",
            "SELECT ol_supply_w_id AS w, ol_i_id AS i, sum(ol_quantity) AS v "
            "FROM tpcc_order_line GROUP BY ALL",
            "w, i",
        ),
    }

    def open(self, connection: psycopg.Connection[Any]) -> None:
        for function in _FUNCTIONS:
            connection.execute(function)  # type: ignore[arg-type]
        with connection.transaction():
            for statement in _FIRST_ROWS:
                connection.execute(statement)  # type: ignore[arg-type]

    def transaction(self, connection: psycopg.Connection[Any], rng: random.Random) -> None:
        warehouse, district = rng.randint(1, WAREHOUSES), rng.randint(1, DISTRICTS)
        customer = rng.randint(1, CUSTOMERS)
        kind = rng.randrange(100)
        if kind < 47:
            items = rng.sample(range(1, ITEMS + 1), rng.randint(5, 15))
            if rng.randrange(ROLLED_BACK_SHARE) == 0:
                items[-1] = ITEMS + 1  # there is no such item
            supplying = [rng.randint(1, WAREHOUSES) for _ in items]
            counts = [rng.randint(1, 10) for _ in items]
            call = "new_order(%s, %s, %s, %s::int[], %s::int[], %s::int[])"
            values: tuple[Any, ...] = (warehouse, district, customer, items, supplying, counts)
        elif kind < 93:
            home, cents = rng.randint(1, WAREHOUSES), rng.randint(100, 500_000)
            call = "payment(%s, %s, %s, %s, %s / 100.0)"
            values = (warehouse, district, home, customer, cents)
        else:
            call, values = "delivery(%s, %s)", (warehouse, rng.randint(1, 10))
        try:
            connection.execute(f"SELECT tpcc_{call}", values)  # type: ignore[arg-type]
        except psycopg.errors.NoDataFound:
            return  # as TPC-C wants it: the order is rolled back


_FIRST_ROWS = (
    f"INSERT INTO tpcc_item SELECT i, 'item ' || i, 1 + i % 99 FROM generate_series(1, {ITEMS}) i",
    "INSERT INTO tpcc_warehouse SELECT w, 'warehouse ' || w, 0.0725, 0 "
    f"FROM generate_series(1, {WAREHOUSES}) w",
    "INSERT INTO tpcc_stock SELECT w, i, 50, 0, 0 "
    f"FROM generate_series(1, {WAREHOUSES}) w, generate_series(1, {ITEMS}) i",
    "INSERT INTO tpcc_district SELECT w, d, 0.0525, 0, 1 "
    f"FROM generate_series(1, {WAREHOUSES}) w, generate_series(1, {DISTRICTS}) d",
    "INSERT INTO tpcc_customer SELECT w, d, c, 'customer ' || c, 0, 0, 0, 0 "
    f"FROM generate_series(1, {WAREHOUSES}) w, generate_series(1, {DISTRICTS}) d, "
    f"generate_series(1, {CUSTOMERS}) c",
    "CREATE SEQUENCE tpcc_payments",
)
_FUNCTIONS = (
    """
    CREATE FUNCTION tpcc_new_order(w int, d int, c int, items int[], supplying int[], counts int[])
    RETURNS void LANGUAGE plpgsql AS $$
    DECLARE o int; price numeric;
    BEGIN
        UPDATE tpcc_district SET d_next_o_id = d_next_o_id + 1 WHERE d_w_id = w AND d_id = d
            RETURNING d_next_o_id - 1 INTO o;
        INSERT INTO tpcc_orders VALUES (w, d, o, c, clock_timestamp(), NULL, cardinality(items));
        INSERT INTO tpcc_new_order VALUES (w, d, o);
        FOR n IN 1 .. cardinality(items) LOOP
            SELECT i_price INTO STRICT price FROM tpcc_item WHERE i_id = items[n];
            UPDATE tpcc_stock SET s_ytd = s_ytd + counts[n], s_order_cnt = s_order_cnt + 1,
                s_quantity = CASE WHEN s_quantity >= counts[n] + 10 THEN s_quantity - counts[n]
                    ELSE s_quantity - counts[n] + 91 END
                WHERE s_w_id = supplying[n] AND s_i_id = items[n];
            INSERT INTO tpcc_order_line VALUES
                (w, d, o, n, items[n], supplying[n], NULL, counts[n], price * counts[n]);
        END LOOP;
    END $$
    """,
    """
    CREATE FUNCTION tpcc_payment(w int, d int, home int, c int, amount numeric)
    RETURNS void LANGUAGE plpgsql AS $$
    BEGIN
        UPDATE tpcc_warehouse SET w_ytd = w_ytd + amount WHERE w_id = w;
        UPDATE tpcc_district SET d_ytd = d_ytd + amount WHERE d_w_id = w AND d_id = d;
        UPDATE tpcc_customer SET c_balance = c_balance - amount,
            c_ytd_payment = c_ytd_payment + amount, c_payment_cnt = c_payment_cnt + 1
            WHERE c_w_id = home AND c_d_id = d AND c_id = c;
        INSERT INTO tpcc_history VALUES
            (nextval('tpcc_payments'), home, d, c, w, d, clock_timestamp(), amount);
    END $$
    """,
    """
    CREATE FUNCTION tpcc_delivery(w int, carrier int) RETURNS void LANGUAGE plpgsql AS $$
    DECLARE place record; customer int; total numeric;
    BEGIN
        FOR place IN SELECT no_d_id AS d, min(no_o_id) AS o FROM tpcc_new_order
            WHERE no_w_id = w GROUP BY no_d_id ORDER BY no_d_id LOOP
            DELETE FROM tpcc_new_order
                WHERE no_w_id = w AND no_d_id = place.d AND no_o_id = place.o;
            CONTINUE WHEN NOT FOUND;
            UPDATE tpcc_orders SET o_carrier_id = carrier
                WHERE o_w_id = w AND o_d_id = place.d AND o_id = place.o
                RETURNING o_c_id INTO customer;
            UPDATE tpcc_order_line SET ol_delivery_d = clock_timestamp()
                WHERE ol_w_id = w AND ol_d_id = place.d AND ol_o_id = place.o;
            SELECT sum(ol_amount) INTO total FROM tpcc_order_line
                WHERE ol_w_id = w AND ol_d_id = place.d AND ol_o_id = place.o;
            UPDATE tpcc_customer SET c_balance = c_balance + total,
                c_delivery_cnt = c_delivery_cnt + 1
                WHERE c_w_id = w AND c_d_id = place.d AND c_id = customer;
        END LOOP;
    END $$
    """,
)
