"""What icefold would have to do with a table that others made; nothing is changed.

From metadata and manifests alone: no data file is opened.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pyiceberg.schema import Schema

from resolver.key_choice import key_columns
from resolver.number_text import bytes_text, plural
from resolver.target import LiveFiles, live_files
from tableformat import InvalidInputError, Table
from tableformat.catalog.base import TableState
from tableformat.catalog.keyed import chosen_key
from tableformat.commit.branch_history import ancestors, summary_of
from tableformat.commit.creation import KEPT_HISTORY
from tableformat.commit.expiry_plan import SNAPSHOT_AGE_MAX
from tableformat.spec.data_file import PARQUET_FORMAT, DataFile
from tableformat.spec.names import MAIN_BRANCH, SNAPSHOTS_MAX, STAGING_BRANCH

# What tools leave in the summaries of their commits. The first that fits names the writer.
_WRITERS = (
    ("icefold.", "icefold"),  # whose publishes repeat what the writers said of themselves
    ("flink.", "Flink"),
    ("kafka.connect.", "Kafka Connect"),
    ("trino_query_id", "Trino"),
    ("spark.app.id", "Spark"),
)
_ENGINE = "engine-name"
UNKNOWN_WRITER = "unknown"
BYTES_PER_STAGED_KEY = 60  # docs/resolving.md: held while a batch is matched


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletedBy:
    """Equality deletes of one set of columns.

    Attributes:
        columns: Names; an id where the column is gone.
        files, keys: How many.
        is_key: Whether they are the key's: the index finds their rows; others are joined.
    """

    columns: tuple[str, ...]
    files: int
    keys: int
    is_key: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Adoption:
    """A table as it was found.

    Attributes:
        key: The key that `resolve` would use; empty: none is known.
        key_from: `--key`, `property`, `schema`, or empty.
        writers: Commits by what wrote them, of the history of `main`.
        key_bytes: Of the key columns, to be read for the index; 0 where files do not say it.
        problems: Why it cannot be resolved as it is; each names what helps.
        next: Commands that would serve it.
    """

    table: str
    format_version: int
    key: tuple[str, ...]
    key_from: str
    branches: tuple[str, ...]
    rows: int
    data_files: int
    size_bytes: int
    equality_deletes: tuple[DeletedBy, ...]
    position_delete_files: int
    position_deletes: int
    vectors: int
    writers: Mapping[str, int]
    key_bytes: int
    memory_bytes: int
    problems: tuple[str, ...]
    next: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)

    def lines(self) -> list[tuple[str, str]]:
        """What and how much, for people."""
        by_key = [self._deletes(each) for each in self.equality_deletes]
        writers = [f"{name} {plural(count, 'commit')}" for name, count in self.writers.items()]
        positions = plural(self.position_deletes, "position")
        cost = f"the index reads the key of {plural(self.rows, 'row')}"
        if self.key_bytes:
            cost += f" ({bytes_text(self.key_bytes)})"
        cost += f"; the first cycle holds some {bytes_text(self.memory_bytes)}"
        return [
            ("format version", str(self.format_version)),
            ("key", f"{_names(self.key)} (from {self.key_from})" if self.key else "none"),
            ("branches", ", ".join(self.branches) or "none"),
            (
                "data",
                f"{plural(self.rows, 'row')} in {plural(self.data_files, 'file')}, "
                f"{bytes_text(self.size_bytes)}",
            ),
            ("equality deletes", "; ".join(by_key) or "none"),
            (
                "position deletes",
                f"{positions} in {plural(self.position_delete_files, 'file')}, "
                f"{plural(self.vectors, 'deletion vector')}",
            ),
            ("writers", ", ".join(writers) or "none"),
            ("cost", cost),
            *(("problem", each) for each in self.problems),
            *(("next", each) for each in self.next),
        ]

    def _deletes(self, each: DeletedBy) -> str:
        how = ", joined with the files they can reach" if self.key and not each.is_key else ""
        counts = f"{plural(each.keys, 'key')} in {plural(each.files, 'file')}"
        return f"{_names(each.columns)}: {counts}{how}"


def look_at(table: Table, key: Sequence[str] | None = None) -> Adoption:
    """Report on a table.

    Args:
        table: Refreshed.
        key: Columns that would be the key; None: as `resolve` finds it.

    Raises:
        InvalidInputError: A key property that names no column.

    Effects: none. Cost: reads every manifest of `main`.
    """
    state = table.refresh().state
    chosen = chosen_key(table.environment.catalog, state, key)
    names = table.primary_key if chosen is None else _named_now(state, chosen)
    source = "--key" if key else "property" if chosen else "schema" if names else ""
    live = live_files(table.environment, state.head(MAIN_BRANCH))
    schema = state.metadata.schema()
    data = [entry.data_file for entry in live.data.values()]
    found = _equality_deletes(schema, live, names)
    return Adoption(
        table=state.name,
        format_version=state.metadata.format_version,
        key=tuple(names),
        key_from=source,
        branches=tuple(
            sorted(n for n, ref in state.metadata.refs.items() if ref.snapshot_ref_type == "branch")
        ),
        rows=sum(file.record_count for file in data),
        data_files=len(data),
        size_bytes=sum(file.file_size_in_bytes for file in data),
        equality_deletes=found,
        position_delete_files=len(live.position_deletes),
        position_deletes=sum(e.data_file.record_count for e in live.position_deletes),
        vectors=len(live.dvs),
        writers=_writers(state),
        key_bytes=_key_bytes(schema, data, names),
        memory_bytes=BYTES_PER_STAGED_KEY * sum(each.keys for each in found if each.is_key),
        problems=tuple(_problems(state, names, found, data)),
        next=tuple(_next(state, names, source, found)),
    )


def _named_now(state: TableState, chosen: Sequence[str]) -> tuple[str, ...]:
    """As they are called now; as given where they mean no column, which is reported."""
    try:
        return key_columns(state, chosen)
    except InvalidInputError:
        return tuple(chosen)


def _names(columns: Iterable[str]) -> str:
    return ", ".join(columns)


def _equality_deletes(schema: Schema, live: LiveFiles, key: Sequence[str]) -> tuple[DeletedBy, ...]:
    files: Counter[tuple[str, ...]] = Counter()
    keys: Counter[tuple[str, ...]] = Counter()
    for entry in live.equality_deletes:
        ids = sorted(entry.data_file.equality_ids or ())
        columns = tuple(schema.find_column_name(each) or str(each) for each in ids)
        files[columns] += 1
        keys[columns] += entry.data_file.record_count
    return tuple(
        DeletedBy(
            columns=columns, files=files[columns], keys=count, is_key=set(columns) == set(key)
        )
        for columns, count in keys.most_common()
    )


def _writers(state: TableState) -> dict[str, int]:
    head = state.head(MAIN_BRANCH)
    found: Counter[str] = Counter()
    for snapshot in ancestors(state.metadata, None if head is None else head.snapshot_id):
        summary = summary_of(snapshot)
        names = (name for start, name in _WRITERS if any(k.startswith(start) for k in summary))
        found[next(names, summary.get(_ENGINE, UNKNOWN_WRITER))] += 1
    return dict(found.most_common())


def _key_bytes(schema: Schema, data: Iterable[DataFile], key: Sequence[str]) -> int:
    ids = [field.field_id for name in key if (field := _field(schema, name)) is not None]
    return sum((file.column_sizes or {}).get(each, 0) for file in data for each in ids)


def _field(schema: Schema, name: str) -> Any:
    try:
        return schema.find_field(name)
    except ValueError:
        return None


def _problems(
    state: TableState, key: Sequence[str], found: Sequence[DeletedBy], data: Iterable[DataFile]
) -> Iterable[str]:
    version = state.metadata.format_version
    if version < 2:
        yield f"v{version} tables have no deletes: icefold table upgrade {state.name}"
    if not key:
        likely = f": --key {','.join(found[0].columns)} is what its deletes name" if found else ""
        yield f"no key is declared{likely}"
    for name in key:
        if _field(state.metadata.schema(), name) is None:
            yield f"the key names a column that the table does not have: {name}"
    if key and found and not any(each.is_key for each in found):
        yield f"no equality delete is by {_names(key)}: all of them would be joined"
    other = Counter(f.file_format for f in data if f.file_format.upper() != PARQUET_FORMAT)
    for name, count in other.items():
        yield f"{plural(count, 'data file')} in {name}: icefold reads Parquet only"


def _next(
    state: TableState, key: Sequence[str], source: str, found: Sequence[DeletedBy]
) -> Iterable[str]:
    name = state.name
    named = f" --key {','.join(key)}" if source == "--key" else ""
    if not key:
        return
    if found:
        yield f"icefold resolve {name}{named} --staging main --target main"
    elif state.head(STAGING_BRANCH) is not None:
        yield f"icefold resolve {name}{named}"
    if named:
        yield f"icefold maintain {name} needs the key, too: icefold adopt {name}{named} --apply key"
        yield f"or, with the table as it is, the catalog property key.{name}={','.join(key)}"
    if state.metadata.format_version == 2:
        yield (
            "resolved as v2, with position delete files; deletion vectors need "
            f"icefold table upgrade {name} (no way back, every reader has to know v3)"
        )
    if state.metadata.properties.keys().isdisjoint((SNAPSHOTS_MAX, SNAPSHOT_AGE_MAX)):
        pairs = " ".join(f"{each}={value}" for each, value in KEPT_HISTORY.items())
        yield (
            "commits list five days of snapshots each, a stream's too many: "
            f"icefold table set-properties {name} {pairs}"
        )
