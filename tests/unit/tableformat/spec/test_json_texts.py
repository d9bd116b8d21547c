"""What is raised while a part of metadata is written as JSON."""

from __future__ import annotations

import pytest
from pydantic import model_serializer
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.typedef import IcebergBaseModel

from tableformat.errors import InvalidInputError
from tableformat.spec.json_texts import model_json


class Part(IcebergBaseModel):
    """What a signal handler raises comes from wherever Python code is run."""

    @model_serializer
    def write(self) -> dict[str, str]:
        raise KeyboardInterrupt


def test_interrupt_stays_one() -> None:
    with pytest.raises(KeyboardInterrupt):
        model_json(Part())


def test_half_a_character_is_told() -> None:
    part = Snapshot(snapshot_id=1, timestamp_ms=1, manifest_list="KeyboardInterrupt\udc80")
    with pytest.raises(InvalidInputError, match="a text cannot be stored as UTF-8"):
        model_json(part)
