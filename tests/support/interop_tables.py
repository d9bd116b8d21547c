"""Tables written by icefold for other engines to read, each beside a plain dictionary of its rows.

The dictionary is the oracle: it is changed by the same calls, and shares no code with the reader.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.table.update.spec import UpdateSpec
from pyiceberg.transforms import BucketTransform, MonthTransform
from pyiceberg.types import IntegerType, LongType, StringType

from maintenance.tasks.compact import compact
from maintenance.tasks.options import CompactOptions, RewriteVectorsOptions
from maintenance.tasks.rewrite_vectors import rewrite_vectors
from resolver import resolve
from tableformat import Table, TableCatalog
from tableformat.commit.changeset import Changeset, CommitKind, Validation
from tableformat.commit.engine import commit
from tableformat.commit.evolution import update_schema, update_spec
from tableformat.commit.refs import create_branch
from tableformat.paths import data_file_locations
from tableformat.write.data_files import write_data_files
from tests.support.lying_lock import GrantAllLock

Row = dict[str, Any]
Key = tuple[Any, ...]

EQUALITY_DELETES = "equality deletes"
V2 = "format version 2"
SHARED_DELETES = "position deletes of several data files in one file"

SHOP = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("region", pa.string()),
        pa.field("amount", pa.decimal128(10, 2)),
        pa.field("at", pa.timestamp("us", tz="UTC")),
        pa.field("note", pa.string()),
    ]
)


@dataclass(frozen=True, kw_only=True)
class InteropCase:
    """A state of a table, and the rows that reading it gives.

    Attributes:
        table: At its newest version.
        branch: The branch to read.
        schema: Columns and types of the rows.
        rows: The rows, in any order.
        features: What a reader must understand beyond data files and DVs.
    """

    table: Table
    branch: str
    schema: pa.Schema
    rows: tuple[Row, ...]
    features: frozenset[str]

    @property
    def location(self) -> str:
        """The metadata file."""
        return self.table.metadata_location

    @property
    def snapshot_id(self) -> int | None:
        """Head of the branch; None for a table without snapshots."""
        head = self.table.state.head(self.branch)
        return None if head is None else head.snapshot_id

    @property
    def is_main(self) -> bool:
        """Whether a reader that knows no branches finds it."""
        return self.branch == "main"

    @property
    def ref(self) -> str | None:
        """The branch to name; None for main, which may have no snapshot."""
        return None if self.is_main else self.branch


@dataclass
class KeyedTable:
    """A table and the dictionary of its rows, on `main` and on `staging`."""

    table: Table
    schema: pa.Schema
    published: dict[Key, Row] = field(default_factory=dict)
    staged: dict[Key, Row] = field(default_factory=dict)

    @classmethod
    def create(
        cls,
        catalog: TableCatalog,
        name: str,
        schema: pa.Schema = SHOP,
        *,
        primary_key: Sequence[str] = ("id",),
        partition_by: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
    ) -> KeyedTable:
        """Create the table in namespace `interop`."""
        table = catalog.create_table(
            f"interop.{name}",
            schema,
            primary_key=primary_key,
            partition_by=partition_by,
            properties=properties,
        )
        return cls(table, schema)

    def key(self, row: Row) -> Key:
        return tuple(row[name] for name in self.table.primary_key)

    def arrow(self, rows: Sequence[Row]) -> pa.Table:
        return pa.Table.from_pylist(list(rows), self.schema)

    def append(self, rows: Sequence[Row]) -> None:
        """To main, and so below what is staged later."""
        self.table.append(self.arrow(rows))
        self.published |= {self.key(row): row for row in rows}
        self.staged = dict(self.published)

    def stage(self, upserts: Sequence[Row] = (), deletes: Sequence[Row] = ()) -> None:
        """To staging; upserts win over deletes of the same call."""
        self.table.stage(
            upserts=self.arrow(upserts) if upserts else None,
            deletes=self.arrow(deletes) if deletes else None,
        )
        for row in deletes:
            self.staged.pop(self.key(row), None)
        self.staged |= {self.key(row): row for row in upserts}

    def resolve(self) -> None:
        """Publish what is staged."""
        report = resolve(self.table)
        assert report.staged_snapshots
        self.published = dict(self.staged)

    def delete(self, ids: Sequence[int]) -> None:
        """Delete published rows by `id`."""
        wanted = set(ids)
        self.stage(deletes=[row for row in self.published.values() if row["id"] in wanted])
        self.resolve()

    def case(self, branch: str = "main", *features: str) -> InteropCase:
        """What there is to read now."""
        rows = self.staged if branch == "staging" else self.published
        return InteropCase(
            table=self.table.refresh(),
            branch=branch,
            schema=self.schema,
            rows=tuple(dict(row) for row in rows.values()),
            features=frozenset(features),
        )


def shop_row(number: int, note: str | None = "first") -> Row:
    """A row whose other columns follow from its number; NULLs among them."""
    return {
        "id": number,
        "region": ("EU", "US", "APAC", None)[number % 4],
        "amount": None if number % 11 == 5 else Decimal(number * 7 % 1000) / 100,
        "at": datetime(2024, 1, 1, tzinfo=UTC) + timedelta(hours=37 * number, microseconds=number),
        "note": note if number % 7 else None,
    }


def shop_rows(numbers: range, note: str | None = "first") -> list[Row]:
    return [shop_row(number, note) for number in numbers]


def no_deletes(catalog: TableCatalog) -> InteropCase:
    made = KeyedTable.create(catalog, "no_deletes")
    for start in (0, 100, 200):
        made.append(shop_rows(range(start, start + 60)))
    return made.case()


def dv(catalog: TableCatalog) -> InteropCase:
    made = KeyedTable.create(catalog, "dv")
    made.append(shop_rows(range(100)))
    made.delete([0, 3, 4, 99])
    return made.case()


def dv_replaced_twice(catalog: TableCatalog) -> InteropCase:
    made = KeyedTable.create(catalog, "dv_replaced_twice")
    made.append(shop_rows(range(100)))
    made.append(shop_rows(range(100, 120)))
    made.delete([5, 105])
    made.delete([6, 7])  # the DV of the second file stays in the first Puffin file
    made.stage(upserts=shop_rows(range(8, 12), "second"))
    made.resolve()
    return made.case()


def packed_dvs(catalog: TableCatalog) -> InteropCase:
    return _many_dvs(catalog, "packed")


def per_file_dvs(catalog: TableCatalog) -> InteropCase:
    return _many_dvs(catalog, "per-file")


def _many_dvs(catalog: TableCatalog, placement: str) -> InteropCase:
    made = KeyedTable.create(
        catalog,
        f"{placement.replace('-', '_')}_dvs",
        properties={"icefold.dv-placement": placement},
    )
    for file in range(8):
        made.append(shop_rows(range(file * 50, file * 50 + 50)))
    made.delete([file * 50 + file * 3 + step for file in range(8) for step in range(file + 1)])
    made.stage(upserts=[shop_row(file * 50 + 40, "second") for file in range(0, 8, 2)])
    made.resolve()
    return made.case()


def equality_deletes(catalog: TableCatalog) -> InteropCase:
    made = KeyedTable.create(catalog, "equality_deletes")
    made.append(shop_rows(range(80)))
    made.stage(upserts=shop_rows(range(10, 20), "second"), deletes=shop_rows(range(30, 35)))
    made.stage(upserts=shop_rows(range(15, 32), "third"))
    return made.case("staging", EQUALITY_DELETES)


def both_deletes(catalog: TableCatalog) -> InteropCase:
    made = KeyedTable.create(catalog, "both_deletes", partition_by=["bucket(3, id)"])
    made.append(shop_rows(range(80)))
    made.delete([1, 2, 3, 40])
    made.stage(upserts=shop_rows(range(3, 9), "second"), deletes=shop_rows(range(50, 55)))
    return made.case("staging", EQUALITY_DELETES)


def partitioned(catalog: TableCatalog) -> InteropCase:
    made = KeyedTable.create(
        catalog,
        "partitioned",
        partition_by=["region", "bucket(4, id)", "month(at)", "truncate(3, note)"],
    )
    made.append(shop_rows(range(60)))
    made.append(shop_rows(range(60, 90)))
    # The row moves between partitions: its old copy must go all the same.
    made.stage(upserts=[shop_row(8) | {"region": "US"}, shop_row(9) | {"region": None}])
    made.stage(deletes=shop_rows(range(20, 40, 3)))
    made.resolve()
    return made.case()


def evolved_partition(catalog: TableCatalog) -> InteropCase:
    made = KeyedTable.create(catalog, "evolved_partition")
    made.append(shop_rows(range(40)))
    _evolve_spec(made, lambda spec: spec.add_field("at", MonthTransform(), "at_month"))
    made.append(shop_rows(range(40, 80)))
    _evolve_spec(
        made,
        lambda spec: spec.remove_field("at_month").add_field("id", BucketTransform(2), "id_bucket"),
    )
    made.append(shop_rows(range(80, 120)))
    made.stage(upserts=shop_rows(range(30, 50), "second"), deletes=shop_rows(range(75, 85)))
    made.resolve()
    return made.case()


def _evolve_spec(made: KeyedTable, edit: Callable[[UpdateSpec], object]) -> None:
    update_spec(made.table.environment, made.table.identifier, edit)


def evolved_schema(catalog: TableCatalog) -> InteropCase:
    """Renamed, added with a default, widened, dropped and used again, in a table with DVs."""
    schema = pa.schema(
        [
            pa.field("id", pa.int32(), nullable=False),
            pa.field("gone", pa.string()),
            pa.field("old_name", pa.string()),
        ]
    )
    made = KeyedTable.create(catalog, "evolved_schema", schema)
    made.append([{"id": n, "gone": f"g{n}", "old_name": f"n{n}"} for n in range(40)])
    made.delete([1, 2])
    update_schema(
        made.table.environment,
        made.table.identifier,
        lambda change: (
            change.delete_column("gone")
            .rename_column("old_name", "name")
            .update_column("id", LongType())
            .add_column("score", IntegerType(), default_value=7)
        ),
    )
    update_schema(
        made.table.environment,
        made.table.identifier,
        lambda change: change.add_column("gone", StringType()),
    )
    made.schema = pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            pa.field("name", pa.string()),
            pa.field("score", pa.int32()),
            pa.field("gone", pa.string()),
        ]
    )
    for row in made.published.values():
        row |= {"name": row.pop("old_name"), "score": 7, "gone": None}
    wide = [
        {"id": n + 2**33, "name": f"w{n}", "score": None if n % 2 else n, "gone": "back"}
        for n in range(10)
    ]
    made.append(wide)
    made.stage(upserts=[wide[3] | {"score": 1}, {"id": 5, "name": "x", "score": 2, "gone": None}])
    made.delete([6, 7])
    return made.case()


def branch(catalog: TableCatalog) -> InteropCase:
    """A branch with files and DVs of its own, while main went elsewhere."""
    made = KeyedTable.create(catalog, "branch")
    made.append(shop_rows(range(50)))
    made.delete([1])
    environment, identifier = made.table.environment, made.table.identifier
    create_branch(environment, identifier, "audit")
    audited = dict(made.published)
    made.append(shop_rows(range(60, 70)))
    made.delete([2, 3])
    added = shop_rows(range(70, 80), "audit")
    head = made.table.append(made.arrow(added), branch="audit").snapshot
    create_branch(environment, identifier, "audit-staging", snapshot_id=head.snapshot_id)
    gone = [shop_row(number) for number in (4, 72, 73)]
    made.table.stage(deletes=made.arrow(gone), branch="audit-staging")
    assert resolve(made.table, staging="audit-staging", target="audit").dvs == 2
    audited |= {made.key(row): row for row in added}
    made.published = {key: row for key, row in audited.items() if row["id"] not in (4, 72, 73)}
    return made.case("audit")


TYPES = pa.schema(
    [
        pa.field("id", pa.int32(), nullable=False),
        pa.field("flag", pa.bool_()),
        pa.field("small", pa.int32()),
        pa.field("large", pa.int64()),
        pa.field("single", pa.float32()),
        pa.field("double", pa.float64()),
        pa.field("price", pa.decimal128(9, 2)),
        pa.field("big", pa.decimal128(18, 4)),
        pa.field("huge", pa.decimal128(38, 10)),
        pa.field("day", pa.date32()),
        pa.field("local", pa.timestamp("us")),
        pa.field("instant", pa.timestamp("us", tz="UTC")),
        pa.field("text", pa.string()),
        pa.field("bytes", pa.binary()),
        pa.field("point", pa.struct([("x", pa.int32()), ("label", pa.string())])),
        pa.field("tags", pa.list_(pa.string())),
        pa.field("counts", pa.map_(pa.string(), pa.int64())),
    ]
)


def typed_rows() -> list[Row]:
    """Extremes, zeros, negative zero, NaN, empty and NULL values."""
    low: Row = {
        "id": 1,
        "flag": False,
        "small": -(2**31),
        "large": -(2**63),
        "single": float("-inf"),
        "double": -1.7976931348623157e308,
        "price": Decimal("-9999999.99"),
        "big": Decimal("-99999999999999.9999"),
        "huge": Decimal("-9999999999999999999999999999.9999999999"),
        "day": date(1900, 2, 28),
        "local": datetime(1900, 1, 1, 0, 0, 0, 1),
        "instant": datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
        "text": "",
        "bytes": b"",
        "point": {"x": None, "label": ""},
        "tags": [],
        "counts": [],
    }
    high: Row = {
        "id": 2,
        "flag": True,
        "small": 2**31 - 1,
        "large": 2**63 - 1,
        "single": float("inf"),
        "double": 1.7976931348623157e308,
        "price": Decimal("9999999.99"),
        "big": Decimal("99999999999999.9999"),
        "huge": Decimal("9999999999999999999999999999.9999999999"),
        "day": date(2262, 4, 11),
        "local": datetime(2262, 4, 11, 23, 47, 16, 854775),
        "instant": datetime(2262, 4, 11, 23, 47, 16, 854775, tzinfo=UTC),
        "text": "z\U0010ffff" * 12,
        "bytes": b"\xff" * 40,
        "point": {"x": 5, "label": "p"},
        "tags": ["a", None, "\u00fc"],
        "counts": [("k", 1), ("null", None)],
    }
    zero = low | {"id": 3, "single": -0.0, "double": 0.0, "price": Decimal("0.00"), "text": "\x00"}
    odd = high | {"id": 4, "single": math.nan, "double": math.nan, "point": None, "tags": [None]}
    none = dict.fromkeys(TYPES.names) | {"id": 5}
    return [low, high, zero, odd, none]


def types(catalog: TableCatalog) -> InteropCase:
    """Every type that all engines have; one row of each file is deleted."""
    made = KeyedTable.create(catalog, "types", TYPES)
    rows = typed_rows()
    made.append(rows)
    made.append([row | {"id": row["id"] + 10} for row in rows[:3]])
    made.append([rows[4] | {"id": 21}, rows[4] | {"id": 22}])  # columns of NULLs alone
    made.delete([2, 13, 21])
    return made.case()


def text_keys(catalog: TableCatalog) -> InteropCase:
    """A composite key of text, date and decimal that is not in front, and the partition by it."""
    schema = pa.schema(
        [
            pa.field("value", pa.int64()),
            pa.field("name", pa.string(), nullable=False),
            pa.field("day", pa.date32(), nullable=False),
            pa.field("rate", pa.decimal128(20, 3), nullable=False),
        ]
    )
    made = KeyedTable.create(
        catalog,
        "text_keys",
        schema,
        primary_key=["name", "day", "rate"],
        partition_by=["day(day)", "truncate(2, name)"],
    )

    def row(number: int, value: int) -> Row:
        return {
            "value": value,
            "name": ("", "a/b=c d", "\u00fcber", "a%2Fb")[number % 4],
            "day": date(1969, 12, 30) + timedelta(days=number % 5),
            "rate": Decimal(number).scaleb(-3),
        }

    made.append([row(number, 1) for number in range(40)])
    made.stage(
        upserts=[row(n, 2) for n in range(0, 40, 3)], deletes=[row(n, 0) for n in range(1, 40, 9)]
    )
    made.resolve()
    return made.case()


def large_file(catalog: TableCatalog) -> InteropCase:
    """Positions in several containers of the bitmap, of every kind, over several row groups."""
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.int32())])
    made = KeyedTable.create(
        catalog, "large_file", schema, properties={"write.parquet.row-group-limit": "50000"}
    )
    count = 150_000
    made.append([{"id": number, "v": number % 1000} for number in range(count)])
    runs = list(range(70_000, 90_000))
    dense = [number for number in range(65_536) if number % 5 in (1, 2)]
    made.delete([*dense, *runs, 140_000, count - 1])
    return made.case()


def all_rows_deleted(catalog: TableCatalog) -> InteropCase:
    made = KeyedTable.create(catalog, "all_rows_deleted")
    made.append(shop_rows(range(10)))
    made.delete(list(range(10)))
    return made.case()


def no_snapshot(catalog: TableCatalog) -> InteropCase:
    return KeyedTable.create(catalog, "no_snapshot").case()


def rewritten(catalog: TableCatalog) -> InteropCase:
    """Files merged into one that stores the rows' ids; then a DV on it."""
    made = KeyedTable.create(catalog, "rewritten")
    for start in (0, 50):
        made.append(shop_rows(range(start, start + 20)))
    made.delete([3, 51])
    lineage = ["_row_id", "_last_updated_sequence_number"]
    scan = made.table.scan(columns=[*SHOP.names, *lineage])
    metadata = made.table.state.metadata
    environment = made.table.environment
    files = write_data_files(
        environment.store,
        scan.to_arrow(),
        schema=made.table.schema(),
        spec=made.table.spec(),
        properties=metadata.properties,
        location_for=data_file_locations(metadata, environment.runtime.ids),
    )
    assert scan.snapshot is not None
    tasks = scan.plan.tasks
    changeset = Changeset(
        kind=CommitKind.REWRITE,
        added_data_files=tuple(files),
        removed_entries=(*(t.entry for t in tasks), *(t.dv for t in tasks if t.dv is not None)),
        data_sequence_number=scan.snapshot.sequence_number,
        validation=Validation(
            starting_snapshot_id=scan.snapshot.snapshot_id, conflict_filter=AlwaysTrue()
        ),
    )
    commit(environment, made.table.identifier, changeset)
    made.append(shop_rows(range(90, 95)))
    made.delete([5])
    return made.case()


