"""After every kind of ALTER TABLE a table has PostgreSQL's rows, or stands aside with one line."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest

from resolver import resolve
from tests.support.debezium import add_connector
from tests.support.pipeline import Pipeline, connector_of, missing_pipeline, start_pipeline
from tests.support.pipeline_bank import Bank
from tests.support.pipeline_tables import SourceColumn, differences, engine_rows, source_rows

pytestmark = [
    pytest.mark.interop,
    pytest.mark.slow,
    pytest.mark.spark,
    pytest.mark.xdist_group("pipeline"),
]
PLAIN = "id int PRIMARY KEY, n int NOT NULL, t text"
MORE = "INSERT INTO {t} (id, n, t) VALUES (7, 7, 'late')"
TOUCH = "UPDATE {t} SET n = n + 1 WHERE id <= 3"


@dataclass(frozen=True)
class Alter:
    """A table, what is done to it after its first rows, and what becomes of it.

    Attributes:
        aside: Part of the line with which the table is set aside, with the rows of before; None:
            it has PostgreSQL's.
        untold: Columns that PostgreSQL's log leaves out (docs/postgresql.md).
        root: What is made before it, of which it is a part.
        end: Its name at the end, if that is another one.
    """

    name: str
    steps: tuple[str, ...]
    columns: str = PLAIN
    fill: tuple[str, ...] | None = None
    aside: str | None = None
    untold: tuple[str, ...] = ()
    root: str | None = None
    end: str | None = None

    @property
    def table(self) -> str:
        return f"alt_{self.name}"

    def told(self, text: str) -> str:
        return text.replace("{t}", self.table)


def _filled(values: str) -> tuple[str, ...]:
    return (f"INSERT INTO {{t}} SELECT i, {values} FROM generate_series(1, 6) i",)


def _alter(change: str, *then: str) -> tuple[str, ...]:
    return (f"ALTER TABLE {{t}} {change}", *(then or (MORE, TOUCH)))


_CHANGES = (MORE, TOUCH, "UPDATE {t} SET id = 9 WHERE id = 2", "DELETE FROM {t} WHERE id = 4")
CASES = (
    Alter("add", _alter("ADD COLUMN a text")),
    Alter("add_default", _alter("ADD COLUMN a numeric(8,3) DEFAULT 1.5")),
    Alter("add_required", _alter("ADD COLUMN a text NOT NULL DEFAULT 'x'")),
    Alter("drop", _alter("DROP COLUMN t", "INSERT INTO {t} VALUES (7, 7)", TOUCH)),
    Alter("drop_required", _alter("DROP COLUMN n", "INSERT INTO {t} VALUES (7, 'x')")),
    Alter(
        "rename",
        _alter(
            "RENAME COLUMN t TO u", "INSERT INTO {t} VALUES (7, 7, 'x')", "UPDATE {t} SET n = n + 1"
        ),
    ),
    Alter(
        "again",
        _alter(
            "DROP COLUMN t", "ALTER TABLE {t} ADD COLUMN t text", MORE, "UPDATE {t} SET n = n + 1"
        ),
    ),
    Alter(
        "again_other",
        _alter(
            "DROP COLUMN t", "ALTER TABLE {t} ADD COLUMN t int", "INSERT INTO {t} VALUES (7, 7, 7)"
        ),
        aside="has its type changed",
    ),
    Alter(
        "to_bigint",
        _alter("ALTER n TYPE bigint", "INSERT INTO {t} VALUES (7, 3000000000, 'x')", TOUCH),
    ),
    Alter(
        "to_double",
        _alter(
            "ALTER v TYPE double precision",
            "INSERT INTO {t} VALUES (7, 0.1)",
            "UPDATE {t} SET v = 0.3 WHERE id = 1",
        ),
        columns="id int PRIMARY KEY, v real",
        fill=_filled("i / 7.0"),
    ),
    Alter(
        "digits",
        _alter("ALTER v TYPE numeric(20,2)", "INSERT INTO {t} VALUES (7, 123456789012345678.99)"),
        columns="id int PRIMARY KEY, v numeric(6,2)",
        fill=_filled("i * 1.25"),
    ),
    Alter(
        "scale",
        _alter("ALTER v TYPE numeric(20,4)", "INSERT INTO {t} VALUES (7, 1.2345)"),
        columns="id int PRIMARY KEY, v numeric(6,2)",
        fill=_filled("i * 1.25"),
        aside="a number of more digits",
    ),
    Alter("narrow", _alter("ALTER n TYPE smallint")),
    Alter(
        "fewer_digits",
        _alter("ALTER v TYPE numeric(6,1)", "UPDATE {t} SET v = v"),
        columns="id int PRIMARY KEY, v numeric(6,2)",
        fill=_filled("i * 1.25"),
    ),
    Alter("varchar", _alter("ALTER t TYPE varchar(40)")),
    Alter(
        "int_to_text",
        _alter("ALTER n TYPE text", "INSERT INTO {t} VALUES (7, 'seven', 'x')"),
        aside="has its type changed",
    ),
    Alter(
        "text_to_int",
        _alter("ALTER t TYPE int USING n", "UPDATE {t} SET t = t + 1"),
        aside="has its type changed",
    ),
    Alter(
        "ts_precision",
        _alter(
            "ALTER at TYPE timestamp(6)", "INSERT INTO {t} VALUES (7, '2024-02-29 12:00:00.123456')"
        ),
        columns="id int PRIMARY KEY, at timestamp(3)",
        fill=_filled("timestamp '2001-01-01' + i * interval '1 h'"),
    ),
    Alter(
        "drop_not_null",
        _alter(
            "ALTER n DROP NOT NULL",
            "INSERT INTO {t} VALUES (7, NULL, 'x')",
            "UPDATE {t} SET n = NULL WHERE id = 2",
        ),
    ),
    Alter("set_not_null", _alter("ALTER t SET NOT NULL")),
    Alter(
        "set_default",
        _alter(
            "ALTER t SET DEFAULT 'd'",
            "INSERT INTO {t} (id, n) VALUES (7, 7)",
            TOUCH,
        ),
    ),
    Alter(
        "drop_default",
        _alter("ALTER t DROP DEFAULT", "INSERT INTO {t} (id, n) VALUES (7, 7)"),
        columns="id int PRIMARY KEY, n int NOT NULL, t text DEFAULT 'd'",
    ),
    Alter(
        "new_key",
        _alter(
            "DROP CONSTRAINT {t}_pkey",
            "ALTER TABLE {t} ADD PRIMARY KEY (id, n)",
            "INSERT INTO {t} VALUES (1, 70, 'second')",
        ),
        aside="message keys have columns",
    ),
    Alter(
        "other_key",
        _alter(
            "DROP CONSTRAINT {t}_pkey",
            "ALTER TABLE {t} ADD PRIMARY KEY (n)",
            "INSERT INTO {t} VALUES (1, 70, 'second')",
        ),
        aside="message keys have columns",
    ),
    Alter(
        "identity_full",
        _alter("REPLICA IDENTITY FULL", MORE, TOUCH, "DELETE FROM {t} WHERE id = 4"),
    ),
    Alter(
        "identity_index",
        (*_CHANGES, "UPDATE {t} SET n = 70 WHERE id = 5", "UPDATE {t} SET id = 80 WHERE id = 6"),
        fill=(
            "CREATE UNIQUE INDEX {t}_both ON {t} (id, n)",
            "ALTER TABLE {t} REPLICA IDENTITY USING INDEX {t}_both",
            *_filled("i, 'r' || i"),
        ),
    ),
    Alter(
        "only_unique",
        _CHANGES,
        columns="id int NOT NULL UNIQUE, n int, t text",
        fill=("ALTER TABLE {t} REPLICA IDENTITY USING INDEX {t}_id_key", *_filled("i, 'r' || i")),
    ),
    Alter(
        "no_key",
        _CHANGES,
        columns="id int, n int, t text",
        fill=("ALTER TABLE {t} REPLICA IDENTITY FULL", *_filled("i, 'r' || i")),
    ),
    Alter("identity_nothing", _alter("REPLICA IDENTITY NOTHING", MORE)),
    Alter(
        "key_type",
        _alter(
            "ALTER id TYPE bigint",
            "INSERT INTO {t} VALUES (7000000000, 1, 'x')",
            TOUCH,
            "DELETE FROM {t} WHERE id = 5",
        ),
    ),
    Alter(
        "enum_value",
        (
            "ALTER TYPE alt_mood ADD VALUE 'odd'",
            "INSERT INTO {t} VALUES (7, 'odd')",
            "UPDATE {t} SET m = 'odd' WHERE id=1",
        ),
        columns="id int PRIMARY KEY, m alt_mood",
        fill=_filled("'sad'"),
    ),
    Alter(
        "enum_rename",
        (
            "ALTER TYPE alt_mood2 RENAME VALUE 'sad' TO 'blue'",
            "INSERT INTO {t} VALUES (7, 'blue')",
            "UPDATE {t} SET k = 1",
        ),
        columns="id int PRIMARY KEY, m alt_mood2, k int",
        fill=_filled("'sad'"),
    ),
    Alter(
        "domain",
        (
            "ALTER DOMAIN alt_dom DROP CONSTRAINT small",
            "INSERT INTO {t} VALUES (7, 700)",
            "UPDATE {t} SET d = 900 WHERE id = 1",
        ),
        columns="id int PRIMARY KEY, d alt_dom",
        fill=_filled("i"),
    ),
    Alter(
        "array",
        _alter(
            "ALTER v TYPE bigint[]",
            "INSERT INTO {t} VALUES (7, '{5000000000,NULL}')",
            "UPDATE {t} SET v = '{}' WHERE id = 1",
        ),
        columns="id int PRIMARY KEY, v int[]",
        fill=_filled("ARRAY[i, NULL]"),
    ),
    Alter("truncated", ("TRUNCATE {t}", MORE)),
    Alter(
        "swap",
        (
            "ALTER TABLE {t} RENAME COLUMN n TO x",
            "ALTER TABLE {t} RENAME COLUMN m TO n",
            "ALTER TABLE {t} RENAME COLUMN x TO m",
            "UPDATE {t} SET n = n",
        ),
        columns="id int PRIMARY KEY, n int, m int",
        fill=_filled("i, -i"),
    ),
    Alter(
        "part",
        (
            "ALTER TABLE alt_root ADD COLUMN a int DEFAULT 4",
            "INSERT INTO alt_root SELECT i, i, 'b' FROM generate_series(100, 104) i",
            "UPDATE alt_root SET n = 0 WHERE id = 101",
        ),
        columns="FOR VALUES FROM (0) TO (200)",
        root=f"CREATE TABLE alt_root ({PLAIN}) PARTITION BY RANGE (id)",
    ),
    Alter(
        "generated", _alter("ADD COLUMN g int GENERATED ALWAYS AS (n * 2) STORED"), untold=("g",)
    ),
    Alter("renamed", _alter("RENAME TO alt_to", "UPDATE alt_to SET n = n + 1"), end="alt_to"),
)


@dataclass(frozen=True)
class Altered:
    """What was there before, and what `icefold ingest` said after."""

    before: dict[str, list[tuple[Any, ...]]]
    said: str


def columns_of(connection: psycopg.Connection[Any], case: Alter, table: str) -> list[SourceColumn]:
    found = connection.execute(
        "SELECT attname, atttypid::regtype::text FROM pg_attribute "
        "WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped",
        (table,),
    ).fetchall()
    return [
        SourceColumn(name, kind, None, f"{name}::text" if "mood" in kind else None)
        for name, kind in found
        if name not in case.untold
    ]


@pytest.fixture(scope="module")
def pipeline() -> Iterator[Pipeline]:
    """One connector, in a database of its own."""
    missing = missing_pipeline()
    if missing is not None:
        pytest.skip(missing)
    started = start_pipeline("altered", Bank(), ["db"])
    yield started
    started.close()


@pytest.fixture(scope="module")
def altered(pipeline: Pipeline) -> Altered:
    pipeline.connect.start()
    pipeline.sql(
        "CREATE TYPE alt_mood AS ENUM ('sad', 'ok')",
        "CREATE TYPE alt_mood2 AS ENUM ('sad', 'ok')",
        "CREATE DOMAIN alt_dom AS int CONSTRAINT small CHECK (VALUE < 100)",
    )
    for case in CASES:
        made = f"({case.columns})" if case.root is None else f"PARTITION OF alt_root {case.columns}"
        roots = [] if case.root is None else [case.root]
        pipeline.sql(
            *roots,
            *map(case.told, (f"CREATE TABLE {{t}} {made}", *(case.fill or _filled("i, 'r' || i")))),
        )
    _ingest(pipeline)
    before = {}
    with pipeline.connection() as connection:
        for case in CASES:
            columns = columns_of(connection, case, case.table)
            before[case.name] = source_rows(connection, case.table, columns)
    for case in CASES[::2]:
        resolve(pipeline.catalog.load_table(f"alter.{case.table}"))
    for case in CASES:
        pipeline.sql(*map(case.told, case.steps))
    return Altered(before, _ingest(pipeline))


def _ingest(pipeline: Pipeline) -> str:
    pipeline.await_arrival()
    options = pipeline.folder / "alter.yaml"
    options.write_text("tables: {alt_no_key: {key: [id]}}")
    return pipeline.icefold(
        *("--warehouse", pipeline.warehouse, "ingest", "--kafka", pipeline.servers),
        *("--topics", "db.public.alt_*", "--into", "alter", "--engine", "local"),
        *("-o", "schema-evolution=full", "-o", "on-truncate=apply"),
        *("--tables", str(options)),
    ).err


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_rows_are_those_of_postgresql_after_an_alter(pipeline, altered, case):
    name = case.end or case.table
    with pipeline.connection() as connection:
        columns = columns_of(connection, case, name)
        expected = source_rows(connection, name, columns)
    aside = [line for line in altered.said.splitlines() if f"alter.{name} is set aside" in line]
    table = pipeline.catalog.load_table(f"alter.{name}")
    resolve(table)
    if case.aside is not None:
        assert len(aside) == 1
        assert case.aside in aside[0]
        expected, names = altered.before[case.name], table.schema().column_names
        columns = [SourceColumn(each, "", None) for each in names]
    else:
        assert aside == []
    assert expected, "there is nothing to compare"
    found = table.scan(columns=[each.name for each in columns]).to_arrow()
    assert differences(expected, engine_rows(found, columns), columns, ["id"]) == {}


PARTS = "CREATE TABLE mov_{n} PARTITION OF mov_root FOR VALUES FROM ({n}) TO ({n} + 100)"
MOVES = (
    "INSERT INTO mov_root SELECT i, 0, 'm' FROM generate_series(1, 9) i",
    "UPDATE mov_root SET id = id + 100, n = 1 WHERE id <= 5",
    "UPDATE mov_root SET id = id - 100, n = 2 WHERE id IN (101, 102)",
    "UPDATE mov_root SET n = 3 WHERE id IN (1, 103, 9)",
    "DELETE FROM mov_root WHERE id IN (2, 104, 8)",
)


@pytest.mark.usefixtures("altered")
def test_rows_that_move_between_partitions_are_those_of_postgresql(pipeline):
    """Of the partitions' topics in one table, and of the root's."""
    root = f"CREATE TABLE mov_root ({PLAIN}) PARTITION BY RANGE (id)"
    publication = "CREATE PUBLICATION rooted FOR ALL TABLES WITH (publish_via_partition_root)"
    pipeline.sql(root, *(PARTS.format(n=n) for n in (0, 100)), publication, *MOVES[:1])
    rooted = connector_of(
        "root",
        {"publication.name": "rooted", "table.include.list": "public.mov_root"},
        pipeline.database,
    )
    add_connector(pipeline.connect_port, rooted)
    slots = [f"{pipeline.database.name}_{name}" for name in ("db", "root")]
    pipeline.await_slots(slots)
    pipeline.sql(*MOVES[1:])
    pipeline.await_slots(slots)
    routes = pipeline.folder / "moved.yaml"
    routes.write_text("routes: [{topics: 'db.public.mov_*', table: joined}]")
    said = pipeline.icefold(
        *("--warehouse", pipeline.warehouse, "ingest", "--kafka", pipeline.servers),
        *("--topics", r"db.public.mov_*,root.public.mov_root", "--into", "moved"),
        *("--engine", "local", "--tables", str(routes)),
    )
    assert said.status == 0, said.err
    columns = [SourceColumn(each, "", None) for each in ("id", "n", "t")]
    with pipeline.connection() as connection:
        expected = source_rows(connection, "mov_root", columns)
    assert len(expected) == 6
    for name in ("joined", "mov_root"):
        table = pipeline.catalog.load_table(f"moved.{name}")
        resolve(table)
        found = table.scan(columns=["id", "n", "t"]).to_arrow()
        assert differences(expected, engine_rows(found, columns), columns, ["id"]) == {}
