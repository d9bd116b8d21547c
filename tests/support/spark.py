"""One local Spark for all tests of a process.

A test folder that needs it has a `conftest.py` with
`from tests.support.spark import spark  # noqa: F401`, and marks its tests `spark`.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from tableformat.spark.session import local_session

# Compiling the code of a query takes longer than running it over some fifty rows.
UNCOMPILED = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
}


@pytest.fixture(scope="session")
def spark() -> SparkSession:
    """The session; it is shared by every folder that imports this, so nobody stops it."""
    return local_session("icefold tests", cores=2, conf={"spark.sql.shuffle.partitions": "2"})


@pytest.fixture
def interpreted(spark) -> Iterator[SparkSession]:
    """The session, with queries interpreted instead of compiled."""
    before = {key: spark.conf.get(key, None) for key in UNCOMPILED}
    for key, value in UNCOMPILED.items():
        spark.conf.set(key, value)
    yield spark
    for key, value in before.items():
        if value is None:
            spark.conf.unset(key)
        else:
            spark.conf.set(key, value)
