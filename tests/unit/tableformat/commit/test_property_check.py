"""Table properties by any way: the API, a stream's options, a change of the schema."""

import pyarrow as pa
import pytest

from tableformat import open_catalog
from tableformat.cdc.many.table_options import TableOptions
from tableformat.errors import InvalidInputError, TableError, UnsupportedError
from tests.support.another_tool import set_unchecked

SCHEMA = pa.schema([pa.field("id", pa.int64(), False), ("note", pa.string())])
METRICS = "write.metadata.metrics.column."
BLOOM = "write.parquet.bloom-filter-enabled.column."
WRONG = [
    ("icefold.publsh", "rewrite"),
    ("icefold.publish", "rewritten"),
    ("gc.enabled", "yes"),
    ("write.metadata.delete-after-commit.enabled", "1"),
    ("write.metadata.previous-versions-max", "0"),
    ("write.update.mode", "copy"),
    ("write.merge.isolation-level", "none"),
    ("encryption.key-id", "k"),
]
OF_NO_COLUMN = [(METRICS + "note2", "none"), (BLOOM + "nte", "true")]


@pytest.fixture
def catalog(tmp_path):
    return open_catalog("local", warehouse=str(tmp_path / "w"))


def create(catalog, **properties):
    return catalog.create_table("s.t", SCHEMA, primary_key=["id"], properties=properties)


@pytest.mark.parametrize(("name", "text"), [*WRONG, *OF_NO_COLUMN])
def test_what_would_do_nothing_or_stop_writers_is_refused(catalog, name, text):
    with pytest.raises(TableError) as caught:
        create(catalog, **{name: text})
    assert caught.value.context.get("property") == name
    assert not catalog.list_tables()
    table = create(catalog)
    before = table.properties
    with pytest.raises(TableError):
        table.set_properties({name: text})
    assert table.refresh().properties == before


@pytest.mark.parametrize(("name", "text"), WRONG)
def test_a_streams_options_are_checked_before_it_begins(name, text):
    with pytest.raises(InvalidInputError) as caught:
        TableOptions.of({"properties": f'{{"{name}": "{text}"}}'})
    assert caught.value.option == "properties"


def test_properties_of_layers_above_and_of_others_are_taken(catalog):
    create(
        catalog,
        **{
            "icefold.maintain.compact.enabled": "false",
            "icefold.resolve.spark-rows-min": "1",
            "write.wap.enabled": "true",
            "owner": "shop",
            METRICS + "note": "full",
            BLOOM + "note": "TRUE",
        },
    )


def test_properties_of_a_column_follow_its_name_and_go_with_it(catalog):
    table = create(catalog, **{METRICS + "note": "full", BLOOM + "note": "true"})
    table.update_schema(lambda s: s.rename_column("note", "remark"))
    assert table.properties[METRICS + "remark"] == "full"
    assert table.properties[BLOOM + "remark"] == "true"
    assert METRICS + "note" not in table.properties
    table.update_schema(lambda s: s.delete_column("remark"))
    assert not [name for name in table.properties if name.startswith((METRICS, BLOOM))]


def test_columns_that_swap_names_swap_their_properties(catalog):
    table = create(catalog, **{METRICS + "note": "full", METRICS + "id": "none"})

    def swap(schema):
        schema.rename_column("note", "id")
        schema.rename_column("id", "note")

    table.update_schema(swap)
    assert table.properties[METRICS + "id"] == "full"
    assert table.properties[METRICS + "note"] == "none"


def test_nothing_is_written_to_an_encrypted_table(catalog, tmp_path):
    table = create(catalog)
    table.stage(upserts=pa.table({"id": [1], "note": ["a"]}, schema=SCHEMA))
    set_unchecked(table, {"encryption.key-id": "k"})
    before = sorted(path for path in (tmp_path / "w").rglob("*") if path.is_file())
    with pytest.raises(UnsupportedError, match="encrypted"):
        catalog.load_table("s.t").stage(upserts=pa.table({"id": [2], "note": ["b"]}, schema=SCHEMA))
    with pytest.raises(UnsupportedError, match="encrypted"):
        catalog.load_table("s.t").append(pa.table({"id": [2], "note": ["b"]}, schema=SCHEMA))
    assert sorted(path for path in (tmp_path / "w").rglob("*") if path.is_file()) == before
