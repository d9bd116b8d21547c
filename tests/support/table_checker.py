"""A structural checker of metadata, manifest lists and manifests. Shares no code with the product.

Reads Avro with fastavro and the JSON by hand. Does not open data files.
"""

from __future__ import annotations

import gzip
import io
import json
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import fastavro

Read = Callable[[str], bytes]

ADDED, DELETED = 1, 2


@dataclass
class LiveFile:
    """A live entry with everything inherited."""

    path: str
    content: int
    sequence_number: int
    file_sequence_number: int
    snapshot_id: int
    record_count: int
    first_row_id: int | None
    spec_id: int
    partition: tuple[Any, ...]
    referenced: str | None
    offset: int | None
    size: int
    equality_ids: tuple[int, ...]


@dataclass
class CheckedSnapshot:
    """What a snapshot holds."""

    snapshot: dict[str, Any]
    live: list[LiveFile] = field(default_factory=list)
    manifests: list[dict[str, Any]] = field(default_factory=list)

    def names(self, content: int = 0) -> Counter[str]:
        return Counter(file.path for file in self.live if file.content == content)


def read_metadata(read: Read, location: str) -> dict[str, Any]:
    data = read(location)
    if location.endswith(".gz.metadata.json"):
        data = gzip.decompress(data)
    return json.loads(data)


def check_table(read: Read, metadata_location: str) -> dict[int, CheckedSnapshot]:
    """Check every snapshot; AssertionError names what is wrong. Gives the snapshots by id."""
    metadata = read_metadata(read, metadata_location)
    snapshots = {each["snapshot-id"]: each for each in metadata["snapshots"]}
    _check_numbers(metadata, snapshots)
    return {
        snapshot_id: check_snapshot(read, metadata, snapshot)
        for snapshot_id, snapshot in snapshots.items()
    }


def check_snapshot(
    read: Read,
    metadata: dict[str, Any],
    snapshot: dict[str, Any],
    *,
    repeated: Collection[str] = (),
    has_totals: bool = True,
) -> CheckedSnapshot:
    """Check one snapshot. `repeated`: files that somebody else has listed twice. `has_totals`:
    its summary has all totals; else those that it has are right.
    """
    result = CheckedSnapshot(snapshot)
    result.manifests = _entries(read(snapshot["manifest-list"]))
    is_v2 = metadata["format-version"] == 2
    if is_v2:
        assert not {"first-row-id", "added-rows"} & snapshot.keys(), snapshot
        assert _version(read(snapshot["manifest-list"])) <= 2
    next_row_id = snapshot.get("first-row-id")
    for manifest in result.manifests:
        data = read(manifest["manifest_path"])
        assert len(data) == manifest["manifest_length"], manifest
        if next_row_id is None:  # also after an upgrade: a snapshot of v2
            assert manifest.get("first_row_id") is None, manifest
            assert _version(data) <= 2
        elif manifest["content"] == 0:
            assert manifest["first_row_id"] is not None, manifest
            is_new = manifest["added_snapshot_id"] == snapshot["snapshot-id"]
            # After an upgrade the first commit gives ids to the manifests it finds, too.
            if is_new or manifest["first_row_id"] >= snapshot["first-row-id"]:
                assert manifest["first_row_id"] == next_row_id, (manifest, next_row_id)
                next_row_id += manifest["added_rows_count"] + manifest["existing_rows_count"]
        else:
            assert manifest["first_row_id"] is None
        result.live += _check_manifest(manifest, data, snapshot)
    if next_row_id is not None:
        assert next_row_id - snapshot["first-row-id"] == snapshot["added-rows"], snapshot
    _check_live(result, repeated)
    _check_totals(result, has_totals)
    return result


def _check_numbers(metadata: dict[str, Any], snapshots: dict[int, dict[str, Any]]) -> None:
    assert metadata["format-version"] in (2, 3)
    ordered = sorted(snapshots.values(), key=lambda each: each["sequence-number"])
    numbers = [each["sequence-number"] for each in ordered]
    assert len(set(numbers)) == len(numbers), "sequence number used twice"
    if numbers:
        assert numbers[-1] <= metadata["last-sequence-number"]
    end = 0
    for each in (snapshot for snapshot in ordered if "first-row-id" in snapshot):
        assert each["first-row-id"] >= end, f"row id ranges overlap at {each['snapshot-id']}"
        end = each["first-row-id"] + each["added-rows"]
    assert ("next-row-id" in metadata) == (metadata["format-version"] == 3)
    assert end <= metadata.get("next-row-id", 0)
    times = [each["timestamp-ms"] for each in ordered]
    assert times == sorted(times)
    for ref in metadata.get("refs", {}).values():
        assert ref["snapshot-id"] in snapshots


