"""No data file of icefold with one bit changed reads as other rows: all bits, scans and lookups."""

import pytest

from tableformat.errors import CorruptDataError, UnsupportedError
from tests.fuzz.target import CORPUS
from tests.fuzz.targets.parquet_files import PARQUET, PARQUET_ROWS

NAMES = [
    "written-zstd",
    pytest.param("written-plain", marks=pytest.mark.long),
    pytest.param("written-pages", marks=pytest.mark.long),
]


@pytest.mark.parametrize("target", [PARQUET, PARQUET_ROWS], ids=lambda target: target.name)
@pytest.mark.parametrize("name", NAMES)
def test_every_flipped_bit_is_an_error_or_does_not_matter(name, target):
    data = bytearray((CORPUS / "parquet" / name).read_bytes())
    target.parse(bytes(data))
    refused = 0
    for place in range(len(data)):
        for bit in range(8):
            data[place] ^= 1 << bit
            try:
                target.parse(bytes(data))  # raises when the rows are others
            except (CorruptDataError, UnsupportedError):
                refused += 1
            finally:
                data[place] ^= 1 << bit
    assert refused > 4 * len(data)  # the rest is page indexes and names that are not looked at
