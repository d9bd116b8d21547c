"""Steps of Spark that change what things are called or what a table is, and take it back.

While the change stands, icefold acts: by other names of the columns, of the table, without a key.
"""

from __future__ import annotations

from tests.support.engine_meddlers import WEIGHTS as _MEDDLED
from tests.support.engine_meddlers import MeddledHistory
from tests.support.table_histories import Skipped

BY_ANY_NAME = (
    "stage", "resolve", "resolve_some", "compact", "expire", "other_maintenance",
    "rewrite_position_delete_files", "spark_rewrites_manifests",
)  # fmt: skip


class NamedHistory(MeddledHistory):
    """All steps of `MeddledHistory`, and those that are taken back by `take_back`."""

    weights = _MEDDLED | {"under_other_names": 2, "under_another_table_name": 0.7}

    def create(self) -> None:
        super().create()
        self.undo: list[str] = []
        self.is_away = False  # under another name

    def rename_column(self) -> None:
        """One that the steps name, until `take_back`."""
        if self.is_believed or self.undo:  # a key that is a property goes by its name
            raise Skipped
        column = self.rng.choice(self.columns[:3])
        self.number += 1
        name = f"n{self.number}"
        self.spark(f"ALTER TABLE T RENAME COLUMN {column.name} TO {name}")
        self.undo.append(f"ALTER TABLE T RENAME COLUMN {name} TO {column.name}")
        self.read_columns()

    def drop_key(self) -> None:
        """Until `take_back`."""
        if self.is_believed or self.undo:
            raise Skipped
        self.spark("ALTER TABLE T DROP IDENTIFIER FIELDS id")
        self.undo.append("ALTER TABLE T SET IDENTIFIER FIELDS id")

    def rename_table(self) -> None:
        """Until `take_back`."""
        if self.undo:
            raise Skipped
        self.number += 1
        namespace, _, name = self.shared.name.rpartition(".")
        other = f"{namespace}.{name}n{self.number}"
        self.spark(f"ALTER TABLE T RENAME TO {other}")
        self.undo.append(f"ALTER TABLE {self.shared.prefix}.{other} RENAME TO {self.shared.name}")
        self.is_away = True

    def take_back(self) -> None:
        """What stands of these."""
        while self.undo:
            self.spark(self.undo.pop())
        self.is_away = False
        self.read_columns()

    def under_other_names(self) -> None:
        self.rename_column()
        name = self.rng.choice(BY_ANY_NAME)
        self.statements.append(f"under other names: {name}")
        try:
            getattr(self, name)()
            self.check()
        finally:
            self.take_back()

    def under_another_table_name(self) -> None:
        """icefold goes on with the table of that name."""
        self.rename_table()
        shared, before = self.shared, self.table
        other = self.undo[-1].split(" ")[2].removeprefix(f"{shared.prefix}.")
        self.table = shared.catalog.load_table(other)
        self.shared = type(shared)(shared.java, shared.catalog, shared.prefix, other)
        name = self.rng.choice(BY_ANY_NAME)
        self.statements.append(f"as {other}: {name}")
        try:
            getattr(self, name)()
            self.check()
        finally:
            self.shared, self.table = shared, before
            self.take_back()
