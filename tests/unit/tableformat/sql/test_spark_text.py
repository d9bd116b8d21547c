"""What Spark is given of an expression means what was written: both texts in one query each."""

from __future__ import annotations

from pathlib import Path

import pytest

from tableformat.sql.statement import parse_expression, to_sql

pytestmark = [pytest.mark.spark, pytest.mark.slow]

EXPRESSIONS = Path(__file__).with_name("spark_expressions.txt").read_text().splitlines()
ROWS = r"""
CREATE OR REPLACE TEMP VIEW v AS SELECT * FROM VALUES
 (1L, 3, CAST(1.5 AS float), 2.25D, 12.34BD, 'abc', true, DATE '2024-02-29',
  TIMESTAMP_NTZ '2024-02-29 01:02:03.123456', TIMESTAMP '2024-03-10 07:30:00Z', X'00ff41',
  named_struct('x', 1, 'y', 'q'), array(1, 2, null), map('k', 1, 'j', 2)),
 (2L, null, null, null, null, null, null, null, null, null, null, null, null, null),
 (3L, -7, CAST('NaN' AS float), CAST('-Infinity' AS double), -0.05BD, '', false,
  DATE '1969-12-31', TIMESTAMP_NTZ '1969-12-31 23:59:59.999999',
  TIMESTAMP '1969-12-31 23:59:59.5Z', X'', named_struct('x', null, 'y', 'it''s'), array(), map()),
 (4L, 2147, CAST(-0.0 AS float), 1e300D, 99999.99BD, 'a\\b%_"''', true, DATE '0001-01-01',
  TIMESTAMP_NTZ '0001-01-01 00:00:00', TIMESTAMP '9999-12-31 23:00:00Z', X'41',
  named_struct('x', 5, 'y', null), array(9), map('a', null))
 AS t(id, i, f, d, dec, s, b, day, ts, tz, bin, st, l, m)
"""


def test_expressions_mean_to_spark_what_was_written(interpreted) -> None:
    interpreted.sql(ROWS)
    handed = [to_sql(parse_expression(text, what="value")) for text in EXPRESSIONS]
    written, ours = (_answers(interpreted, texts) for texts in (EXPRESSIONS, handed))
    wrong = [
        f"{text} as {given}: {was} became {became}"
        for text, given, was, became in zip(EXPRESSIONS, handed, written, ours, strict=True)
        if was != became
    ]
    assert not wrong, "\n".join(wrong)
    assert len(EXPRESSIONS) > 400


def _answers(spark, texts: list[str], step: int = 60) -> list[tuple[str, list[str]]]:
    """Type and values of each; some at a time, since Spark's planning is more than linear."""
    found = []
    for first in range(0, len(texts), step):
        columns = [f"({text}) AS r{at}" for at, text in enumerate(texts[first : first + step])]
        frame = spark.sql(f"SELECT {', '.join(columns)} FROM v ORDER BY id")
        rows = frame.collect()
        found += [
            (field.dataType.simpleString(), [repr(row[at]) for row in rows])
            for at, field in enumerate(frame.schema.fields)
        ]
    return found
