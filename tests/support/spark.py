"""One local Spark for all tests of a process.

A test folder that needs it has a `conftest.py` with
`from tests.support.spark import spark  # noqa: F401`, and marks its tests `spark`.
"""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from tableformat.spark.session import local_session


@pytest.fixture(scope="session")
def spark() -> SparkSession:
    """The session; it is shared by every folder that imports this, so nobody stops it."""
    return local_session("icefold tests", cores=2, conf={"spark.sql.shuffle.partitions": "2"})
