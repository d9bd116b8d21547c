"""Where the tables of a catalog may put their files: checked before a change can take effect."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from pyiceberg.table.metadata import TableMetadata

from tableformat.catalog.base import TableState
from tableformat.errors import InvalidInputError, error_context
from tableformat.paths import metadata_directory
from tableformat.store.locations import (
    AllowedLocations,
    ParsedLocation,
    canonical_location,
    parse_location,
)

PATH_PROPERTIES = (
    "write.data.path",
    "write.metadata.path",
    "write.object-storage.path",
    "write.folder-storage.path",
)


def check_own_folder(state: TableState, what: str, planned: TableMetadata | None = None) -> None:
    """Refuse to do `what` with a table that is registered from a copy of another one's files.

    The paths in the copy still lead to the original: what is written goes there, and what one of
    the two needs no more is deleted under the other one.

    Args:
        state: The table.
        what: Completes "cannot ...".
        planned: What a commit makes of it: it may say that the metadata is meant to be there.

    Raises:
        InvalidInputError: The metadata file is neither below the table's location nor where the
            table says that its metadata are.
    """
    file = state.metadata_location
    versions = [state.metadata] if planned is None else [state.metadata, planned]
    places = [place for each in versions for place in (each.location, metadata_directory(each))]
    if not any(_is_below(file, place) for place in places):
        error = InvalidInputError(
            f"cannot {what}: the table's metadata file is not where the table's files are, so it "
            "looks like a copy of a table that may still be in use",
            table=state.name,
            metadata_location=file,
            location=state.metadata.location,
            action="copy with a tool that rewrites the paths (Spark: rewrite_table_path), or "
            "register the original's file; if nobody else has these files, set the table property "
            f"write.metadata.path={file.rpartition('/')[0]}",
        )
        error.files_safe_to_delete = True  # what was written for it is named nowhere
        raise error


def _is_below(file: str, place: str) -> bool:
    with suppress(InvalidInputError):  # of a scheme that is not ours
        file, place = canonical_location(file), canonical_location(place)
    return file.startswith(f"{place.rstrip('/')}/")


class TablePlaces:
    """The allow-list seen from a catalog.

    Args:
        allowed: The list that the object store checks too.
        warehouse: The catalog's warehouse, if it is a location: a REST server's tables may be
            anywhere in its bucket (on disk: below it).
        trust_server: No prefix was configured and the warehouse is only a name: take the bucket
            locations that the REST server gives. Never local files.
    """

    def __init__(
        self,
        allowed: AllowedLocations,
        *,
        warehouse: str | None = None,
        trust_server: bool = False,
    ) -> None:
        self._allowed = allowed
        self._warehouse = None if warehouse is None else parse_location(warehouse)
        self._trust_server = trust_server

    def check(self, location: str) -> None:
        """Refuse a location for new files (`InvalidInputError`)."""
        self._allowed.check(location)

    def check_properties(self, properties: Mapping[str, str]) -> None:
        """Refuse properties that would send files elsewhere."""
        for key in PATH_PROPERTIES:
            if place := properties.get(key):
                with error_context(key=key):
                    self._allowed.check(place)

    def check_table(self, metadata: TableMetadata) -> None:
        """Refuse a table whose effective locations are elsewhere (CVE-2026-42812)."""
        self._allowed.check(metadata.location)
        self.check_properties(metadata.properties)

    def admit(self, location: str) -> None:
        """Allow the location of a table as a REST server gave it, if the operator's words cover it.

        Raises:
            InvalidInputError: They do not.
        """
        if self._allowed.covers(location):
            return
        parsed = parse_location(location)
        if not self._is_trusted(parsed):
            raise InvalidInputError(
                "location refused: the catalog gave one outside the allowed prefixes",
                action="add its prefix to the catalog property 'allowed-locations' if it is meant",
                location=location,
            )
        self._allowed.admit(location)

    def _is_trusted(self, parsed: ParsedLocation) -> bool:
        if parsed.scheme == "file":
            return False
        if self._warehouse is not None:
            return parsed[:2] == self._warehouse[:2]
        return self._trust_server
