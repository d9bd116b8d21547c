"""An outage is one line at its begin and one at its end, however many tables it concerns."""

from __future__ import annotations

import logging

import pytest

from maintenance.told_outages import ToldOutages


class Clock:
    at_ms = 0.0

    def monotonic_ms(self):
        return self.at_ms


@pytest.fixture
def told(caplog):
    caplog.set_level(logging.INFO, logger="icefold.maintain")
    return caplog


def texts(told):
    return [one.getMessage() for one in told.records]


def test_outage_of_many_tables_is_told_once_and_ends_with_the_last(told):
    clock = Clock()
    outages = ToldOutages(clock)
    for _ in range(3):
        for name in "abc":
            outages.begins(("s", name), "no answer", f"no answer; table={name}")
    clock.at_ms = 12_000
    for name in "ab":
        outages.ends(("s", name))
    assert texts(told) == ["s.a: cannot be maintained: no answer; table=a"]
    outages.ends(("s", "c"))
    assert texts(told)[1:] == ["3 tables can be looked at again, after 12.0 s"]
    outages.ends(("s", "c"))
    outages.begins(("s", "b"), "no answer", "again")
    assert texts(told)[2:] == ["s.b: cannot be maintained: again"]


def test_another_reason_is_told_as_well(told):
    outages = ToldOutages(Clock())
    outages.begins(("s", "a"), "no catalog", "no catalog")
    outages.begins(("s", "b"), "no bucket", "no bucket")
    outages.begins(("s", "a"), "no bucket", "no bucket")
    assert len(texts(told)) == 2
    outages.ends(("s", "a"))
    outages.ends(("s", "b"))
    assert texts(told)[2:] == ["2 tables can be looked at again, after 0 ms"]
