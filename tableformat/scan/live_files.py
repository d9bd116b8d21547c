"""What all live files of a snapshot are like, without their entries; noted once per manifest."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from tableformat.codec.avro.live_columns import LIVE_FILE, LiveColumns
from tableformat.codec.avro.manifest_notes import lacks_much, read_notes, write_notes
from tableformat.codec.avro.manifest_store import open_manifest
from tableformat.scan.plan import map_ordered
from tableformat.spec.manifest_file import ManifestFile
from tableformat.store.base import ObjectStore

_DECODE_COST = 8  # of an entry, in what the names in it cost


def read_live_columns(
    store: ObjectStore, path: Path, manifests: Sequence[ManifestFile]
) -> list[LiveColumns]:
    """What the live files of some manifests are like, manifest by manifest.

    Args:
        store: Where they are.
        path: A file that keeps what was found for the next call; its folder may be missing.
        manifests: All of a snapshot.

    Effects: reads the manifests that `path` does not know; replaces it where it lacks a good part
    of them, if it can be written and its folder is there.
    """
    found = {each: LiveColumns(*note) for each, note in read_notes(path, LIVE_FILE).items()}
    unknown = [each for each in manifests if each.manifest_path not in found]
    is_old = lacks_much(manifests, found, decode_cost=_DECODE_COST)
    columns = map_ordered(lambda each: open_manifest(store, each).live_columns(), unknown)
    found |= {manifest.manifest_path: each for manifest, each in zip(unknown, columns, strict=True)}
    if is_old and path.parent.is_dir():
        with suppress(OSError):
            write_notes(path, {each.manifest_path: found[each.manifest_path] for each in manifests})
    return [found[each.manifest_path] for each in manifests]
