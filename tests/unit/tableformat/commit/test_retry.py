import pytest

from tableformat.commit.retry import (
    RetryPolicy,
    backoff_ms,
    commit_retry_policy,
    status_check_policy,
)
from tableformat.errors import InvalidInputError
from tableformat.runtime import Runtime
from tableformat.spec.properties import property_bool, property_int
from tests.support.commit_tables import SeededIds

RUNTIME = Runtime(ids=SeededIds(3))


def test_defaults_are_iceberg_s():
    assert commit_retry_policy({}) == RetryPolicy(
        retries_max=4, min_wait_ms=100, max_wait_ms=60_000, total_timeout_ms=1_800_000
    )
    assert status_check_policy({}) == RetryPolicy(
        retries_max=3, min_wait_ms=1000, max_wait_ms=60_000, total_timeout_ms=1_800_000
    )


def test_waits_double_up_to_the_maximum_and_jitter_by_a_tenth():
    policy = RetryPolicy(retries_max=9, min_wait_ms=100, max_wait_ms=500, total_timeout_ms=10)
    waits = [policy.wait_ms(retry, RUNTIME) for retry in range(1, 6)]
    for wait, base in zip(waits, [100, 200, 400, 500, 500], strict=True):
        assert base <= wait <= base * 1.1
    assert len({policy.wait_ms(1, RUNTIME) for _ in range(20)}) > 1


def test_wait_after_a_week_of_failures_is_the_maximum():
    assert 500 <= backoff_ms(100_000, min_ms=1, max_ms=500, runtime=RUNTIME) <= 550


def test_retries_end_by_count_and_by_time():
    policy = RetryPolicy(retries_max=2, min_wait_ms=1, max_wait_ms=1, total_timeout_ms=100)
    assert policy.allows(2, elapsed_ms=99)
    assert not policy.allows(3, elapsed_ms=0)
    assert not policy.allows(1, elapsed_ms=100)


@pytest.mark.parametrize("value", ["-1", "1.5", "", "many", "1e3"])
def test_malformed_number_names_its_property(value):
    with pytest.raises(InvalidInputError, match=r"property=commit\.x"):
        property_int({"commit.x": value}, "commit.x", 1)


def test_booleans_are_read_in_any_case():
    assert property_bool({"p": "TRUE"}, "p", default=False)
    assert not property_bool({"p": " false "}, "p", default=True)
    assert property_bool({}, "p", default=True)
    with pytest.raises(InvalidInputError):
        property_bool({"p": "yes"}, "p", default=True)
