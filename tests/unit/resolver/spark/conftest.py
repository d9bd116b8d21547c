"""The session that all tests of the process share."""

from tests.support.spark import spark  # noqa: F401
