from __future__ import annotations

from typing import Any

import pytest

from tableformat.cdc.formats import FACTORIES, choose_format
from tableformat.cdc.options import Option, OptionKind, OptionTable, parse_options
from tableformat.cdc.sink import SINK_OPTIONS
from tableformat.errors import InvalidInputError

TABLE = OptionTable(
    "the test",
    (
        Option(name="path", help="where", required=True),
        Option(name="size", kind=OptionKind.INTEGER, minimum=1, default=10, help="how much"),
        Option(name="mode", kind=OptionKind.CHOICE, choices=("a", "b"), default="a", help="how"),
        Option(name="fast", kind=OptionKind.BOOLEAN, default=False, help="whether"),
        Option(name="columns", kind=OptionKind.LIST, help="which"),
        Option(name="units", kind=OptionKind.MAP, choices=("ms", "us"), help="in what"),
    ),
)


def test_options_are_typed_and_defaults_filled_in() -> None:
    values = TABLE.parse({"path": "x", "fast": "yes", "columns": "a, b", "units": "a=ms,b=us"})
    assert values.text("path") == "x"
    assert values.integer("size") == 10
    assert values.text("mode") == "a"
    assert values.flag("fast") is True
    assert values.names("columns") == ("a", "b")
    assert values.mapping("units") == {"a": "ms", "b": "us"}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("size", "x"),
        ("size", "0"),
        ("mode", "c"),
        ("fast", "maybe"),
        ("columns", "a,,b"),
        ("columns", "a,a"),
        ("units", "a"),
        ("units", "a=days"),
        ("units", "a=ms,a=us"),
    ],
)
def test_wrong_value_names_option_owner_and_what_to_give(name: str, value: Any) -> None:
    with pytest.raises(InvalidInputError, match=f"option '{name}' of the test.*give "):
        TABLE.parse({"path": "x", name: value})


def test_missing_option_lists_the_known_ones() -> None:
    with pytest.raises(InvalidInputError, match=r"missing option 'path'.*known=.*'size'"):
        TABLE.parse({})


def test_unknown_option_lists_the_known_ones_and_the_nearest() -> None:
    with pytest.raises(InvalidInputError, match=r"known=.*'mode'.*did you mean 'mode'"):
        TABLE.parse({"path": "x", "mod": "a"})


def test_option_of_neither_table_is_left_over() -> None:
    other = OptionTable("another", (Option(name="x", help=""),))
    mine, others = parse_options([TABLE, other], {"path": "p", "x": "1"})
    assert (mine.text("path"), others.text("x")) == ("p", "1")
    with pytest.raises(InvalidInputError, match="unknown option 'y' of the test and another"):
        parse_options([TABLE, other], {"path": "p", "y": "1"})


def test_option_of_another_format_is_left_over() -> None:
    with pytest.raises(InvalidInputError, match="unknown option 'kind-column'"):
        choose_format("debezium-json", {"kind-column": "op"}, SINK_OPTIONS)


def test_unknown_format_lists_the_formats() -> None:
    with pytest.raises(InvalidInputError, match="debezium-json, changelog-json, upsert, append"):
        choose_format("avro", {})


@pytest.mark.parametrize("table", [SINK_OPTIONS, *(f.options for f in FACTORIES.values())])
def test_documentation_and_help_have_every_option(table: OptionTable) -> None:
    document, helped = table.markdown(), dict(table.help_lines())
    for option in table.options:
        assert f"`{option.name}`" in document
        assert any(line.startswith(f"{option.name}=") for line in helped)
        assert option.help


def test_value_that_is_no_text_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="wrong value of option 'kind-field'"):
        choose_format("changelog-json", {"kind-field": "a\udc80"})
