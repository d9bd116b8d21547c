"""PyIceberg's table metadata, made complete: unknown fields are kept, look-ups are by index.

PyIceberg's models drop every field they do not know, and would write a table back without its
`encryption-keys`. They also find a snapshot by walking all of them, which makes a walk along a
history of thousands quadratic. These subclasses cure both and are otherwise the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ConfigDict, Field
from pyiceberg.table.metadata import (
    TableMetadata,
    TableMetadataV1,
    TableMetadataV2,
    TableMetadataV3,
)
from pyiceberg.table.snapshots import Snapshot, Summary
from pyiceberg.table.statistics import BlobMetadata, StatisticsFile
from pyiceberg.typedef import IcebergBaseModel

from tableformat.spec.list_texts import ListTexts
from tableformat.spec.packed_summary import PackedSummary

_INDEX = "_by_id"
_TEXTS = "_list_texts"
_BESIDE = frozenset((_INDEX, _TEXTS))  # what is kept beside the fields
_KEEP_UNKNOWN = ConfigDict(extra="allow", populate_by_name=True, frozen=True)


class KeyedSnapshot(Snapshot):
    """A snapshot with the v3 `key-id`, and with fields that nobody knows yet."""

    model_config = _KEEP_UNKNOWN

    key_id: str | None = Field(alias="key-id", default=None)


class AnyBlobMetadata(BlobMetadata):
    """A statistics blob of any type: PyIceberg refuses a table with one that it does not know."""

    model_config = _KEEP_UNKNOWN

    type: str  # type: ignore[assignment]


class AnyStatisticsFile(StatisticsFile):
    """A statistics file with blobs of any type."""

    model_config = _KEEP_UNKNOWN

    blob_metadata: list[AnyBlobMetadata] = Field(alias="blob-metadata")  # type: ignore[assignment]


class _Indexed(IcebergBaseModel):
    """Snapshot look-up by a dict that is rebuilt when the list is another one."""

    model_config = _KEEP_UNKNOWN

    snapshots: list[Snapshot]

    def snapshot_by_id(self, snapshot_id: int) -> Snapshot | None:
        """The snapshot of that id; constant time."""
        return snapshot_index(self).get(snapshot_id)

    def __getstate__(self) -> dict[Any, Any]:
        state = super().__getstate__()
        fields = {name: value for name, value in state["__dict__"].items() if name not in _BESIDE}
        return {**state, "__dict__": fields}


class IndexedMetadataV1(_Indexed, TableMetadataV1):
    """Format version 1."""

    snapshots: list[Snapshot] = Field(default_factory=list)
    statistics: list[StatisticsFile] = Field(default_factory=list)


class IndexedMetadataV2(_Indexed, TableMetadataV2):
    """Format version 2."""

    snapshots: list[Snapshot] = Field(default_factory=list)
    statistics: list[StatisticsFile] = Field(default_factory=list)


class IndexedMetadataV3(_Indexed, TableMetadataV3):
    """Format version 3; `next_row_id` is always a number."""

    snapshots: list[Snapshot] = Field(default_factory=list)
    statistics: list[StatisticsFile] = Field(default_factory=list)
    next_row_id: int = Field(alias="next-row-id", default=0)


def snapshot_index(metadata: TableMetadata | _Indexed) -> Mapping[int, Snapshot]:
    """All snapshots of a table version by id; not to be changed."""
    # Kept beside the fields, where pydantic's equality does not look. `model_copy` takes it
    # along: the identity of the list tells whether it still fits.
    index = metadata.__dict__.get(_INDEX)
    if index is None or index[0] is not metadata.snapshots:
        index = (metadata.snapshots, {one.snapshot_id: one for one in metadata.snapshots})
        metadata.__dict__[_INDEX] = index
    found: dict[int, Snapshot] = index[1]
    return found


def properties_of(summary: Summary) -> Mapping[str, str]:
    """What `summary.additional_properties` is, in a tenth of the time.

    Walks along a history ask every snapshot, and pydantic's look-up of a private attribute is slow.
    """
    if isinstance(summary, PackedSummary):
        return summary.properties
    found: dict[str, str] | None = (summary.__pydantic_private__ or {}).get(
        "_additional_properties"
    )
    return summary.additional_properties if found is None else found


def carry_index(base: TableMetadata, result: TableMetadata, added: Mapping[int, Snapshot]) -> None:
    """Give `result`, a copy of `base` with `added` more snapshots, the index plus those."""
    index = base.__dict__.get(_INDEX)
    if index is not None and index[0] is base.snapshots:
        result.__dict__[_INDEX] = (result.snapshots, {**index[1], **added})


def lists_of(metadata: TableMetadata) -> Mapping[str, ListTexts]:
    """The text of long lists, by field, as this version or the one that it was made of had them."""
    found: Mapping[str, ListTexts] = metadata.__dict__.get(_TEXTS, {})
    return found


def remember_lists(metadata: TableMetadata, texts: Mapping[str, ListTexts]) -> None:
    """Keep the text of this version's long lists for the next one; `model_copy` takes it along."""
    metadata.__dict__[_TEXTS] = texts


def last_sequence_number(metadata: TableMetadata) -> int:
    """The highest sequence number in use; 0 for version 1, which has none."""
    return 0 if isinstance(metadata, TableMetadataV1) else metadata.last_sequence_number


def next_row_id(metadata: TableMetadata) -> int:
    """The first free row id; 0 before version 3, which has none."""
    return metadata.next_row_id or 0 if isinstance(metadata, TableMetadataV3) else 0


METADATA_MODELS: dict[int, type[TableMetadata]] = {
    1: IndexedMetadataV1,
    2: IndexedMetadataV2,
    3: IndexedMetadataV3,
}
