"""Steps side by side: answers, errors, interrupts and steps in steps."""

from __future__ import annotations

import threading

import pytest

from tableformat.side_by_side import run_ahead, run_in_parts, run_side_by_side


def test_answers_come_in_the_order_of_the_items_and_steps_overlap():
    together = threading.Barrier(3, timeout=30)

    def step(number):
        together.wait()
        return number * 10

    assert run_side_by_side(step, range(3)) == [0, 10, 20]


@pytest.mark.parametrize("at_once", [1, 2])
def test_no_more_than_allowed_run_at_a_time(at_once):
    running, most, lock = set(), [0], threading.Lock()

    def step(number):
        with lock:
            running.add(number)
            most[0] = max(most[0], len(running))
        with lock:
            running.discard(number)

    run_side_by_side(step, range(200), at_once=at_once)
    assert most[0] <= at_once


@pytest.mark.parametrize("at_once", [1, 8])
def test_all_are_tried_before_the_first_error_is_raised(at_once):
    tried = []

    def step(number):
        tried.append(number)
        if number in (3, 5):
            raise ValueError(number)

    with pytest.raises(ValueError, match="3"):
        run_side_by_side(step, range(20), at_once=at_once)
    assert sorted(tried) == list(range(20))


@pytest.mark.parametrize("at_once", [1, 8])
def test_nothing_is_begun_after_an_interrupt_and_nothing_is_running(at_once):
    begun, ended = [], []

    def step(number):
        begun.append(number)
        try:
            if number == 2:
                raise KeyboardInterrupt
        finally:
            ended.append(number)

    with pytest.raises(KeyboardInterrupt):
        run_side_by_side(step, range(10_000), at_once=at_once)
    assert sorted(begun) == sorted(ended)
    assert len(begun) < 10_000


def test_steps_of_steps_need_no_other_threads():
    def inner(number):
        return threading.get_ident()

    def outer(number):
        return set(run_side_by_side(inner, range(50))) == {threading.get_ident()}

    assert all(run_side_by_side(outer, range(64)))


def test_parts_of_a_step_overlap():
    together = threading.Barrier(3, timeout=30)

    def step(_):
        run_in_parts(lambda _: together.wait(), range(3), at_once=3)

    run_side_by_side(step, range(2), at_once=1)
    run_side_by_side(step, range(3), at_once=1)
    assert len(run_side_by_side(step, range(4))) == 4


@pytest.mark.parametrize("waiting", [run_in_parts, run_ahead])
def test_nobody_waits_for_a_thread_that_waits_for_him(waiting):
    """More of each kind, in one another, than there are threads of both."""

    def leaf(number):
        return sum(waiting(lambda n: n, range(number % 3), at_once=4))

    def part(number):
        return sum(run_side_by_side(leaf, range(number % 4 + 1)))

    def step(number):
        return sum(waiting(part, range(number % 5), at_once=4))

    found = []
    users = [
        threading.Thread(
            target=lambda: found.append(run_side_by_side(step, range(100), at_once=100)),
            daemon=True,
        )
        for _ in range(2)
    ]
    for each in users:
        each.start()
    for each in users:
        each.join(20)
    assert len(found) == 2
    assert found[0] == found[1] == [step(number) for number in range(100)]


def test_threads_stay():
    used = set()

    def where(_):
        used.add(threading.current_thread())

    for _ in range(40):
        run_in_parts(where, range(8), at_once=8)
        list(run_ahead(where, range(8), at_once=8))
    assert len(used) <= 64


def test_nothing_to_do_is_nothing():
    assert run_side_by_side(lambda item: item, []) == []


def test_steps_ahead_overlap_and_their_answers_keep_the_order():
    together = threading.Barrier(4, timeout=30)

    def step(number):
        if number < 4:
            together.wait()
        return number * 10

    assert list(run_ahead(step, range(9), at_once=4)) == [10 * number for number in range(9)]


@pytest.mark.parametrize("at_once", [1, 3])
def test_no_more_are_begun_than_are_taken_and_allowed_ahead(at_once):
    begun = []

    def step(number):
        begun.append(number)
        return number

    answers = run_ahead(step, range(100), at_once=at_once)
    for taken in range(1, 8):
        next(answers)
        assert len(begun) <= taken + at_once - 1
    answers.close()
    assert len(begun) < 8 + at_once


@pytest.mark.parametrize("at_once", [1, 3])
def test_error_ahead_comes_at_its_place(at_once):
    def step(number):
        if number == 2:
            raise ValueError(number)
        return number

    answers = run_ahead(step, range(9), at_once=at_once)
    assert [next(answers), next(answers)] == [0, 1]
    with pytest.raises(ValueError, match="2"):
        next(answers)
