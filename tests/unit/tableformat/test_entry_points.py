"""Formats and catalogs of other packages: found by entry points, refused in one line."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

import tableformat as tf
from resolver import resolve
from tableformat import InvalidInputError, UnsupportedError
from tableformat.cdc.formats import find_format, format_names

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples" / "change-format"
SCHEMA = pa.schema([("id", pa.int64()), ("status", pa.string())])

FACTORY = """
from dataclasses import replace
from tableformat.cdc.formats import BUILT_IN
from tableformat.cdc.rowkind import ChangelogMode, RowKind
from tableformat.spec.options import Options

class TakesSinksOption(Options):
    owner = "format 'takes-sinks-option'"
    shards: str = ""

like = BUILT_IN["changelog-json"]
good = replace(like, identifier="good")
other_name = good
no_factory = dict()
only_old_rows = replace(
    like, identifier="only-old-rows", mode=ChangelogMode.of([RowKind.INSERT, RowKind.UPDATE_BEFORE])
)
only_inserts = replace(
    like, identifier="only-inserts", mode=ChangelogMode.of([RowKind.INSERT])
)
takes_sinks_option = replace(
    like,
    identifier="takes-sinks-option",
    options=TakesSinksOption,
)
"""


@pytest.fixture(autouse=True)
def _nothing_found_before():
    find_format.cache_clear()
    yield
    find_format.cache_clear()


@pytest.fixture
def install(tmp_path, monkeypatch):
    """A package with these entry points, and a module `brought`."""
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(str(site))

    def install(entries, *, group="icefold.change_formats", module=FACTORY, package="brought"):
        name = package.replace("-", "_")
        info = site / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        lines = "\n".join(f"{key} = {name}:{value}" for key, value in entries.items())
        (info / "entry_points.txt").write_text(f"[{group}]\n{lines}\n")
        (site / f"{name}.py").write_text(module)
        monkeypatch.delitem(sys.modules, name, raising=False)

    return install


@pytest.fixture
def orders(tmp_path):
    catalog = tf.open_catalog("local", warehouse=str(tmp_path / "warehouse"))
    return catalog.create_table("shop.orders", SCHEMA, primary_key=["id"])


def ingest(table, line, format_name):
    return table.write_changes(pa.table({"value": [line]}), format_name=format_name)


def changelog(kind, **row):
    return json.dumps({"data": row, "op": kind})


def test_format_of_another_package_is_listed_and_used(install, orders):
    install({"good": "good"})
    assert format_names()[-1] == "good"
    ingest(orders, changelog("+I", id=1, status="new"), "good")
    assert resolve(orders).staged_rows == 1


def test_name_that_nobody_brings_gets_the_nearest_of_all(install):
    install({"good": "good"})
    with pytest.raises(InvalidInputError, match="did you mean 'good'"):
        find_format("godo")


@pytest.mark.parametrize(
    ("entry", "value", "reason"),
    [
        ("other", "other_name", "it calls itself 'good'"),
        ("none", "no_factory", "it is a dict, no FormatFactory"),
        ("missing", "not_there", "AttributeError"),
        ("only-old-rows", "only_old_rows", r"it produces \[\+I, -U\]"),
    ],
)
def test_what_is_no_format_is_refused_and_harms_no_other(install, orders, entry, value, reason):
    install({entry: value, "good": "good"})
    with pytest.raises(InvalidInputError, match=reason) as caught:
        ingest(orders, changelog("+I", id=1, status="new"), entry)
    assert caught.value.context["package"] == "brought"
    assert "\n" not in str(caught.value)
    ingest(orders, changelog("+I", id=1, status="new"), "good")


def test_package_that_cannot_be_imported_is_named(install):
    install({"broken": "anything"}, module="import not_installed_anywhere\n")
    with pytest.raises(InvalidInputError, match=r"not_installed_anywhere.*package=brought"):
        find_format("broken")


def test_ctrl_c_while_a_package_is_imported_is_no_fault_of_the_package(install):
    install(
        {"slow": "anything"},
        module="""
class Field:
    def __set_name__(self, owner, name):
        raise KeyboardInterrupt

class Imported:
    field = Field()
