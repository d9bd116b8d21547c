"""A minute of each real writer; longer runs with more kills: `scripts/writers`."""

from __future__ import annotations

import pytest

from tests.writers.run import WRITERS, main

pytestmark = [
    pytest.mark.interop,
    pytest.mark.services,
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.timeout(1800),
]


@pytest.mark.parametrize(
    ("writer", "version", "place"),
    [
        ("flink", "2", "branch"),
        ("flink", "2", "main"),
        ("flink", "3", "branch"),
        ("flink", "3", "main"),
        ("flink-old", "2", "branch"),
        ("flink-sql", "3", "branch"),
        ("flink-sql-changelog", "2", "main"),
        ("flink-dynamic", "2", "branch"),
        ("connect", "3", "branch"),
        ("spark-append", "3", "branch"),
        ("spark-merge", "3", "main"),
        ("spark-statements", "2", "main"),
        ("trino", "3", "main"),
        ("trino-statements", "2", "main"),
    ],
)
def test_rows_of_a_writer_that_is_killed_beside_icefold(writer, version, place) -> None:
    missing = WRITERS[writer].missing()
    if missing is not None:
        pytest.skip(missing)
    words = ["--writer", writer, "--format-version", version, "--place", place]
    words += ["--minutes", "1", "--kills", "2", "--per-second", "100"]
    assert main(words) == 0
