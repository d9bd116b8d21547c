"""When to try again: Iceberg's retry properties, with their names and defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tableformat.runtime import Runtime
from tableformat.spec.properties import property_int

BACKOFF_FACTOR = 2.0
JITTER_MAX = 0.1  # of the wait: losers of one race must not meet again at the same instant
DOUBLINGS_MAX = 62  # more make a float that is none, after a week of failures


def backoff_ms(failures: int, *, min_ms: float, max_ms: float, runtime: Runtime) -> float:
    """The wait after failure number `failures` (from 1): doubling, capped, then up to 10 % more."""
    base = min(min_ms * BACKOFF_FACTOR ** min(failures - 1, DOUBLINGS_MAX), float(max_ms))
    return base * (1.0 + runtime.ids.uniform(0.0, JITTER_MAX))


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How often, and after which waits. Times are milliseconds."""

    retries_max: int
    min_wait_ms: int
    max_wait_ms: int
    total_timeout_ms: int

    def wait_ms(self, retry: int, runtime: Runtime) -> float:
        """The wait before retry number `retry` (from 1)."""
        return backoff_ms(retry, min_ms=self.min_wait_ms, max_ms=self.max_wait_ms, runtime=runtime)

    def allows(self, retry: int, *, elapsed_ms: float) -> bool:
        """Whether retry number `retry` (from 1) may still start."""
        return retry <= self.retries_max and elapsed_ms < self.total_timeout_ms


def commit_retry_policy(properties: Mapping[str, str]) -> RetryPolicy:
    """`commit.retry.*`: what happens after a lost swap."""
    return RetryPolicy(
        retries_max=property_int(properties, "commit.retry.num-retries", 4),
        min_wait_ms=property_int(properties, "commit.retry.min-wait-ms", 100),
        max_wait_ms=property_int(properties, "commit.retry.max-wait-ms", 60_000),
        total_timeout_ms=property_int(properties, "commit.retry.total-timeout-ms", 1_800_000),
    )


def status_check_policy(properties: Mapping[str, str]) -> RetryPolicy:
    """`commit.status-check.*`: how long to look for a commit whose answer was lost."""
    prefix = "commit.status-check"
    return RetryPolicy(
        retries_max=property_int(properties, f"{prefix}.num-retries", 3),
        min_wait_ms=property_int(properties, f"{prefix}.min-wait-ms", 1_000),
        max_wait_ms=property_int(properties, f"{prefix}.max-wait-ms", 60_000),
        total_timeout_ms=property_int(properties, f"{prefix}.total-timeout-ms", 1_800_000),
    )
