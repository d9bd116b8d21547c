"""Whether a table's folders are its own: cleaning up in them must not meet another table.

Folders below the table's location are. `write.data.path` and `write.metadata.path` can name any
allowed place, so those are held against every other table of the catalog.
"""

from __future__ import annotations

from collections.abc import Iterable

from pyiceberg.table.metadata import TableMetadata

from tableformat import Environment
from tableformat.catalog.base import TableState
from tableformat.errors import InvalidInputError
from tableformat.paths import data_directory, metadata_directory
from tableformat.store.locations import AllowedLocations, canonical_location


def check_own_folders(environment: Environment, state: TableState) -> None:
    """Refuse folders that another table of the catalog uses, too.

    Raises:
        InvalidInputError: A folder of the table overlaps one of another table, or is no usable one.
        TableError: Another table cannot be loaded, so nobody knows.

    Cost: nothing for folders below the location; else a load of each other table.
    """
    below = AllowedLocations([state.metadata.location])
    outside = [folder for folder in _folders(state.metadata) if not below.covers(folder)]
    if not outside:
        return
    for identifier in environment.catalog.list_tables():
        if identifier == state.identifier:
            continue
        other = environment.catalog.load_table(identifier)
        shared = _overlap(outside, [other.metadata.location, *_folders(other.metadata)])
        if shared is not None:
            raise InvalidInputError(
                "refused: a folder of this table belongs to another table, too",
                table=state.name,
                location=shared,
                other=other.name,
                action="give the table folders of its own (write.data.path, write.metadata.path)",
            )


def _folders(metadata: TableMetadata) -> list[str]:
    return [data_directory(metadata), metadata_directory(metadata)]


def _overlap(folders: Iterable[str], places: Iterable[str]) -> str | None:
    """The first of `folders` that holds one of `places`, or lies in one."""
    places = list(places)
    for folder in folders:
        inside = AllowedLocations([folder])
        for place in places:
            if inside.covers(place) or AllowedLocations([place]).covers(folder):
                return canonical_location(folder)
    return None
