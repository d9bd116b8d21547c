"""What stays in a bounded cache: the values used last, and of values in turn as many as fit."""

from __future__ import annotations

from tableformat.sized_cache import ADMITTED_EVERY, SizedCache


def cache_of(bound: int) -> SizedCache[int]:
    return SizedCache(bound, lambda value: value)


def test_values_asked_for_in_turn_are_mostly_here_though_they_do_not_all_fit() -> None:
    cache, hits = cache_of(80), []
    for _ in range(40):
        found = [cache.get(key) is not None for key in range(10)]
        for key in (key for key, is_here in enumerate(found) if not is_here):
            cache.offer(key, 10)
        hits.append(sum(found))
        assert cache.used <= 80
    assert sum(hits[1:]) / len(hits[1:]) > 7, hits  # of 8 that fit; put would have none


def test_values_that_nobody_asks_for_any_more_make_room() -> None:
    cache = cache_of(30)
    for key in range(3):
        cache.offer(("old", key), 10)
    for number in range(8 * ADMITTED_EVERY):
        key = ("new", number % 3)
        if cache.get(key) is None:
            cache.offer(key, 10)
    assert all(cache.get(("new", key)) for key in range(3))


def test_a_value_put_pushes_out_what_was_used_least_recently() -> None:
    cache = cache_of(30)
    for key in range(3):
        cache.put(key, 10)
    cache.get(0)
    cache.put(3, 10)
    assert [cache.get(key) is not None for key in range(4)] == [True, False, True, True]
    cache.offer(4, 31)  # never fits
    assert cache.get(4) is None
    assert cache.used == 30
