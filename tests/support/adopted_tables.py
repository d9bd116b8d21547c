"""A table that PyIceberg made, without identifier fields, as tools write it that know no key."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pyarrow as pa
from click.testing import CliRunner
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.schema import Schema
from pyiceberg.types import DoubleType, LongType, NestedField, StringType

import tableformat as tf
from maintenance.cli.main import cli
from tableformat.catalog.keyed import real_catalog
from tableformat.commit.changeset import Changeset, CommitKind
from tableformat.commit.engine import commit
from tableformat.commit.evolution import update_schema
from tableformat.paths import data_file_locations, equality_delete_locations
from tableformat.write.data_files import write_data_files
from tableformat.write.equality_deletes import write_equality_deletes
from tests.support.row_model import scanned_rows
from tests.support.table_checker import read_metadata

NAME = "shop.orders"
ROWS = [(key, "new", key % 3) for key in range(9)]
COLUMNS = ("id", "status", "n")


class Theirs:
    """A v2 table that PyIceberg made, with an optional key that is declared nowhere."""

    def __init__(self, folder, *, version):
        self.folder = folder
        theirs = SqlCatalog(
            "local", uri=f"sqlite:///{folder}/icefold.db", warehouse=folder.as_uri()
        )
        theirs.create_namespace("shop")
        schema = Schema(
            NestedField(1, "id", LongType()),
            NestedField(2, "status", StringType()),
            NestedField(3, "n", LongType()),
            NestedField(4, "x", DoubleType()),
        )
        table = theirs.create_table(NAME, schema, properties={"format-version": "2"})
        table.append(self.arrow(ROWS))
        theirs.close()
        self.table = self.open()
        if version == 3:
            self.table.upgrade()

    def open(self, **properties):
        return tf.open_catalog("local", warehouse=str(self.folder), **properties).load_table(NAME)

    @staticmethod
    def arrow(rows):
        columns = dict(zip(COLUMNS, map(list, zip(*rows, strict=True)), strict=True))
        return pa.table(columns).append_column("x", pa.nulls(len(rows), pa.float64()))

    def write(self, rows=(), *keys):
        """A commit as Flink makes one: rows, and keys whose older rows are deleted."""
        metadata, environment = self.table.refresh().state.metadata, self.table.environment
        given = {"schema": metadata.schema(), "spec": metadata.spec(), "properties": {}}
        data = []
        if rows:
            places = data_file_locations(metadata, environment.runtime.ids)
            data = write_data_files(
                environment.store, self.arrow(rows), location_for=places, **given
            )
        deletes = [
            file
            for each in keys
            for file in write_equality_deletes(
                environment.store,
                each,
                equality_ids=[
                    given["schema"].find_field(name).field_id for name in each.schema.names
                ],
                location_for=equality_delete_locations(metadata, environment.runtime.ids),
                **given,
            )
        ]
        change = Changeset(
            kind=CommitKind.ROW_DELTA,
            added_data_files=tuple(data),
            added_delete_files=tuple(deletes),
        )
        commit(environment, self.table.identifier, change)

    def drop(self, column):
        """As a tool drops it that knows of no key."""
        environment = self.table.environment
        theirs = replace(environment, catalog=real_catalog(environment.catalog))
        update_schema(theirs, self.table.identifier, lambda change: change.delete_column(column))

    def write_number(self, number):
        self.write([], pa.table({"number": pa.array([number], pa.int64())}))

    def rows(self):
        return Counter(row[:3] for row in scanned_rows(self.table.refresh()).elements())

    def facts(self):
        """What an owner would see changed: all that is no snapshot."""
        metadata = read_metadata(self.table.environment.store.get, self.location)
        return [metadata[each] for each in ("schemas", "properties", "format-version")]

    @property
    def location(self):
        return self.table.refresh().metadata_location

    def cli(self, *arguments):
        result = CliRunner().invoke(cli, ["--warehouse", str(self.folder), *arguments])
        assert result.exit_code == 0, result.output
        return result.output
