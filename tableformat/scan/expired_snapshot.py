"""Tells a reader that its snapshot has expired: what it finds is only that a file is gone."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa
from pyiceberg.table.snapshots import Snapshot

from tableformat.catalog.base import TableState
from tableformat.environment import Environment
from tableformat.errors import NotFoundError, Retry, TableError


@contextmanager
def telling_expiry(
    environment: Environment, state: TableState, snapshots: Sequence[Snapshot | None]
) -> Iterator[None]:
    """Around what reads files of some snapshots.

    Args:
        environment: Where the table is loaded again, if a file is gone.
        state: The version that was planned on.
        snapshots: Of it.

    Raises:
        NotFoundError: Another one, if the table was dropped or one of the snapshots has expired;
            `retry` is `after-replan`. Else that of the file.
    """
    try:
        yield
    except NotFoundError as error:
        location = error.context.get("location")
        why = None if location is None else _why_gone(environment, state, snapshots)
        if why is None:
            raise
        told = NotFoundError(
            f"{why} while it was read: {error.message}",
            action="load the table again and read what it holds now; keep snapshots for as long as "
            "the longest read takes (history.expire.max-snapshot-age-ms), or tag what is read",
            table=state.name,
            location=location,
        )
        told.retry = Retry.AFTER_REPLAN
        raise told from error


def rows_telling_expiry(
    environment: Environment,
    state: TableState,
    snapshots: Sequence[Snapshot | None],
    batches: Iterable[pa.RecordBatch],
) -> Generator[pa.RecordBatch, None, None]:
    """The same batches; see `telling_expiry`."""
    with telling_expiry(environment, state, snapshots):
        yield from batches


def _why_gone(
    environment: Environment, state: TableState, snapshots: Iterable[Snapshot | None]
) -> str | None:
    try:
        metadata = environment.catalog.load_table(state.identifier).metadata
    except NotFoundError:
        return "the table was dropped"
    except TableError:
        return None
    if metadata.table_uuid != state.metadata.table_uuid:
        return "the table was dropped and made anew"
    for each in snapshots:
        if each is not None and metadata.snapshot_by_id(each.snapshot_id) is None:
            return f"snapshot {each.snapshot_id} has expired"
    return None
