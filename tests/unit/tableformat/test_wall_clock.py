"""Wall-clock time that jumps: what expires and what is deleted goes by it."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from tableformat.runtime import JUMP_LASTS_MS, WallClock

START_MS, MINUTE_MS = 1_700_000_000_000, 60_000
HOUR_MS = 60 * MINUTE_MS
YEAR_MS = 365 * 24 * HOUR_MS


@dataclass
class Machine:
    """True time passes; its wall clock is off by `wrong_ms`."""

    passed_ms: int = 0
    wrong_ms: int = 0

    def clock(self) -> WallClock:
        return WallClock(
            lambda: (START_MS + self.passed_ms + self.wrong_ms) * 1_000_000,
            lambda: self.passed_ms * 1_000_000,
        )

    def true_ms(self) -> int:
        return START_MS + self.passed_ms


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.mark.parametrize("jump_ms", [2 * MINUTE_MS, HOUR_MS, YEAR_MS])
@pytest.mark.parametrize("asked_every_ms", [1_000, 6 * MINUTE_MS])
def test_a_jump_ahead_that_ends_is_never_seen(machine, jump_ms, asked_every_ms):
    clock = machine.clock()
    for _ in range(3):  # again and again
        machine.wrong_ms = jump_ms
        end_ms = machine.passed_ms + JUMP_LASTS_MS - MINUTE_MS
        while machine.passed_ms < end_ms:
            assert clock.now_ms() == machine.true_ms()
            machine.passed_ms += asked_every_ms
        machine.wrong_ms = 0
        assert clock.now_ms() == machine.true_ms()
        machine.passed_ms += asked_every_ms


@pytest.mark.parametrize("jump_ms", [2 * MINUTE_MS, YEAR_MS])
def test_a_jump_ahead_that_lasts_is_believed(machine, jump_ms):
    clock = machine.clock()
    machine.wrong_ms = jump_ms
    for _ in range(JUMP_LASTS_MS // MINUTE_MS):
        assert clock.now_ms() == machine.true_ms()
        machine.passed_ms += MINUTE_MS
    assert clock.now_ms() == machine.true_ms() + jump_ms
    machine.passed_ms += HOUR_MS
    assert clock.now_ms() == machine.true_ms() + jump_ms


def test_jumps_to_different_times_are_waited_for_each(machine):
    clock = machine.clock()
    for number in range(1, 40):
        machine.wrong_ms = number * HOUR_MS
        machine.passed_ms += MINUTE_MS
        assert clock.now_ms() == machine.true_ms()


@pytest.mark.parametrize("lasts_ms", [MINUTE_MS, 2 * JUMP_LASTS_MS])
def test_a_jump_back_is_believed_at_once(machine, lasts_ms):
    clock = machine.clock()
    machine.wrong_ms = -YEAR_MS
    assert clock.now_ms() == machine.true_ms() - YEAR_MS
    machine.passed_ms += lasts_ms
    assert clock.now_ms() == machine.true_ms() - YEAR_MS
    machine.wrong_ms = 0
    back = clock.now_ms() == machine.true_ms()
    assert back == (lasts_ms < JUMP_LASTS_MS)  # else it is a jump ahead, as any other


def test_a_clock_that_was_ahead_when_the_process_began_is_believed_when_it_is_set_right(machine):
    machine.wrong_ms = YEAR_MS
    clock = machine.clock()
    machine.passed_ms, machine.wrong_ms = MINUTE_MS, 0
    assert clock.now_ms() == machine.true_ms()


def test_a_clock_that_is_set_right_bit_by_bit_is_followed(machine):
    clock = machine.clock()
    for _ in range(100):
        machine.passed_ms += 1_000
        machine.wrong_ms += 500
        assert clock.now_ms() == machine.true_ms() + machine.wrong_ms
