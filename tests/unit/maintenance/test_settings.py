import pytest

from maintenance.settings import (
    PREFIX,
    SETTINGS,
    MaintainConfig,
    TaskName,
    parse_config,
    parse_duration_ms,
    parse_overrides,
)
from tableformat import InvalidInputError


def test_defaults_hold_without_properties():
    config = parse_config({"write.format.default": "parquet"})
    assert config["compact.files"] == 64
    assert config.is_enabled(TaskName.COMPACT)


def test_property_and_override_replace_the_default_in_this_order():
    properties = {f"{PREFIX}compact.files": "10", f"{PREFIX}expire.enabled": "FALSE"}
    assert parse_config(properties)["compact.files"] == 10
    assert not parse_config(properties).is_enabled(TaskName.EXPIRE)
    assert parse_config(properties, {"compact.files": 3})["compact.files"] == 3


def test_unknown_property_is_refused_and_names_the_nearest():
    with pytest.raises(InvalidInputError, match=r"did you mean icefold.maintain.compact.files\?"):
        parse_config({f"{PREFIX}compact.file": "10"})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("compact.files", "-1"), ("compact.files", "1.5"), ("compact.files", "many"),
        ("compact.dv-share", "1.1"), ("compact.dv-share", "nan"), ("compact.enabled", "yes"),
        ("compact.interval-ms", "1h"), ("compact.files", "9" * 30), ("compact.files", ""),
    ],
)  # fmt: skip
def test_wrong_value_is_refused_with_its_property(name, value):
    with pytest.raises(InvalidInputError, match=f"property={PREFIX}{name}"):
        parse_config({PREFIX + name: value})


def test_overrides_are_named_with_or_without_prefix():
    assert parse_overrides({"compact.files": "1", f"{PREFIX}expire.snapshots": "2"}) == {
        "compact.files": 1,
        "expire.snapshots": 2,
    }


@pytest.mark.parametrize(
    ("text", "expected"), [("500ms", 500), ("30s", 30_000), ("1.5m", 90_000), ("1d", 86_400_000)]
)
def test_durations_are_parsed(text, expected):
    assert parse_duration_ms(text) == expected


@pytest.mark.parametrize("text", ["", "30", "s", "-1s", "0s", "1 year", "nans", "1e9d"])
def test_other_durations_are_refused(text):
    with pytest.raises(InvalidInputError):
        parse_duration_ms(text)


def test_every_task_has_its_flag_and_pause():
    for task in TaskName:
        assert MaintainConfig({}).is_enabled(task)
        assert MaintainConfig({}).min_interval_ms(task) >= 0
        assert f"{task}.enabled" in SETTINGS


def test_number_beyond_any_is_refused():
    for text in ("9" * 400, "9" * 5000, "-1", "1e999"):
        with pytest.raises(InvalidInputError, match="not a count"):
            parse_overrides({"compact.files": text})