def _check_manifest(
    manifest: dict[str, Any], data: bytes, snapshot: dict[str, Any]
) -> list[LiveFile]:
    counts: Counter[int] = Counter()
    rows: Counter[int] = Counter()
    live = []
    inherited_row_id = manifest.get("first_row_id")
    for entry in _entries(data):
        file, status = entry["data_file"], entry["status"]
        counts[status] += 1
        rows[status] += file["record_count"]
        assert (file["content"] != 0) == (manifest["content"] == 1), file["file_path"]
        number, file_number = entry["sequence_number"], entry["file_sequence_number"]
        if status != ADDED:
            assert number is not None, entry
            assert file_number is not None, entry
            assert entry["snapshot_id"] is not None
        snapshot_id = entry["snapshot_id"] or manifest["added_snapshot_id"]
        if status == DELETED:
            assert snapshot_id == manifest["added_snapshot_id"]
            continue
        first_row_id = file.get("first_row_id")
        if file["content"] == 0 and first_row_id is None and inherited_row_id is not None:
            first_row_id = inherited_row_id
            inherited_row_id += file["record_count"]
        live.append(
            LiveFile(
                path=file["file_path"],
                content=file["content"],
                sequence_number=manifest["sequence_number"] if number is None else number,
                file_sequence_number=file_number or manifest["sequence_number"],
                snapshot_id=snapshot_id,
                record_count=file["record_count"],
                first_row_id=first_row_id,
                spec_id=manifest["partition_spec_id"],
                partition=tuple((file["partition"] or {}).values()),
                referenced=file.get("referenced_data_file"),
                offset=file.get("content_offset"),
                size=file.get("content_size_in_bytes") or file["file_size_in_bytes"],
                equality_ids=tuple(file.get("equality_ids") or ()),
            )
        )
    names = {0: "existing", 1: "added", 2: "deleted"}
    for status, name in names.items():
        assert manifest[f"{name}_files_count"] == counts[status], (manifest, counts)
        assert manifest[f"{name}_rows_count"] == rows[status], (manifest, rows)
    numbers = [file.sequence_number for file in live]
    if numbers:
        assert manifest["min_sequence_number"] == min(numbers), manifest
    assert manifest["sequence_number"] <= snapshot["sequence-number"]
    return live


def _check_live(result: CheckedSnapshot, repeated: Collection[str]) -> None:
    identities = Counter((f.path, f.offset) for f in result.live if f.path not in repeated)
    assert max(identities.values(), default=1) == 1, f"listed twice: {identities.most_common(3)}"
    data = {file.path: file for file in result.live if file.content == 0}
    vectors = [file for file in result.live if file.offset is not None]
    per_file = Counter(file.referenced for file in vectors)
    assert max(per_file.values(), default=1) == 1, f"two vectors: {per_file.most_common(3)}"
    for vector in vectors:
        target = data.get(vector.referenced or "")
        assert target is not None, f"dangling vector for {vector.referenced}"
        assert target.spec_id == vector.spec_id
        assert repr(target.partition) == repr(vector.partition)  # NaN is one partition
        assert target.sequence_number <= vector.sequence_number
    with_ids = [file for file in data.values() if file.first_row_id is not None]
    spans = sorted((file.first_row_id, file.record_count) for file in with_ids)
    end = -1
    for first, count in spans:
        assert first > end or count == 0, f"row ids overlap at {first}"
        end = max(end, first + count - 1)


def _check_totals(result: CheckedSnapshot, has_totals: bool) -> None:
    summary = result.snapshot["summary"]
    by_content = {content: [f for f in result.live if f.content == content] for content in range(3)}
    expected = {
        "total-records": sum(f.record_count for f in by_content[0]),
        "total-files-size": sum(f.size for f in result.live),
        "total-data-files": len(by_content[0]),
        "total-delete-files": len(by_content[1]) + len(by_content[2]),
        "total-position-deletes": sum(f.record_count for f in by_content[1]),
        "total-equality-deletes": sum(f.record_count for f in by_content[2]),
    }
    for key, value in expected.items():
        if has_totals or key in summary:
            assert summary.get(key) == str(value), (key, summary.get(key), value)


@lru_cache(1_024)
def _entries(data: bytes) -> list[dict[str, Any]]:
    """Of a manifest or a manifest list; they are read again and again. Nobody changes them."""
    return _records(data)


def _records(data: bytes) -> list[dict[str, Any]]:
    return list(fastavro.reader(io.BytesIO(data)))


@lru_cache(1_024)
def _version(data: bytes) -> int:
    """The format version that a manifest or a manifest list says it is of; checks its fields."""
    reader = fastavro.reader(io.BytesIO(data))
    version = int(reader.metadata["format-version"])
    schema = json.dumps(reader.writer_schema)
    assert version >= 3 or '"first_row_id"' not in schema, "v2 has no row ids"
    assert version >= 3 or '"content_offset"' not in schema, "v2 has no deletion vectors"
    return version
