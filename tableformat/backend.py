"""From a catalog's name and properties to an `Environment`.

`local`, or `type=sql` without a `uri`, needs nothing but a folder: the catalog is the SQLite file
`<warehouse>/icefold.db` and tables are at `file:///<warehouse>/<namespace>/<table>`, the spelling
that Spark, DuckDB, DataFusion and PyIceberg all read. Any other name is looked up in PyIceberg's
configuration (`.pyiceberg.yaml`, `PYICEBERG_CATALOG__<NAME>__<KEY>`); given properties win.

| property            | meaning                                                              |
|---------------------|----------------------------------------------------------------------|
| `type`              | `sql`, `rest`, or the name of an entry point `icefold.catalogs` of    |
|                     | another package; guessed from `uri` when absent                       |
| `uri`               | SQLAlchemy URL (SQLite, PostgreSQL) or the REST server's address      |
| `warehouse`         | location of new tables; for REST the name the server wants            |
| `allowed-locations` | more prefixes that tables may use, comma separated                    |
| `key.<namespace>.<table>` | the table's key, if its schema does not declare it (catalog.keyed)  |
| `s3.*`, `gcs.*`, `adls.*` | access to buckets, PyIceberg's names (docs/object-stores.md)    |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from pyiceberg.utils.config import Config

from tableformat.catalog.keyed import KeyedCatalog
from tableformat.catalog.property_names import check_property_names
from tableformat.catalog.table_locations import TablePlaces
from tableformat.entry_points import EntryPoints
from tableformat.environment import Environment
from tableformat.errors import InvalidInputError, UnsupportedError
from tableformat.runtime import Runtime
from tableformat.store.arrow_store import ArrowObjectStore
from tableformat.store.locations import AllowedLocations, canonical_location, home_path
from tableformat.store.vended import CredentialVault

LOCAL_CATALOG = "local"
LOCAL_WAREHOUSE = "warehouse"
DATABASE_FILE = "icefold.db"
ALLOWED_LOCATIONS = "allowed-locations"

# (name, properties, runtime) -> the catalog with its store; checks its own properties.
CatalogFactory = Callable[[str, Mapping[str, Any], Runtime], Environment]


def open_backend(
    name: str, properties: Mapping[str, Any], *, runtime: Runtime | None = None
) -> Environment:
    """Open a catalog with its object store.

    Args:
        name: `local`, or a catalog that PyIceberg's configuration or `properties` describe.
        properties: Win over the configuration. Values may hold secrets.
        runtime: Clock, ids and fail points; the real ones by default.

    Raises:
        InvalidInputError: The catalog is not configured, or a property is missing or wrong, or its
            name is nearly that of one.
        UnsupportedError: No such catalog type.

    Effects: `local` creates the warehouse folder; connections are made when first needed.
    """
    given = {key: value for key, value in properties.items() if value is not None}
    merged = {
        key: value if isinstance(value, Mapping) else str(value)  # auth, ssl: nested, REST only
        for key, value in (_configured(name) | given).items()
    }
    kind = _catalog_type(name, merged)
    if kind in BUILT_IN:
        check_property_names(merged, name)
    opened = _factory(kind)(name, merged, runtime or Runtime())
    return replace(opened, catalog=KeyedCatalog.of(opened.catalog))


def _factory(kind: str) -> CatalogFactory:
    if kind in BUILT_IN:
        return BUILT_IN[kind]
    found = EXTENSIONS.load(kind)
    if found is None:
        raise EXTENSIONS.unknown(kind, list(BUILT_IN), UnsupportedError)
    if not callable(found):
        raise EXTENSIONS.refused(kind, f"it is a {type(found).__name__}, no CatalogFactory")
    return found


def _configured(name: str) -> dict[str, Any]:
    if name == LOCAL_CATALOG:
        return {}
    try:
        found = Config().get_catalog_config(name)
    except Exception as error:  # noqa: BLE001 - the YAML reader's own classes
        # Its text is left out: it may quote a secret from the file.
        raise InvalidInputError(
            f"PyIceberg's configuration cannot be read: {type(error).__name__}", catalog=name
        ) from None
    return dict(found or {})


def _catalog_type(name: str, properties: Mapping[str, Any]) -> str:
    if "type" in properties:
        return str(properties["type"]).lower()
    uri = str(properties.get("uri", ""))
    if uri.startswith(("http://", "https://")):
        return "rest"
    if uri.startswith(("sqlite", "postgresql")) or name == LOCAL_CATALOG:
        return "sql"
    raise InvalidInputError(
        "catalog is not configured",
        action="give type= and uri=, or describe it in .pyiceberg.yaml",
        catalog=name,
    )


# Each catalog brings a client of its own, and a process has one: SQLAlchemy, or requests and what
# PyIceberg needs beside it.


def _open_sql(name: str, given: Mapping[str, Any], runtime: Runtime) -> Environment:
    from tableformat.catalog.sql import SqlCatalog, SqlPointers

    properties = _text_properties(given)
    place = properties.get("warehouse")
    if place is None and "uri" in properties:
        raise InvalidInputError("a sql catalog needs a warehouse", catalog=name, key="warehouse")
    warehouse = absolute_location(place or LOCAL_WAREHOUSE)
    uri = properties.get("uri") or _local_uri(warehouse)
    named = spellings(place or LOCAL_WAREHOUSE)
    allowed = AllowedLocations([warehouse, *named, *_extra_prefixes(properties)])
    store = ArrowObjectStore(properties, allowed)
    catalog = SqlCatalog(
        name,
        properties | {"type": "sql", "uri": uri, "warehouse": warehouse},
        pointers=SqlPointers(uri, name),
        store=store,
        runtime=runtime,
        warehouse=warehouse,
        allowed=allowed,
    )
    return Environment(catalog, store, runtime)


def _open_rest(name: str, properties: Mapping[str, Any], runtime: Runtime) -> Environment:
    from tableformat.catalog.rest import RestCatalog

    if not properties.get("uri"):
        raise InvalidInputError("a rest catalog needs a uri", catalog=name, key="uri")
    given = str(properties.get("warehouse", ""))
    # Servers also take plain names: those say nothing about places.
    warehouse = canonical_location(given) if "://" in given or given.startswith("/") else None
    extra = _extra_prefixes(properties)
    allowed = AllowedLocations([*([warehouse] if warehouse else []), *extra])
    places = TablePlaces(allowed, warehouse=warehouse, trust_server=warehouse is None and not extra)
    vault = CredentialVault()
    store = ArrowObjectStore(_text_properties(properties), allowed, vault)
    catalog = RestCatalog(name, properties, runtime=runtime, places=places, vault=vault)
    return Environment(catalog, store, runtime)


EXTENSIONS = EntryPoints("icefold.catalogs", "catalog type")
BUILT_IN: Mapping[str, CatalogFactory] = {"sql": _open_sql, "rest": _open_rest}


def _text_properties(properties: Mapping[str, Any]) -> dict[str, str]:
    return {key: value for key, value in properties.items() if isinstance(value, str)}


def absolute_location(location: str) -> str:
    """A warehouse as the operator typed it, relative folders included, as a canonical location."""
    if "://" in location or location.lower().startswith("file:"):
        return canonical_location(location)
    return canonical_location(str(home_path(location).resolve()))


def spellings(location: str) -> list[str]:
    """A folder as `absolute_location` has it and, of a local one, as the operator typed it.

    A warehouse that was moved, with a link left at its old place, has tables that say the old one.
    """
    resolved, typed = absolute_location(location), home_path(location)
    is_path = "://" not in location and not location.lower().startswith("file:")
    if not is_path or ".." in typed.parts:  # behind a link, the parent of what it points to
        return [resolved]
    return [resolved, canonical_location(str(typed.absolute()))]


def _local_uri(warehouse: str) -> str:
    if not warehouse.startswith("file://"):
        raise InvalidInputError(
            "a catalog without uri needs a local warehouse",
            action="give uri=postgresql://... or sqlite:///...",
            warehouse=warehouse,
        )
    if "?" in warehouse:
        raise InvalidInputError(
            "no database URL can name a file in this folder: its path has a ?",
            action="choose another folder, or give uri=",
            warehouse=warehouse,
        )
    return f"sqlite:///{warehouse.removeprefix('file://')}/{DATABASE_FILE}"


def _extra_prefixes(properties: Mapping[str, str]) -> list[str]:
    given = properties.get(ALLOWED_LOCATIONS, "").split(",")
    return [prefix for one in given if one.strip() for prefix in spellings(one.strip())]
