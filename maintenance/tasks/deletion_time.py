"""The time by which something is old enough to be deleted."""

from __future__ import annotations

from maintenance.tasks.base import TaskRun
from tableformat.errors import AccessRefusedError
from tableformat.paths import metadata_directory

CLOCK_FOLDER = "clock"  # below the metadata folder: holds a file for a moment


def deletion_time_ms(run: TaskRun) -> int:
    """By this machine's clock or by the store's, whichever is behind: ahead, it deletes too much.

    Effects: a file that is deleted at once, where anything may be deleted. A crash leaves an
    orphan.
    """
    runtime, store = run.environment.runtime, run.environment.store
    now_ms = runtime.clock.now_ms()
    if run.lease is None:
        return now_ms
    folder = f"{metadata_directory(run.table.state.metadata)}/{CLOCK_FOLDER}"
    name = f"{runtime.ids.uuid().hex}.tmp"
    store.put(f"{folder}/{name}", b"clock")
    try:
        found = [info for info in store.list_prefix(folder) if info.location.endswith(name)]
    except AccessRefusedError:  # who expires may have to list nothing
        found = []
    store.delete([f"{folder}/{name}"])
    return min([now_ms, *(info.modified_ms for info in found)])
