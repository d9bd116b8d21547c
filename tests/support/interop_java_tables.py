"""Tables that icefold and the reference implementation change in turn, through one catalog."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tableformat import Table, TableCatalog
from tests.support.interop_engines import LINEAGE, plain_rows
from tests.support.java_iceberg import JavaIceberg

Rows = list[tuple[Any, ...]]
DATA = ("id", "region", "v")
COLUMNS = "id bigint NOT NULL, region string, v string"
SCHEMA = pa.schema(
    [pa.field("id", pa.int64(), False), pa.field("region", pa.string()), pa.field("v", pa.string())]
)
MERGE_ON_READ = {f"write.{each}.mode": "merge-on-read" for each in ("delete", "update", "merge")}


@dataclass(frozen=True)
class SharedTable:
    """One table, and both tools."""

    java: JavaIceberg
    catalog: TableCatalog
    prefix: str
    name: str

    @property
    def java_name(self) -> str:
        """With the catalog Spark knows it by."""
        return f"{self.prefix}.{self.name}"

    def create(self, *, version: int, partitioned_by: str = "", **properties: str) -> None:
        """By Java; a primary key is declared."""
        wanted = {"format-version": str(version), **MERGE_ON_READ, **properties}
        listed = ", ".join(f"'{key}'='{value}'" for key, value in wanted.items())
        partitioning = f"PARTITIONED BY ({partitioned_by})" if partitioned_by else ""
        self.sql(
            f"CREATE TABLE T ({COLUMNS}) USING iceberg {partitioning} TBLPROPERTIES ({listed})"
        )
        self.sql("ALTER TABLE T SET IDENTIFIER FIELDS id")

    def sql(self, text: str) -> None:
        """A statement of Java's; `T` is the table."""
        self.java.sql(self._named(text))

    def insert(self, *rows: tuple[int, str | None, str | None]) -> None:
        """By Java, in one file per partition."""
        values = ", ".join(f"({_sql(i)}, {_sql(region)}, {_sql(v)})" for i, region, v in rows)
        self.sql(f"INSERT INTO T SELECT /*+ COALESCE(1) */ * FROM VALUES {values}")

    def call(self, procedure: str, **arguments: str) -> Rows:
        """What a procedure of Java's says; arguments are SQL."""
        listed = ", ".join(f"{key} => {sql}" for key, sql in arguments.items())
        text = f"CALL {self.prefix}.system.{procedure}(table => '{self.name}', {listed})"
        return plain_rows(self.java.query(text))

    def query(self, text: str) -> Rows:
        """Rows of a query of Java's, sorted."""
        return plain_rows(self.java.query(self._named(text)))

    def load(self) -> Table:
        """The table as icefold sees it."""
        return self.catalog.load_table(self.name)

    def rows(self, *, branch: str | None = None) -> Rows:
        """Rows as both read them; they must agree."""
        ours = plain_rows(self.load().scan(columns=list(DATA), branch=branch).to_arrow())
        version = f" VERSION AS OF '{branch}'" if branch else ""
        assert self.query(f"SELECT {', '.join(DATA)} FROM T{version}") == ours
        return ours

    def lineage(self) -> Rows:
        """`(id, _row_id, _last_updated_sequence_number)` as both read them."""
        columns = ["id", *LINEAGE]
        ours = plain_rows(self.load().scan(columns=columns).to_arrow())
        assert self.query(f"SELECT {', '.join(columns)} FROM T") == ours
        return ours

    def live_deletes(self) -> Rows:
        """`(content, format, records)` of delete files, as Java lists them."""
        return self.query("SELECT content, file_format, record_count FROM T.delete_files")

    def _named(self, text: str) -> str:
        words = text.split(" ")
        return " ".join(
            self.java_name + word[1:] if word in ("T", "T)") or word.startswith("T.") else word
            for word in words
        )


def rows_of(*rows: Sequence[Any]) -> pa.Table:
    """Whole rows for icefold."""
    return pa.Table.from_pylist([dict(zip(DATA, row, strict=True)) for row in rows], SCHEMA)


def _sql(value: int | str | None) -> str:
    if value is None:
        return "CAST(NULL AS string)"
    return f"'{value}'" if isinstance(value, str) else f"CAST({value} AS bigint)"