""",
    )
    with pytest.raises(KeyboardInterrupt):
        find_format("slow")


def test_two_packages_with_one_name_are_refused(install):
    install({"good": "good"})
    install({"good": "good"}, package="second")
    with pytest.raises(InvalidInputError, match=r"several packages.*brought.*second"):
        find_format("good")


def test_own_names_win(install):
    install({"upsert": "good"})
    assert find_format("upsert").identifier == "upsert"
    assert format_names().count("upsert") == 1


def test_kind_that_was_not_declared_is_refused_before_anything_is_staged(install, orders):
    install({"only-inserts": "only_inserts"})
    with pytest.raises(InvalidInputError, match=r"it declares \[\+I\] and produced -D"):
        ingest(orders, changelog("-D", id=1), "only-inserts")
    assert orders.refresh().state.head("staging") is None


def test_option_that_the_sink_has_too_is_refused(install, orders):
    install({"takes-sinks-option": "takes_sinks_option"})
    with pytest.raises(InvalidInputError, match="option 'shards' is declared twice"):
        ingest(orders, changelog("+I", id=1, status="x"), "takes-sinks-option")


CATALOG = """
from tableformat.backend import open_backend

def catalog(name, properties, runtime):
    return open_backend("local", {"warehouse": properties["folder"]}, runtime=runtime)

nothing = 3
"""


def test_catalog_of_another_package_is_opened(install, tmp_path):
    install({"mine": "catalog", "bad": "nothing"}, group="icefold.catalogs", module=CATALOG)
    catalog = tf.open_catalog("prod", type="mine", folder=str(tmp_path / "there"))
    catalog.create_table("shop.orders", SCHEMA, primary_key=["id"])
    assert (tmp_path / "there" / "shop" / "orders").is_dir()
    with pytest.raises(InvalidInputError, match="no CatalogFactory"):
        tf.open_catalog("prod", type="bad")
    with pytest.raises(UnsupportedError, match="did you mean 'mine'"):
        tf.open_catalog("prod", type="mien")


@pytest.fixture(scope="module")
def installed_example(tmp_path_factory):
    """The example, installed by pip into a folder of its own."""
    source = shutil.copytree(EXAMPLE, tmp_path_factory.mktemp("source") / "example")
    target = tmp_path_factory.mktemp("site")
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--target", str(target), str(source)], check=True)
    return target


MAIN = "from maintenance.cli.start import main; main()"
MAXWELL = [
    {"table": "orders", "type": "insert", "ts": 1, "data": {"id": 1, "status": "new"}},
    {"table": "orders", "type": "bootstrap-insert", "data": {"id": 2, "status": "new"}},
    {"table": "orders", "type": "update", "data": {"id": 1, "status": "paid"}, "old": {}},
    {"table": "orders", "type": "delete", "data": {"id": 2, "status": "new"}},
    {"table": "orders", "type": "insert", "data": {"id": 3, "status": "new"}},
    {"table": "other", "type": "insert", "data": {"id": 9, "status": "x"}},
    {"table": "orders", "type": "table-create", "def": {}},
    {"table": "orders", "type": "insert", "data": {"id": "no number", "status": "x"}},
]


@pytest.mark.slow
def test_example_is_used_from_the_command_line(installed_example, orders, tmp_path):
    file = tmp_path / "events.jsonl"
    file.write_text("".join(json.dumps(event) + "\n" for event in MAXWELL))
    path = os.pathsep.join([str(ROOT), str(installed_example)])
    warehouse = str(tmp_path / "warehouse")

    def icefold(*arguments):
        command = [sys.executable, "-c", MAIN, "--warehouse", warehouse]
        return subprocess.run(
            [*command, *arguments],
            env=os.environ | {"PYTHONPATH": path},
            capture_output=True,
            text=True,
        )

    listed = icefold("ingest", "shop.orders", "--list-options").stdout
    assert "maxwell-json: JSON of Maxwell's daemon (MySQL)\n  tables=name,name,..." in listed
    wrong = icefold("ingest", "shop.orders", str(file), "--format", "maxwell-json", "-o", "table=x")
    assert "did you mean 'tables'?" in wrong.stderr
    given = ["--format", "maxwell-json", "-o", "tables=orders", "-o", "on-bad-record=dead-letter"]
    done = icefold("ingest", "shop.orders", str(file), *given)
    assert done.returncode == 3, done.stderr  # a bad record was put aside
    assert "8 events" in done.stdout
    assert "1 bad record" in done.stdout
    assert "2 skipped (other event)" in done.stdout
    resolve(orders)
    rows = orders.refresh().scan().to_arrow().sort_by("id").to_pylist()
    assert rows == [{"id": 1, "status": "paid"}, {"id": 3, "status": "new"}]
