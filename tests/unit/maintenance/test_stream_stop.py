"""A stream that hangs is left behind after a stop: soon, and at once at a second signal."""

from __future__ import annotations

import threading

import pytest

from maintenance.cli.stream_stop import EXIT_LEFT_BEHIND, StreamStop


class Left:
    """Instead of the end of the process."""

    def __init__(self):
        self.status, self.has_left = None, threading.Event()

    def __call__(self, status):
        self.status = status
        self.has_left.set()


@pytest.fixture
def left():
    return Left()


@pytest.mark.parametrize(("grace_ms", "calls"), [(30, ["first"]), (60_000, ["first", "again"])])
def test_stream_that_hangs_is_left_behind(left, grace_ms, calls):
    ending = StreamStop(grace_ms, leave=left)

    def hangs(_stop):
        for call in calls:
            getattr(ending, call)()
        assert left.has_left.wait(10)

    ending.around(hangs)(lambda: False)
    assert left.status == EXIT_LEFT_BEHIND


def test_stream_that_ends_in_time_is_not(left):
    ending = StreamStop(30, leave=left)
    ending.around(lambda _stop: ending.first())(lambda: False)
    ending.again()  # the scheduler still ends; that has its own way to be left
    assert not left.has_left.wait(0.2)
