"""Row-level statements, as data: what to run, on which table. Table names stand for themselves.

Each is run on a fresh copy of its table, by icefold and by DuckDB. Where DuckDB spells something
else, the second text is for it.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa


@dataclass(frozen=True)
class Case:
    """One statement. `duckdb` None: the same text."""

    table: str
    sql: str
    duckdb: str | None = None

    @property
    def oracle_sql(self) -> str:
        return self.duckdb or self.sql


NAN, INF = float("nan"), float("inf")

PEOPLE_SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("n", pa.int32()),
        ("d", pa.decimal128(9, 2)),
        ("f", pa.float64()),
        ("g", pa.float32()),
        ("s", pa.string()),
        ("b", pa.bool_()),
        ("day", pa.date32()),
        ("moment", pa.timestamp("us")),
        ("st", pa.struct([("x", pa.int32()), ("y", pa.string())])),
        ("l", pa.list_(pa.int32())),
    ]
)
TEXTS = ["", "a", "A", "it's", 'say "hi"', "a%b", "a_b", "back\\slash", "Zoë", "雪", "😀", None]


def people_rows(count: int = 48) -> list[dict[str, Any]]:
    floats = [NAN, INF, -INF, -0.0, 0.0, 1.5, None, 1e300, 0.1, -2.5]
    return [
        {
            "id": i,
            "n": None if i % 7 == 3 else (i % 13) - 4,
            "d": None if i % 11 == 5 else Decimal(i * 37 - 400) / 100,
            "f": floats[i % len(floats)],
            "g": [0.1, 0.5, NAN, None, -1.0][i % 5],
            "s": TEXTS[i % len(TEXTS)],
            "b": [True, False, None][i % 3],
            "day": None if i % 9 == 8 else dt.date(2024, 2, 25) + dt.timedelta(days=i % 10),
            "moment": None
            if i % 10 == 9
            else dt.datetime(2024, 2, 28, 23, 59, 58) + dt.timedelta(seconds=i, microseconds=i),
            "st": None if i % 8 == 7 else {"x": None if i % 5 == 4 else i % 6, "y": TEXTS[i % 5]},
            "l": None if i % 6 == 5 else [i % 3, None, i],
        }
        for i in range(count)
    ]


CHANGES_SCHEMA = pa.schema(
    [("id", pa.int64()), ("op", pa.string()), ("n", pa.int32()), ("s", pa.string())]
)
CHANGES_ROWS = [
    {"id": 1, "op": "u", "n": 100, "s": "changed"},
    {"id": 2, "op": "d", "n": None, "s": None},
    {"id": 5, "op": "u", "n": None, "s": "Zoë's"},
    {"id": 30, "op": "x", "n": 7, "s": "雪"},
    {"id": 100, "op": "u", "n": 1, "s": "new"},
    {"id": 101, "op": "d", "n": 2, "s": None},
    {"id": None, "op": "u", "n": 3, "s": "no key"},
]

CONDITIONS = """
n = 3
n <> 3
NOT (n = 3)
n < 0
n >= 5 OR n IS NULL
NOT (n >= 5)
n IN (1, 2, 8)
n NOT IN (1, 2, 8)
n NOT IN (1, NULL)
n IN (1, NULL)
n BETWEEN -2 AND 2
n NOT BETWEEN -2 AND 2
n IS NULL
n IS NOT NULL
n = NULL
NOT (n = NULL)
n > 2.5
n > 2 AND NOT (s = 'a')
NOT (n > 2 AND s = 'a')
NOT (n > 2 OR b)
n IS DISTINCT FROM 3
n IS NOT DISTINCT FROM NULL
n + 1 > 5
n * 2 = id
n % 2 = 0
-n > 2
abs(n) = 4
n > 1000000000000
n < 5000000000
d > 1.1
d = 3.33
d < -3
d * 2 > 5
d BETWEEN -1.5 AND 4.07
d IN (1.00, 3.7, -4.00)
f > 5
f = 0
f < 0.5
NOT (f < 0.5)
isnan(f)
NOT isnan(f) AND f IS NOT NULL
f IN (0.1, 1.5)
f <> 1.5
f >= 1e299
g = 0.5
g > 0.2
g <> -1
s = ''
s = 'it''s'
s = 'Zoë'
s > 'Z'
s IN ('雪', '😀', 'nope')
s LIKE 'a%'
s NOT LIKE 'a%'
s LIKE '%b'
s LIKE '_'
s LIKE '%"%'
s LIKE 'A'
s IS NULL OR s = ''
length(s) = 1
upper(s) = 'A'
s || '!' = 'a!'
concat(s, '-', n) = 'a-8'
b
NOT b
b = FALSE
b IS TRUE
b IS NOT TRUE
b IS NULL
(b OR n > 3) AND d > 0
day = DATE '2024-02-29'
day > DATE '2024-02-28' AND day < DATE '2024-03-02'
day <> DATE '2024-02-29'
day IS NULL
moment > TIMESTAMP '2024-02-29 00:00:10'
moment <= TIMESTAMP '2024-02-29 00:00:00.000004'
year(day) = 2024 AND month(day) = 3
st.x = 3
st.x > 2 OR st.y = 'a'
st.x IS NULL
st IS NULL
NOT (st.x < 4)
st.y = 'it''s'
coalesce(n, 0) = 0
CASE WHEN n > 3 THEN b ELSE NOT b END
id IN (SELECT id FROM changes)
id NOT IN (SELECT id FROM changes)
id NOT IN (SELECT id FROM changes WHERE id IS NOT NULL)
EXISTS (SELECT 1 FROM changes c WHERE c.id = people.id AND c.op = 'd')
NOT EXISTS (SELECT 1 FROM changes c WHERE c.id = people.id)
n > (SELECT avg(n) FROM people)
id > (SELECT count(*) FROM changes)
n = (SELECT max(n) FROM changes WHERE id IS NULL)
id = (SELECT max(p.id) FROM people p)
n < (SELECT min(c.n) FROM changes c WHERE c.id = people.id)
1 = 1
1 = 0
TRUE
FALSE
id >= 0
id > 1000000
""".strip().splitlines()

ASSIGNMENTS = """
n = 5
n = NULL
n = n + 1 WHERE n < 5
n = n * -2, s = 'x' WHERE b
n = id, d = 1.25 WHERE id < 10
d = 12.5 WHERE d IS NULL
f = f * 2 WHERE id > 20
f = 1.5 WHERE isnan(f)
f = n WHERE f IS NULL
s = 'it''s "Zoë" 雪 \\ %' WHERE s = 'a'
s = s || s WHERE length(s) < 3
s = upper(s), n = length(s)
b = NOT b
b = n > 2
b = TRUE WHERE b IS NULL
day = DATE '2024-12-31' WHERE day < DATE '2024-02-28'
moment = TIMESTAMP '2024-12-31 23:59:59.999999' WHERE moment IS NULL
day = moment WHERE id % 4 = 1
n = coalesce(n, -1), s = coalesce(s, 'none')
n = CASE WHEN n IS NULL THEN 0 WHEN n > 2 THEN n - 2 ELSE n END
n = (SELECT max(n) FROM changes)
n = (SELECT c.n FROM changes c WHERE c.id = people.id) WHERE id IN (SELECT id FROM changes)
s = (SELECT max(p.s) FROM people p WHERE p.n = people.n)
n = n WHERE id < 5
id = id + 1000 WHERE id > 40
n = id, id = n + 100 WHERE n > 5
l = NULL WHERE id < 5
st = NULL WHERE st.x = 2
n = 1 WHERE n = NULL
n = 1 WHERE id > 1000000
""".strip().splitlines()

UPDATE = "WHEN MATCHED THEN UPDATE SET n = c.n, s = c.s"
INSERT = "WHEN NOT MATCHED AND c.id IS NOT NULL THEN INSERT (id, n, s) VALUES (c.id, c.n, c.s)"
MERGES = [
    f"{UPDATE} {INSERT}",
    UPDATE,
    INSERT,
    "WHEN MATCHED THEN DELETE",
    f"WHEN MATCHED AND c.op = 'd' THEN DELETE {UPDATE} {INSERT}",
    f"WHEN MATCHED AND c.n IS NULL THEN UPDATE SET n = 0 {UPDATE}",
    "WHEN MATCHED AND c.n > p.n THEN UPDATE SET n = c.n + p.n",
    "WHEN NOT MATCHED BY SOURCE THEN DELETE",
    "WHEN NOT MATCHED BY SOURCE AND p.n < 3 THEN DELETE",
    "WHEN NOT MATCHED BY SOURCE AND p.b THEN UPDATE SET s = 'left', n = p.n + 1",
    f"{UPDATE} {INSERT} WHEN NOT MATCHED BY SOURCE AND p.id > 20 THEN DELETE",
    "WHEN NOT MATCHED AND c.op = 'd' AND c.id IS NOT NULL THEN INSERT (id) VALUES (c.id * 2) "
    "WHEN NOT MATCHED AND c.id IS NOT NULL THEN INSERT (id, s) VALUES (c.id, upper(c.s))",
    "WHEN MATCHED AND c.n = NULL THEN DELETE",
    "WHEN MATCHED AND NOT (c.n = 100) THEN UPDATE SET s = 'three-valued'",
    "WHEN MATCHED AND c.op = 'u' THEN UPDATE SET st = NULL, f = 2.5, day = DATE '2020-01-01'",
]


def cases() -> Iterator[Case]:
    """All statements."""
    for condition in CONDITIONS:
        yield _on_people(f"DELETE FROM people WHERE {condition}")
    for each in ASSIGNMENTS:
        yield _on_people(f"UPDATE people SET {each}")
    for clauses in MERGES:
        yield Case(
            "people",
            f"MERGE INTO people p USING changes c ON p.id = c.id {clauses}",
        )
    yield from _others()


def _on_people(sql: str) -> Case:
    """DuckDB's TIMESTAMP is Spark's TIMESTAMP_NTZ; backslashes escape in Spark only."""
    spark = sql.replace("TIMESTAMP '", "TIMESTAMP_NTZ '").replace("\\", "\\\\")
    spark = re.sub(r"(?<=\w)''(?=\w)", r"\\'", spark)
    return Case("people", spark, sql)


def _others() -> Iterator[Case]:
    merge = "MERGE INTO people p USING"
    star = "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    full = "(SELECT id + 45 AS id, n, d, f, g, 'copy' AS s, b, day, moment, st, l FROM people)"
    yield Case(
        "people",
        f"{merge} {full} c ON p.id = c.id {star}",
        f"{merge} {full} c ON p.id = c.id WHEN MATCHED THEN UPDATE WHEN NOT MATCHED THEN INSERT",
    )
    yield Case("people", f"{merge} changes c ON p.id = c.id AND p.n > 2 {UPDATE}")
    yield Case(
        "people", f"{merge} changes c ON p.id = c.id AND p.n > 2 AND c.op = 'u' {UPDATE} {INSERT}"
    )
    yield Case("people", f"{merge} changes c ON p.id < c.n AND c.op = 'x' {UPDATE}")
    yield Case("people", f"{merge} people c ON p.id = c.id WHEN MATCHED THEN UPDATE SET n = c.id")
    yield Case("people", "DELETE FROM people")
    yield Case("people", "WITH w AS (SELECT id FROM changes) DELETE FROM people WHERE id IN "
               "(SELECT id FROM w)")  # fmt: skip
    yield Case("people", "DELETE FROM people WHERE people.id = 3 OR people.st.x = 1",
               "DELETE FROM people WHERE people.id = 3 OR st.x = 1")  # fmt: skip
    yield Case("people", "UPDATE people SET st.x = 9 WHERE st.x < 3",
               "UPDATE people SET st = {'x': 9, 'y': st.y} WHERE st.x < 3")  # fmt: skip
    yield Case("people", "DELETE FROM people WHERE n <=> 3",
               "DELETE FROM people WHERE n IS NOT DISTINCT FROM 3")  # fmt: skip
    yield Case("people", "DELETE FROM people WHERE s RLIKE '^a.b$'",
               "DELETE FROM people WHERE regexp_matches(s, '^a.b$')")  # fmt: skip
    yield Case("people", "DELETE FROM people WHERE l[0] = 2",
               "DELETE FROM people WHERE l[1] = 2")  # fmt: skip
    for table in ("empty", "parts", "evolved"):
        yield Case(table, f"DELETE FROM {table} WHERE id > 3")
        yield Case(table, f"DELETE FROM {table}")
        yield Case(table, f"UPDATE {table} SET n = n + 1, s = 'moved' WHERE n IS NOT NULL")
        yield Case(
            table,
            f"MERGE INTO {table} p USING changes c ON p.id = c.id {UPDATE} {INSERT}",
        )
    for condition in (
        "region = 'EU'",
        "region IS NULL",
        "region <> 'EU'",
        "region IN ('EU', 'ÄÖ') AND n > 2",
        "region = 'EU' OR n = 1",
        "NOT (region = 'EU')",
    ):
        yield Case("parts", f"DELETE FROM parts WHERE {condition}")
    yield Case("parts", "UPDATE parts SET region = 'US' WHERE region = 'EU' AND id < 20")
    yield Case("parts", "UPDATE parts SET region = NULL")
    for condition in (
        "late = 7",
        "late IS NULL",
        "late > 7 OR n > 3000000000",
        "renamed = 'x'",
        "renamed IS NULL",
        "n = 2",
    ):
        yield Case("evolved", f"DELETE FROM evolved WHERE {condition}")
        yield Case("evolved", f"UPDATE evolved SET late = id, renamed = 'z' WHERE {condition}")
