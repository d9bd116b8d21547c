"""What a primary-key index is to a cycle: look up, publish, prepare, apply.

The index maps key bytes to the rows that have the key: a *set* of (file, position) per key. It is
derived state, bound to one snapshot of one branch. A cycle

1. looks up the staged keys (`lookup`),
2. publishes to the table,
3. makes its change durable beside the index (`prepare`); nothing is visible,
4. makes the change visible together with the new binding (`apply`).

A caller may prepare before it publishes, and throw the change away if that fails (`discard`). A
crash between 2 and 4 leaves an index that is bound to the older snapshot, which is true; the next
run follows the table's history from there (`follow`). So the index can be behind, never wrong.

What an index holds compared with the live rows of the snapshot it names: every live row, and maybe
positions that are already deleted by the current deletion vector of their file, because deletes by
other writers are not read back into the index (see `follow`). Such a position merges into the
vector without effect. Positions in files that left the table are never returned.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from resolver.keys import ENCODING_VERSION, EncodedKeys
from tableformat.array_types import Int64s
from tableformat.errors import CorruptDataError


class IndexDamagedError(CorruptDataError):
    """The index cannot be trusted any more: close it and rebuild it. No table file is at fault.

    An index on disk remembers it, so opening it again answers that it is damaged.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexBinding:
    """What the content of an index is true for.

    Attributes:
        table_uuid: The table.
        branch: The branch whose rows are indexed.
        key_fingerprint: `KeySchema.fingerprint` of the indexed key.
        snapshot_id: The snapshot of the branch; None for a branch without snapshots.
        sequence_number: Its sequence number; 0 without a snapshot.
        encoding_version: Version of the key bytes.
    """

    table_uuid: str
    branch: str
    key_fingerprint: str
    snapshot_id: int | None
    sequence_number: int
    encoding_version: int = ENCODING_VERSION

    def at(self, *, snapshot_id: int | None, sequence_number: int) -> IndexBinding:
        """The same table, branch and key at another snapshot."""
        return replace(self, snapshot_id=snapshot_id, sequence_number=sequence_number)

    def is_like(self, other: IndexBinding) -> bool:
        """Whether nothing but the snapshot differs."""
        here = other.at(snapshot_id=self.snapshot_id, sequence_number=self.sequence_number)
        return here == self


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexedFile:
    """A data file as the index knows it: enough to scope a match without reading manifests.

    `partition` holds Iceberg's internal values, as in `DataFile.partition`.
    """

    file_path: str
    spec_id: int
    partition: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Matches:
    """Rows that have one of the keys looked up, ordered by `key_ordinal`.

    Attributes:
        key_ordinal: Shape `(matches,)`: which key of the lookup; absent keys do not occur, keys
            with several rows occur several times.
        file_id: Shape `(matches,)`: the file, a key of `files`.
        position: Shape `(matches,)`: 0-based row ordinal in the file.
        files: Every file that occurs.
    """

    key_ordinal: Int64s
    file_id: Int64s
    position: Int64s
    files: Mapping[int, IndexedFile]

    def __len__(self) -> int:
        return len(self.key_ordinal)


@dataclass(frozen=True, slots=True, eq=False)
class Entries:
    """Index entries, one per (key, row).

    Attributes:
        keys: n keys.
        file_id: Shape `(n,)`: ids of the index; in `IndexChanges.put`, ordinals in `added_files`.
        position: Shape `(n,)`: 0-based row ordinals in the file.
    """

    keys: EncodedKeys
    file_id: Int64s
    position: Int64s

    def __post_init__(self) -> None:
        assert len(self.keys) == len(self.file_id) == len(self.position)

    def __len__(self) -> int:
        return len(self.position)


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexChanges:
    """One change. In effect, in this order: drop files, remove keys, remove entries, put entries.

    Attributes:
        dropped_files: Paths that left the table. Costs nothing per row: their entries are dead
            from then on. Unknown paths are ignored.
        added_files: Files that `put` refers to. A path that is known already keeps its id.
        removed_keys: Keys whose rows all go. The cheapest way to remove: nothing is read. Iterated
            once, by `prepare`.
        removed: Single rows that go, by the ids of `Matches` or `file_ids`.
        put: Rows that come; `file_id` is the ordinal in `added_files`. Putting an entry that is
            there already changes nothing. Iterated once, by `prepare`, which spills to disk what
            it cannot hold: it may be lazy and large.
    """

    dropped_files: tuple[str, ...] = ()
    added_files: tuple[IndexedFile, ...] = ()
    removed_keys: Iterable[EncodedKeys] = ()
    removed: tuple[Entries, ...] = ()
    put: Iterable[Entries] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A change that is computed and durable but not visible.

    Attributes:
        id: Its name.
        base: The state of the index it was computed on; it can only be applied to that state.
    """

    id: str
    base: str


class PrimaryKeyIndex(Protocol):
    """Key bytes -> rows, as of one snapshot. One process at a time has it open for writing."""

    @property
    def binding(self) -> IndexBinding:
        """What the content is true for."""

    def lookup(self, keys: EncodedKeys) -> Matches:
        """All rows of each key, in files that are in the table.

        Raises:
            IndexDamagedError: Rebuild it.
        """

    def file_ids(self, paths: Iterable[str]) -> dict[str, int]:
        """Ids of those paths that are in the index."""

    def files(self) -> dict[int, IndexedFile]:
        """All files. Cost: follows the table; for verification and tools, not for a cycle."""

    def entries(self) -> Iterator[Entries]:
        """All entries in files of the table, in batches of bounded size, in no given order."""

    def prepare(self, changes: IndexChanges) -> Prepared:
        """Compute a change. Several may be prepared, but only one of them can be applied.

        Raises:
            IndexDamagedError: Rebuild it.
            StoreUnavailableError: The disk is full or read-only. Nothing has changed.
        """

    def apply(self, prepared: Prepared, binding: IndexBinding) -> None:
        """Make the change visible, and bind the index to what it now reflects.

        Call it only when the publish is known to have landed (I20). Repeating it after an error
        goes on where it stopped; so does opening the index again.

        Raises:
            InvalidInputError: The index has changed since `prepare`; nothing is applied.
            IndexDamagedError, StoreUnavailableError: As for `prepare`; open the index again.
        """

    def discard(self, prepared: Prepared) -> None:
        """Throw a change away that was not applied. Twice is no error."""

    def close(self) -> None:
        """Release files and locks. The index cannot be used any more."""
