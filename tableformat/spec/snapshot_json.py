"""Snapshots from JSON, each one built once, and parsed once where icefold has written the file.

Every version of a table repeats nearly all snapshots of the version before. Reading them again is
most of the cost of reading a long table: a table with 1,400 of them takes 30 ms, for 2.8 MB. So a
snapshot whose text, or every field, is that of one that is still in use is that one. The memory is
weak: it keeps nothing alive.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Mapping
from typing import Any

from pyiceberg.table.snapshots import Snapshot

from tableformat.errors import CorruptDataError
from tableformat.spec.json_texts import text_of
from tableformat.spec.metadata_models import KeyedSnapshot
from tableformat.spec.metadata_rules import check_raw_snapshot

_KNOWN_KEYS = frozenset(field.alias for field in Snapshot.model_fields.values()) | {"summary"}
_LIST = b'"snapshots":['
_ID = re.compile(rb'\{"snapshot-id":(\d{1,19}),')
_in_use: weakref.WeakValueDictionary[int, Snapshot] = weakref.WeakValueDictionary()


def note_in_use(snapshot: Snapshot) -> None:
    """A snapshot that this process makes: it will be met in files."""
    _in_use[snapshot.snapshot_id] = snapshot


def cut_known_snapshots(data: bytes) -> tuple[list[Snapshot], bytes]:
    """Take the snapshots that are known by their text off the front of a metadata file's list.

    Args:
        data: A metadata file, not gzip.

    Returns:
        The snapshots, and the file without their text: it is JSON if and only if `data` is.
    """
    known: list[Snapshot] = []
    start = data.find(_LIST)
    begin = at = start + len(_LIST)
    while start >= 0 and (found := _ID.match(data, at)):
        snapshot = _in_use.get(int(found[1]))
        if snapshot is None:
            break
        text = text_of(snapshot)
        end = at + len(text)
        after = data[end : end + 2]
        if not data.startswith(text, at) or not (after == b",{" or after[:1] == b"]"):
            break
        known.append(snapshot)
        at = end + after.startswith(b",")
    rest = data[:begin] + data[at:] if known else data
    # Twice: it is the key of something else, too. In a string its quotes would be escaped.
    return (known, rest) if rest.count(_LIST) == 1 else ([], data)


def decode_snapshot(raw: Any, version: int) -> Snapshot:
    """Check and build one snapshot.

    Raises:
        CorruptDataError: A rule of `check_raw_snapshot` is broken.
    """
    if not isinstance(raw, dict):
        raise CorruptDataError("a snapshot is not an object")
    if version == 1 and "sequence-number" in raw:  # it has none, and none is written again
        raw = {key: value for key, value in raw.items() if key != "sequence-number"}
    known = _in_use.get(raw.get("snapshot-id", 0))
    if known is not None and _is_same(known, raw):
        return known
    check_raw_snapshot(raw, version)
    summary = raw.get("summary")
    if summary is not None and "operation" not in summary:
        # Format version 1 allows it; PyIceberg warns and takes the same value.
        raw = {**raw, "summary": {"operation": "overwrite", **summary}}
    if not raw.keys() <= _KNOWN_KEYS:
        return KeyedSnapshot.model_validate(raw)
    snapshot = Snapshot.model_validate(raw)
    _in_use[snapshot.snapshot_id] = snapshot
    return snapshot


def _is_same(known: Snapshot, raw: Mapping[str, Any]) -> bool:
    summary = known.summary
    expected = {
        "snapshot-id": known.snapshot_id,
        "parent-snapshot-id": known.parent_snapshot_id,
        "sequence-number": known.sequence_number,
        "timestamp-ms": known.timestamp_ms,
        "manifest-list": known.manifest_list,
        "schema-id": known.schema_id,
        "first-row-id": known.first_row_id,
        "added-rows": known.added_rows,
    }
    given = dict(raw)
    given_summary = given.pop("summary", None)
    if given != {key: value for key, value in expected.items() if value is not None}:
        return False
    if summary is None or not isinstance(given_summary, dict):
        return summary is None and given_summary is None
    return given_summary == {"operation": summary.operation.value, **summary.additional_properties}