def compacted(catalog: TableCatalog) -> InteropCase:
    """Sorted by the compactor, rows deleted under it: new files and their DVs in one commit."""
    made = KeyedTable.create(catalog, "compacted", partition_by=["region"])
    for start in (0, 50, 80):
        made.append(shop_rows(range(start, start + 20)))
    made.delete([3, 51])
    points = made.table.environment.runtime.fail_points.armed

    def delete_beside(_: str) -> None:
        points.pop("compact.before_commit", None)
        made.delete([5, 55, 85])

    points["compact.before_commit"] = delete_beside
    options = CompactOptions(rewrite_all=True, strategy="sort", sort_by=("amount desc",))
    report = compact(made.table, options, lock=GrantAllLock())
    assert report.rebased_rows == 3
    made.append(shop_rows(range(100, 105)))
    made.delete([6])
    return made.case()


def v2_by_partition(catalog: TableCatalog) -> InteropCase:
    """Position delete files, each for a partition; some of them merged."""
    return _v2(catalog, "v2_by_partition", "partition")


def v2_by_file(catalog: TableCatalog) -> InteropCase:
    """Position delete files, each for one data file, replaced and merged."""
    return _v2(catalog, "v2_by_file", "file")


def _v2(catalog: TableCatalog, name: str, granularity: str) -> InteropCase:
    properties = {"format-version": "2", "write.delete.granularity": granularity}
    made = KeyedTable.create(catalog, name, partition_by=["region"], properties=properties)
    for start in (0, 50):
        made.append(shop_rows(range(start, start + 20)))
    made.stage(upserts=[shop_row(number, "second") for number in (1, 2, 51, 90)])
    made.resolve()
    made.delete([3, 2, 52])
    report = rewrite_vectors(made.table, RewriteVectorsOptions(rewrite_all=True))
    assert report.changed == (granularity == "partition")  # of a data file there is one
    made.delete([4, 53])
    compact(made.table, CompactOptions(rewrite_all=True, filter="region = 'EU'"))
    made.delete([5, 54])
    return made.case("main", V2, *([SHARED_DELETES] if granularity == "partition" else []))


CASES: tuple[Callable[[TableCatalog], InteropCase], ...] = (
    no_deletes,
    dv,
    dv_replaced_twice,
    packed_dvs,
    per_file_dvs,
    equality_deletes,
    both_deletes,
    partitioned,
    evolved_partition,
    evolved_schema,
    branch,
    types,
    text_keys,
    large_file,
    all_rows_deleted,
    no_snapshot,
    rewritten,
    compacted,
    v2_by_partition,
    v2_by_file,
)
