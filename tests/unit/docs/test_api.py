"""docs/api.md names what there is, here and in PyIceberg, and leaves nothing out."""

from __future__ import annotations

import importlib.metadata
import re

import click
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.table import DataScan as OtherScan
from pyiceberg.table import Table as OtherTable
from pyiceberg.table.inspect import InspectTable

import maintenance
import resolver
import tableformat as tf
from maintenance.cli.main import cli
from tableformat.table_inspect import TableInspect
from tableformat.table_refs import TableRefs
from tests.support.guarantees import ROOT, sections

SECTIONS = sections(ROOT / "docs" / "api.md")
OURS = {
    "Table": tf.Table,
    "Scan": tf.Scan,
    "Catalog": tf.TableCatalog,
    "TableInspect": TableInspect,
    "Refs": TableRefs,
}
THEIRS = {"Table": OtherTable, "Scan": OtherScan, "Catalog": Catalog, "TableInspect": InspectTable}
FOR_BACKENDS = {"close", "commit_table", "supports_server_side_planning"}
SQL_VIEWS_OR_TEXTS = re.compile(r"\w*views?(_\w+)?|(identifier|namespace)_to_\w+|\w+_from")


def names_in(text: str) -> set[str]:
    """What the code spans of a text begin with."""
    return set(re.findall(r"`\.?(\w+)", text))


def names_in_column(section: str, number: int) -> set[str]:
    rows = [line for line in SECTIONS[section].splitlines() if line.startswith("| `")]
    return {name for row in rows for name in names_in(row.split(" | ")[number])}


def public(cls: type) -> set[str]:
    """Methods and properties of a class, its bases' too; no fields."""
    found = {
        name: value for base in reversed(cls.__mro__[:-1]) for name, value in vars(base).items()
    }
    fields = {*getattr(cls, "__dataclass_fields__", ()), *getattr(cls, "model_fields", ())}
    return {name for name in found if not name.startswith("_") and name not in fields}


@pytest.mark.parametrize("section", OURS)
def test_every_public_name_has_a_line(section):
    beside = {"open_catalog", "environment", "state"}
    assert names_in_column(section, 0) - beside == public(OURS[section])


@pytest.mark.parametrize("section", THEIRS)
def test_every_name_of_pyiceberg_is_told(section):
    known = public(THEIRS[section]) - FOR_BACKENDS - names_in(SECTIONS[section])
    missing = {name for name in known if callable(getattr(THEIRS[section], name, None))}
    assert not {name for name in missing if not SQL_VIEWS_OR_TEXTS.fullmatch(name)}


@pytest.mark.parametrize("section", ["Table", "Catalog", "TableInspect"])
def test_names_of_pyiceberg_exist(section):
    beside = {"load_catalog", "catalog", "io", "metadata"}
    assert names_in_column(section, 1) - beside <= public(THEIRS[section])


def test_procedures_are_functions_and_commands():
    owners = {"maintenance": maintenance, "resolver": resolver, "Table": tf.Table}
    rows = [line for line in SECTIONS["Procedures"].splitlines() if line.startswith("| `")]
    assert len(rows) >= 9
    for row in rows:
        owner, name, command = re.findall(r"`(\w+)\.(\w+)` \| `icefold ([\w-]+)`", row)[0]
        assert hasattr(owners[owner], name), name
        assert command in cli.commands


def test_command_line_knows_the_procedures_of_iceberg():
    text = SECTIONS["Procedures"]
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| `")]
    names = {name for row in rows for name in re.findall(r"`(\w+)`", row[2])}
    assert {"rewrite_data_files", "expire_snapshots", "rollback_to_snapshot"} <= names
    context = click.Context(cli)
    for name in names - {"set_current_snapshot"}:
        command = cli.get_command(context, name)
        assert command is not None, name
        [row] = [row for row in rows if f"`{name}`" in row[2]]
        assert command.name.split("-")[0] in row[1] + row[2], (name, command.name)


def test_version_is_that_of_the_package():
    assert tf.__version__ == importlib.metadata.version("icefold")
    with pytest.raises(AttributeError, match="no attribute"):
        _ = tf.nothing
