"""A deletion vector whose checksum is wrong: who notices."""

from __future__ import annotations

from pathlib import Path

import pytest

from tableformat import CorruptDataError
from tests.support.interop_engines import engine_parameters
from tests.support.interop_tables import InteropCase, KeyedTable, shop_rows

pytestmark = pytest.mark.interop


@pytest.fixture(scope="module")
def damaged(interop_catalog) -> InteropCase:
    made = KeyedTable.create(interop_catalog, "damaged")
    made.append(shop_rows(range(30)))
    made.delete([3, 4])
    case = made.case()
    [task] = case.table.scan().plan.tasks
    assert task.dv is not None
    vector = task.dv.data_file
    assert vector.content_offset is not None
    assert vector.content_size_in_bytes is not None
    path = Path(vector.file_path.removeprefix("file://"))
    data = bytearray(path.read_bytes())
    data[vector.content_offset + vector.content_size_in_bytes - 1] ^= 1  # the CRC's last byte
    path.write_bytes(data)
    return case


def test_icefold_names_the_damaged_file(damaged) -> None:
    with pytest.raises(CorruptDataError, match=r"-dvs\.puffin"):
        damaged.table.scan().to_arrow()


@pytest.mark.parametrize("engine", engine_parameters())
def test_engine_notices_a_wrong_checksum_if_documented(damaged, engine) -> None:
    """docs/engines.md says who does not; when one learns it, the document is to be changed."""
    if not engine.checks_vectors:
        assert engine.read(damaged, ["id"]).num_rows == 28
        return
    with pytest.raises(Exception, match=r"(?i)crc|checksum"):
        engine.read(damaged, ["id"])
