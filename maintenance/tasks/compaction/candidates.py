"""Which data files compaction has to look at: from columns of all files, without their entries.

An entry takes kilobytes, a row of the columns 24 bytes, which are noted beside the index. All that
`plan_groups` could choose is chosen here, and little else: hashes stand for locations and
partitions, so that now and then a file more is looked at.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from maintenance.tasks.compaction.plan import Sizes
from maintenance.tasks.options import CompactOptions
from resolver.index_keeper import FILE_NOTES
from resolver.shared_keeper import notes_folder
from resolver.target import LiveFiles
from tableformat.catalog.base import TableState
from tableformat.codec.avro.live_columns import LIVE_FILE, LiveColumns
from tableformat.codec.avro.manifest_store import load_manifest
from tableformat.environment import Environment
from tableformat.scan.live_files import read_live_columns
from tableformat.spec.data_file import ManifestEntry
from tableformat.spec.manifest_file import ManifestContent, ManifestFile

# Files that one run looks at, small ones first; more are left to the next. ~10 KB each.
FILES_MAX = 50_000

Rows = npt.NDArray[np.int64]


def candidates(
    environment: Environment, state: TableState, live: LiveFiles, options: CompactOptions
) -> list[ManifestEntry] | None:
    """The data files of the branch's head that may be worth a rewrite; None: look at all.

    All are to be looked at where columns do not tell: with a filter, with deletes that are no
    vectors, or if all shall be rewritten.

    Effects: as `read_live_columns`.
    """
    if options.filter is not None or options.rewrite_all:
        return None
    notes = notes_folder(environment, state, options.branch) / FILE_NOTES
    columns = read_live_columns(environment.store, notes, live.manifests)
    if not all(each.is_complete for each in columns):
        return None
    of_data = [
        (manifest, each)
        for manifest, each in zip(live.manifests, columns, strict=True)
        if manifest.content == ManifestContent.DATA
    ]
    files = _together([each for _, each in of_data])
    vectors = _together(
        [
            each
            for manifest, each in zip(live.manifests, columns, strict=True)
            if manifest.content == ManifestContent.DELETES
        ]
    )
    chosen = worth_a_look(files, vectors, Sizes.of(state.metadata, options))
    return _entries(environment, [(m, len(each.files)) for m, each in of_data], chosen)


def worth_a_look(files: npt.NDArray[np.void], vectors: npt.NDArray[np.void], sizes: Sizes) -> Rows:
    """Rows of `files` that may be worth a rewrite, ascending; both are of `LIVE_FILE`."""
    rows = np.maximum(files["rows"], 1)
    location = _codes(np.concatenate([files["location"], vectors["location"]]))
    killed = np.bincount(location[len(files) :], weights=vectors["rows"], minlength=len(location))
    dead = np.minimum(killed[location[: len(files)]], files["rows"])
    live_bytes = files["size_bytes"] * ((files["rows"] - dead) / rows)
    must_go = (files["size_bytes"] > sizes.large) | (dead >= sizes.dead_rows_min(files["rows"]))
    small = ~must_go & (files["size_bytes"] < sizes.small)
    partition = _codes(files["partition"])
    count, bytes_small = (
        np.bincount(partition, weights=weights)[partition]
        for weights in (small, live_bytes * small)
    )
    enough = (count >= sizes.options.input_files_min) | (
        (count > 1) & (bytes_small >= sizes.target)
    )
    wanted = np.bincount(partition, weights=must_go)[partition] > 0
    chosen = np.flatnonzero(must_go | (small & (wanted | enough)))
    if len(chosen) > FILES_MAX:
        # Within a power of two any order is good enough for tiers; so few manifests are decoded.
        tier = np.frexp(live_bytes[chosen])[1]
        chosen = chosen[np.lexsort((chosen, tier, ~must_go[chosen]))[:FILES_MAX]]
    return np.sort(chosen)


def _codes(values: npt.NDArray[np.uint32]) -> Rows:
    """Numbers from 0 on, equal where the values are."""
    codes: Rows = pa.array(np.ascontiguousarray(values)).dictionary_encode().indices.to_numpy()
    return codes


def _together(columns: Sequence[LiveColumns]) -> npt.NDArray[np.void]:
    return np.concatenate([np.empty(0, dtype=LIVE_FILE), *(each.files for each in columns)])


def _entries(
    environment: Environment, manifests: Sequence[tuple[ManifestFile, int]], chosen: Rows
) -> list[ManifestEntry]:
    """The chosen ones of the live entries of some manifests, of which each has so many."""
    found: list[ManifestEntry] = []
    start = 0
    for manifest, count in manifests:
        low, high = np.searchsorted(chosen, (start, start + count))
        if low < high:
            live = [each for each in load_manifest(environment.store, manifest) if each.is_live]
            found += [live[row - start] for row in chosen[low:high].tolist()]
        start += count
    return found
