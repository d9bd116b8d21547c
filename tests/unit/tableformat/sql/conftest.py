from tests.support.spark import interpreted, spark  # noqa: F401
