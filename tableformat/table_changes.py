"""What `Table.changes` gives: a changelog that Spark can compute, too."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from tableformat.changelog.changes import Changes

if TYPE_CHECKING:  # an optional dependency
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, kw_only=True)
class TableChanges(Changes):
    """The changelog between two fixed snapshots; reading it twice gives the same."""

    @staticmethod
    def of(changes: Changes) -> TableChanges:
        """The same changelog."""
        return TableChanges(**{each.name: getattr(changes, each.name) for each in fields(changes)})

    def to_spark(self, spark: SparkSession) -> DataFrame:
        """The changes as a Spark DataFrame; computed by Spark's tasks. Rows have no order."""
        from tableformat.spark.changelog_frame import changes_to_spark

        return changes_to_spark(self, spark)
