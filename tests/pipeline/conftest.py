from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.apicurio import missing_apicurio
from tests.support.pipeline import SHAPES, Pipeline, missing_pipeline, start_pipeline
from tests.support.pipeline_bank import Bank


@pytest.fixture(scope="package")
def pipeline() -> Iterator[Pipeline]:
    """PostgreSQL, a broker and Connect with Debezium; skips the tests where they cannot be had."""
    missing = missing_pipeline()
    if missing is not None:
        pytest.skip(missing)
    without = missing_apicurio()
    shapes = [name for name, shape in SHAPES.items() if without is None or not shape.is_avro]
    started = start_pipeline("short", Bank(), shapes)
    yield started
    started.close()
