from tests.support.spark import spark  # noqa: F401
