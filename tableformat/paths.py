"""Every object name icefold gives, built in one place. Names are unique, so objects are immutable.

```
<location>/data/[<partition path>/]<uuid>.parquet            data files
<location>/data/[<partition path>/]<uuid>-eq-deletes.parquet  equality delete files
<location>/data/[<partition path>/]<uuid>-deletes.parquet     position delete files (v2)
<location>/data/<uuid>-dvs.puffin                                   deletion vectors
<location>/metadata/<uuid>-m<n>.avro, snap-<id>-<attempt>-<uuid>.avro, <V>-<uuid>.metadata.json
```

`write.data.path` and `write.metadata.path` move the two folders, as in Iceberg.
"""

from __future__ import annotations

from collections.abc import Callable

from pyiceberg.table.metadata import TableMetadata

from tableformat.runtime import IdSource


def data_directory(metadata: TableMetadata) -> str:
    """Folder of data and delete files, without a trailing slash."""
    path = metadata.properties.get("write.data.path") or f"{metadata.location.rstrip('/')}/data"
    return path.rstrip("/")


def metadata_directory(metadata: TableMetadata) -> str:
    """Folder of manifests, manifest lists and metadata files, without a trailing slash."""
    path = metadata.properties.get("write.metadata.path")
    return (path or f"{metadata.location.rstrip('/')}/metadata").rstrip("/")


def data_file_locations(metadata: TableMetadata, ids: IdSource) -> Callable[[str], str]:
    """A function from partition path ("" for none) to a fresh data file location."""
    return _parquet_locations(metadata, ids, "")


def data_file_location(directory: str, partition_path: str, ids: IdSource) -> str:
    """A fresh data file location below a data directory, for tasks that have no metadata."""
    return _parquet_location(directory, partition_path, ids, "")


def equality_delete_locations(metadata: TableMetadata, ids: IdSource) -> Callable[[str], str]:
    """A function from partition path ("" for none) to a fresh equality delete file location."""
    return _parquet_locations(metadata, ids, "-eq-deletes")


def position_delete_location(directory: str, partition_path: str, ids: IdSource) -> str:
    """A fresh position delete file location below a data directory."""
    return _parquet_location(directory, partition_path, ids, "-deletes")


def puffin_locations(metadata: TableMetadata, ids: IdSource) -> Callable[[], str]:
    """A function that gives a fresh Puffin file location."""
    directory = data_directory(metadata)
    return lambda: f"{directory}/{ids.uuid()}-dvs.puffin"


def _parquet_locations(metadata: TableMetadata, ids: IdSource, suffix: str) -> Callable[[str], str]:
    directory = data_directory(metadata)

    return lambda partition_path: _parquet_location(directory, partition_path, ids, suffix)


def _parquet_location(directory: str, partition_path: str, ids: IdSource, suffix: str) -> str:
    folder = f"{directory}/{partition_path}" if partition_path else directory
    return f"{folder}/{ids.uuid()}{suffix}.parquet"
