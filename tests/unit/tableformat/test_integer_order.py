import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tableformat.integer_order import (
    distinct,
    distinct_first,
    distinct_inverse,
    pair_order,
    stable_order,
)

DTYPES = [np.int8, np.uint16, np.int32, np.int64, np.uint64]


@st.composite
def integers(draw, count=None):
    """Few values, so that some repeat, often at the ends of their type."""
    kind = np.iinfo(draw(st.sampled_from(DTYPES)))
    near = st.sampled_from([kind.min, kind.min + 1, 0, 1, 2, kind.max - 1, kind.max])
    one = st.one_of(near, st.integers(0, 9), st.integers(kind.min, kind.max))
    size = {"max_size": 40} if count is None else {"min_size": count, "max_size": count}
    return np.array(draw(st.lists(one, **size)), dtype=kind.dtype)


@given(integers())
@settings(max_examples=300)
def test_equals_what_numpy_says(numbers):
    before = numbers.copy()
    values, first, inverse = np.unique(numbers, return_index=True, return_inverse=True)

    np.testing.assert_array_equal(stable_order(numbers), np.argsort(numbers, kind="stable"))
    np.testing.assert_array_equal(distinct(numbers), values)
    for got, expected in zip(distinct_first(numbers), (values, first), strict=True):
        np.testing.assert_array_equal(got, expected)
    for got, expected in zip(distinct_inverse(numbers), (values, inverse), strict=True):
        np.testing.assert_array_equal(got, expected)
    assert distinct(numbers).dtype == numbers.dtype
    np.testing.assert_array_equal(numbers, before)


@given(st.data())
@settings(max_examples=300)
def test_pairs_are_ordered_as_numpy_does(data):
    count = data.draw(st.integers(0, 30))
    major, minor = (data.draw(integers(count)) for _ in range(2))

    np.testing.assert_array_equal(pair_order(major, minor), np.lexsort((minor, major)))


@pytest.mark.parametrize("spread", [1, 2**20, 2**44, 2**62])
def test_large_arrays_with_ties_keep_their_order(spread):
    numbers = np.random.default_rng(1).integers(-3, 4, 5000) * spread

    np.testing.assert_array_equal(stable_order(numbers), np.argsort(numbers, kind="stable"))
