from __future__ import annotations

from typing import Annotated, Any, Literal

import pytest
from pydantic import Field

from tableformat.cdc.formats import BUILT_IN, choose_format
from tableformat.cdc.sink import SinkOptions
from tableformat.errors import InvalidInputError
from tableformat.spec.options import PAIRS, Names, Options
from tests.support.option_tables import markdown


class SomeOptions(Options):
    owner = "the test"
    path: str = Field(description="where")
    size: int = Field(10, ge=1, description="how much")
    mode: Literal["a", "b"] = Field("a", description="how")
    fast: bool = Field(False, description="whether")
    columns: Names = Field((), description="which")
    units: Annotated[dict[str, Literal["ms", "us"]], PAIRS] = Field({}, description="in what")


def test_options_are_typed_and_defaults_filled_in() -> None:
    given = {"path": "x", "fast": "yes", "mode": "B", "columns": "a, b", "units": "a=ms,b=us"}
    values = SomeOptions.parse(given)
    assert values.path == "x"
    assert values.size == 10
    assert values.mode == "b"
    assert values.fast is True
    assert values.columns == ("a", "b")
    assert values.units == {"a": "ms", "b": "us"}


def test_values_that_are_no_text_are_told_as_text() -> None:
    values = SomeOptions.parse({"path": 7, "size": 3, "fast": True})
    assert (values.path, values.size, values.fast) == ("7", 3, True)


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
        SomeOptions.parse({"path": "x", name: value})


def test_missing_option_lists_the_known_ones() -> None:
    with pytest.raises(InvalidInputError, match=r"missing option 'path'.*known=.*'size'"):
        SomeOptions.parse({})


def test_unknown_option_lists_the_known_ones_and_the_nearest() -> None:
    with pytest.raises(InvalidInputError, match=r"known=.*'mode'.*did you mean 'mode'"):
        SomeOptions.parse({"path": "x", "mod": "a"})


class OtherOptions(Options):
    owner = "another"
    x: str | None = None


def test_option_of_neither_owner_is_left_over() -> None:
    given = {"path": "p", "x": "1"}
    assert SomeOptions.parse(given, OtherOptions).path == "p"
    assert OtherOptions.parse(given, SomeOptions).x == "1"
    with pytest.raises(InvalidInputError, match="unknown option 'y' of the test and another"):
        SomeOptions.parse({"path": "p", "y": "1"}, OtherOptions)


def test_option_of_another_format_is_left_over() -> None:
    with pytest.raises(InvalidInputError, match="unknown option 'kind-column'"):
        choose_format("debezium-json", {"kind-column": "op"}, SinkOptions)


def test_unknown_format_lists_the_formats() -> None:
    with pytest.raises(InvalidInputError, match="debezium-json, changelog-json, upsert, append"):
        choose_format("avro", {})


@pytest.mark.parametrize("model", [SinkOptions, *(f.options for f in BUILT_IN.values())])
def test_documentation_and_help_have_every_option(model: type[Options]) -> None:
    document, helped = markdown(model), {name: text for name, _, _, text in model.described()}
    assert list(helped) == model.names()
    for name, text in helped.items():
        assert f"`{name}`" in document
        assert text


def test_value_that_is_no_text_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="wrong value of option 'kind-field'"):
        choose_format("changelog-json", {"kind-field": "a\udc80"})
