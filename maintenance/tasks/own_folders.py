"""Whether a table's folders are its own: cleaning up in them must not meet another table.

`write.data.path` and `write.metadata.path` can name any allowed place, so those are held against
every other table of the catalog. Folders below the table's location are its own, but for a table
that was renamed: where catalogs make locations of names, a new one of its old name is put there.
"""

from __future__ import annotations

from collections.abc import Iterable

from pyiceberg.table.metadata import TableMetadata

from tableformat import Environment
from tableformat.catalog.base import Catalog, Identifier, TableState
from tableformat.errors import InvalidInputError, NotFoundError
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


def tables_within(environment: Environment, state: TableState) -> list[Identifier]:
    """Other tables of the catalog whose metadata files lie in this one's folders.

    Cost: a list of tables; where the catalog has no cheaper call, a load of each.
    """
    catalog = environment.catalog
    others = [each for each in catalog.list_tables() if each != state.identifier]
    locations = catalog.metadata_locations(others)
    if locations is None:
        states = [load_if_there(catalog, each) for each in others]
        locations = {each.identifier: each.metadata_location for each in states if each}
    own = AllowedLocations(_folders(state.metadata))
    return [each for each, location in locations.items() if own.covers(location)]


def load_if_there(catalog: Catalog, identifier: Identifier) -> TableState | None:
    """The table; None if it was dropped meanwhile.

    Raises:
        TableError: It is in the catalog, but cannot be loaded.
    """
    try:
        return catalog.load_table(identifier)
    except NotFoundError:
        if identifier in catalog.list_tables():
            raise
        return None


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
