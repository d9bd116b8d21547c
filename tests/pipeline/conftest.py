from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.pipeline import Pipeline, missing_pipeline, start_pipeline
from tests.support.pipeline_bank import Bank


@pytest.fixture(scope="package")
def pipeline() -> Iterator[Pipeline]:
    """PostgreSQL, a broker and Connect with Debezium; skips the tests where they cannot be had."""
    missing = missing_pipeline()
    if missing is not None:
        pytest.skip(missing)
    started = start_pipeline("short", Bank())
    yield started
    started.close()
