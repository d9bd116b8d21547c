"""Batches of key bytes: both forms mean the same."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resolver.keys import (
    EncodedKeys,
    concat_keys,
    factorize,
    sorted_distinct,
    varying_columns,
)
from tableformat.errors import InvalidInputError


def ragged(keys: list[bytes]) -> EncodedKeys:
    return EncodedKeys(binary=pa.array(keys, pa.large_binary()))


def fixed(keys: list[bytes], width: int) -> EncodedKeys:
    return EncodedKeys(fixed=np.frombuffer(b"".join(keys), dtype=np.uint8).reshape(-1, width))


GOLDEN_8 = [3410344654275262919, 11261637205908575488]
GOLDEN_RAGGED = [
    0,
    11107423750163064397,
    7164066370164493735,
    16480059941374627124,
    8108772420587440356,
]

any_keys = st.lists(st.binary(min_size=1, max_size=20), max_size=30)


@st.composite
def batches(draw: st.DrawFn) -> tuple[list[bytes], EncodedKeys]:
    """Keys, and the batch in either form."""
    if draw(st.booleans()):
        keys = draw(any_keys)
        return keys, ragged([b"?", *keys]).slice(1, len(keys) + 1)
    width = draw(st.sampled_from([1, 2, 7, 8, 9, 16, 17, 18, 24]))
    times = draw(st.sampled_from([1, 1, 1, 8]))  # long ones, too
    letter = st.sampled_from([0, 1, 127, 128, 255])
    key = st.lists(letter, min_size=width, max_size=width).map(lambda each: bytes(each) * times)
    keys = draw(st.lists(key, max_size=30))
    return keys, fixed(keys, width * times)


@settings(max_examples=300, deadline=None)
@given(batches())
def test_both_forms_have_the_same_keys_hash_and_order(
    case: tuple[list[bytes], EncodedKeys],
) -> None:
    keys, batch = case
    assert len(batch) == len(keys)
    assert batch.to_list() == keys
    assert batch.to_binary().to_list() == keys
    assert EncodedKeys.from_arrow(batch.to_arrow()).to_list() == keys
    assert batch.size_bytes == sum(map(len, keys))
    assert batch.hash64().tolist() == ragged(keys).hash64().tolist()
    for form in (batch, batch.to_binary()):
        assert [keys[row] for row in form.argsort()] == sorted(keys)
    ordered = batch.take(batch.argsort())
    expected = [i == 0 or a != b for i, (a, b) in enumerate(zip(sorted(keys), ["", *sorted(keys)]))]  # noqa: B905
    assert ordered.differs_from_previous().tolist() == expected


@settings(max_examples=200, deadline=None)
@given(batches(), st.data())
def test_take_slice_and_range_pick_the_same_rows_as_a_list(
    case: tuple[list[bytes], EncodedKeys], data: st.DataObject
) -> None:
    keys, batch = case
    mask = np.array(
        data.draw(st.lists(st.booleans(), min_size=len(keys), max_size=len(keys))), bool
    )
    assert batch.take(mask).to_list() == [key for key, m in zip(keys, mask, strict=True) if m]
    start = data.draw(st.integers(0, len(keys)))
    stop = data.draw(st.integers(start, len(keys)))
    assert batch.slice(start, stop).to_list() == keys[start:stop]
    assert batch.slice(start, stop).to_arrow().to_pylist() == keys[start:stop]
    assert batch.slice(start, stop).hash64().tolist() == batch.hash64()[start:stop].tolist()
    bound = data.draw(st.one_of(st.binary(max_size=3), st.sampled_from([b"", *keys])))
    ordered = batch.take(batch.argsort())
    assert ordered.first_at_or_after(bound) == sum(key < bound for key in keys)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(st.lists(batches(), min_size=1, max_size=3))
def test_factorize_numbers_equal_keys_equally_over_batches(
    cases: list[tuple[list[bytes], EncodedKeys]],
) -> None:
    numbered = factorize(*(batch for _, batch in cases))
    keys = [key for keys, _ in cases for key in keys]
    numbers = np.concatenate(numbered.numbers).tolist()
    assert [len(part) for part in numbered.numbers] == [len(keys) for keys, _ in cases]
    assert numbered.count == len(set(keys)) == len(set(zip(keys, numbers, strict=True)))
    assert sorted(set(numbers)) == list(range(numbered.count))
    everything = concat_keys([batch for _, batch in cases])
    assert everything.to_list() == keys
    for form in (everything, everything.to_binary()):
        distinct, place = sorted_distinct(form)
        assert distinct.to_list() == sorted(set(keys))
        assert distinct.take(place).to_list() == keys


def test_hash_is_golden() -> None:
    """On disk: the hash decides the shard of a key."""
    assert fixed([bytes(8), b"\x80" + bytes(6) + b"\x01"], 8).hash64().tolist() == GOLDEN_8
    assert ragged([b"", b"a", b"a\0", b"abcdefgh", b"abcdefghi"]).hash64().tolist() == GOLDEN_RAGGED


@pytest.mark.parametrize("width", [0, 3, 8, 17])
def test_hash_of_many_keys_is_that_of_few(width: int) -> None:
    matrix = np.random.default_rng(width).integers(0, 256, (40_000, width), dtype=np.uint8)
    few = [EncodedKeys(fixed=part).hash64() for part in np.array_split(matrix, 13)]
    assert np.array_equal(EncodedKeys(fixed=matrix).hash64(), np.concatenate(few))


def test_shards_are_even_and_within_range() -> None:
    keys = EncodedKeys(fixed=np.arange(100_000, dtype=">i8").view(np.uint8).reshape(-1, 8))
    for count in (1, 2, 3, 7, 64):
        shards = keys.shard_of(count)
        sizes = np.bincount(shards, minlength=count)
        assert len(sizes) == count
        assert sizes.min() > 0.9 * 100_000 / count


def test_null_rows_cannot_be_keys() -> None:
    with pytest.raises(InvalidInputError):
        EncodedKeys.from_arrow(pa.array([b"x", None]))


def test_chunked_columns_are_accepted() -> None:
    column = pa.chunked_array([pa.array([b"x"]), pa.array([b"yy"])])
    assert EncodedKeys.from_arrow(column).to_list() == [b"x", b"yy"]


def test_keys_of_no_batches_are_no_keys() -> None:
    assert len(concat_keys([])) == 0
    assert factorize().count == 0
    assert [
        part.tolist() for part in factorize(EncodedKeys.empty(), EncodedKeys.empty()).numbers
    ] == [[], []]


@given(any_keys, st.integers(0, 3), st.integers(1, 9))
def test_keys_of_one_length_are_a_matrix(keys: list[bytes], skipped: int, width: int) -> None:
    for several in (keys, [each.ljust(width, b"\0")[:width] for each in keys]):
        binary = ragged([b"before"] * skipped + several).binary[skipped:]
        found = EncodedKeys.of(binary)
        assert found.to_list() == several
        assert (found.fixed is not None) == (len({len(each) for each in several}) == 1)


@given(st.integers(0, 40), st.integers(0, 9), st.integers(0, 2**32))
def test_varying_columns_are_those_with_several_values(rows: int, width: int, seed: int) -> None:
    matrix = (np.random.default_rng(seed).random((rows + 1, width)) > 0.95).astype(np.uint8)
    assert varying_columns(matrix).tolist() == [len(set(each)) > 1 for each in matrix.T.tolist()]


@given(st.integers(0, 5000), st.integers(1, 3), st.integers(0, 2**32))
@settings(max_examples=30, deadline=None)
def test_order_of_long_keys_with_repeats_and_shared_beginnings(
    count: int, values: int, seed: int
) -> None:
    """The leading word ties some keys, and tells others apart."""
    matrix = np.random.default_rng(seed).integers(0, values + 1, (count, 17), dtype=np.uint8)
    matrix[:, 3:12] *= 85
    keys = EncodedKeys(fixed=matrix)
    assert keys.take(keys.argsort()).to_list() == sorted(keys.to_list())
