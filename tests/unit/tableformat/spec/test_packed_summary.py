"""A packed summary is the summary it was made of, to PyIceberg and to ours, and takes little."""

from __future__ import annotations

import copy
import gc
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from pyiceberg.table.snapshots import Operation, Snapshot, Summary

from tableformat.spec.metadata_models import KeyedSnapshot, properties_of
from tableformat.spec.packed_summary import PackedSummary, _names, compact

names = st.sampled_from(["a", "b", "total-records"]) | st.text(max_size=3)
texts = st.text(max_size=20) | st.just("[" + "long " * 2_000 + "]")
properties = st.dictionaries(names, texts, max_size=5)


def snapshot(values: dict[str, str], kind: type[Snapshot] = Snapshot) -> Snapshot:
    values = {key: value for key, value in values.items() if key.lower() != "operation"}
    return kind(
        snapshot_id=7, manifest_list="memory://l", summary=Summary(Operation.APPEND, **values)
    )


@given(given=st.lists(properties, max_size=6))
def test_packed_snapshot_equals_the_snapshot(given) -> None:
    plain = [snapshot(each) for each in given]
    for one, kept in zip(plain, [compact(each) for each in plain], strict=True):
        assert isinstance(kept.summary, PackedSummary)
        assert (kept == one, one == kept) == (True, True)
        assert repr(kept) == repr(one)
        assert kept.model_dump() == one.model_dump()
        expected = one.summary.additional_properties
        assert list(kept.summary.additional_properties.items()) == list(expected.items())
        found = properties_of(kept.summary)
        assert (dict(found), len(found)) == (expected, len(expected))
        assert len(kept.summary) == len(one.summary)
        for name in ("a", "total-records", "operation"):
            assert found.get(name) == expected.get(name)
            assert (name in found) == (name in expected)
            assert kept.summary[name] == one.summary[name]
        for again in (pickle.loads(pickle.dumps(kept)), copy.deepcopy(kept), copy.copy(kept)):
            assert again == one
        assert Snapshot.model_validate_json(kept.model_dump_json()) == one


def test_packed_summary_does_not_change() -> None:
    summary = compact(snapshot({"a": "1"})).summary
    with pytest.raises(TypeError):
        summary["a"] = "2"
    with pytest.raises(ValidationError):
        summary["operation"] = Operation.DELETE
    summary.additional_properties["a"] = "2"
    assert dict(summary.additional_properties) == {"a": "1"}


def test_snapshot_with_more_is_left_as_it_is() -> None:
    for one in (
        snapshot({"a": "1"}, KeyedSnapshot),
        snapshot({"a": 1}),
        Snapshot(snapshot_id=7, manifest_list="memory://l"),
    ):
        assert compact(one) is one


def test_names_go_with_the_last_summary_that_has_them() -> None:
    key = ("only-here", "and-here")
    kept = [compact(snapshot(dict.fromkeys(key, str(number)))) for number in range(3)]
    assert key in _names
    del kept
    gc.collect()
    assert key not in _names
