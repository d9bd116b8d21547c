"""Places outside the table, in all that can name a place: refused untouched (I24, G15, R77).

Each location is written into each artefact of a table on disk, as a hostile writer would do it,
and the table is then read, resolved and cleaned. Some of the places exist and hold valid files, so
that looking there would work.
"""

from __future__ import annotations

import copy
import io
import json
import shutil
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from click.testing import CliRunner

import tableformat as tf
from maintenance.cli.main import cli
from maintenance.tasks.options import RemoveOrphansOptions
from maintenance.tasks.remove_orphans import remove_orphans
from resolver import resolve
from tableformat.errors import InvalidInputError, TableError
from tests.support.goals import goal
from tests.support.table_metadata import edit_metadata

NAME = "t.rows"
SCHEMA = pa.schema([("id", pa.int64()), ("region", pa.string())])


@dataclass
class Place:
    """A warehouse with one table, a folder beside it, and a server that nobody may call."""

    folder: Path
    server: socket.socket

    @property
    def warehouse(self) -> Path:
        return self.folder / "warehouse"

    @property
    def metadata_file(self) -> Path:
        return Path(self.table().metadata_location.removeprefix("file://"))

    def table(self) -> tf.Table:
        """Fresh eyes: nothing remembered."""
        return tf.open_catalog("local", warehouse=str(self.warehouse)).load_table(NAME)

    def contents(self) -> dict[str, int]:
        """Every file but the databases and the index, with its size."""
        kept = (".parquet", ".puffin", ".avro", ".json")
        return {
            str(path): path.stat().st_size
            for path in self.folder.rglob("*")
            if path.suffix in kept and path.is_file()
        }

    def hostile(self) -> list[str]:
        secret, table = self.folder / "secret", self.warehouse / "t" / "rows"
        climbing = f"{table}/data/../../../../secret/x.parquet"
        host, port = self.server.getsockname()
        return [
            f"file://{secret}/x.parquet", f"{secret}/x.parquet", f"file:{secret}/x.parquet",
            f"FILE://{secret}/x.parquet", f"file://localhost{secret}/x.parquet",
            f"file:///{secret}/x.parquet", f"/{secret}/x.parquet", climbing, f"file://{climbing}",
            climbing.replace("..", "%2e%2e"), climbing.replace("..", "%2E."),
            climbing.replace("..", "%252e%252e"), f"file://{climbing.replace('..', '%2e%2e')}",
            f"{table}/./../../../secret/x.parquet", f"{self.warehouse}2/x.parquet",
            f"file://{self.warehouse}2/x.parquet", f"{table}/data/link/x.parquet",
            f"file://{table}/data/link/x.parquet", "/etc/passwd", "file:///etc/passwd",
            "file:/etc/passwd", "file:///proc/self/environ", "/dev/zero",
            f"file://elsewhere{secret}/x.parquet", f"http://{host}:{port}/latest/meta-data",
            f"https://{host}:{port}/x", f"HTTP://{host}:{port}/x", "s3://bucket/x.parquet",
            "s3a://bucket/x.parquet", "S3://bucket/x.parquet", "s3://user:password@bucket/x",
            "gs://bucket/x.parquet", "abfss://c@a.dfs.core.windows.net/x", "hdfs://host/x",
            "ftp://host/x", "memory://warehouse/x", "data:text/plain,x", "secret/x.parquet",
            "../secret/x.parquet", "~/x.parquet", "file:secret/x.parquet", f"{table}/x\0y",
            f"{table}/x\ny", "/" + "x" * 5_000, "s3://", "",
        ]  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("hostile")
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        place = Place(folder, server)
        catalog = tf.open_catalog("local", warehouse=str(place.warehouse))
        table = catalog.create_table(NAME, SCHEMA, primary_key=["id"])
        for key in range(4):
            table.append(pa.table({"id": [key], "region": ["eu"]}, schema=SCHEMA))
        gone = pa.table({"id": pa.array([1], pa.int64())})
        table.stage(upserts=pa.table({"id": [2, 3], "region": ["us", "us"]}, schema=SCHEMA))
        resolve(table)
        table.append(pa.table({"id": [5, 6], "region": ["eu", "eu"]}, schema=SCHEMA))
        table.delete("id = 5")
        table.stage(deletes=gone)
        for outside in (folder / "secret", folder / "warehouse2"):
            outside.mkdir()
            data = next(place.warehouse.rglob("data/*.parquet"))
            shutil.copy(data, outside / "x.parquet")
        (place.warehouse / "t" / "rows" / "data" / "link").symlink_to(folder / "secret")
        yield place
        with pytest.raises(BlockingIOError):
            server.accept()


# -- artefacts: each takes a location and changes files on disk ------------------------------------


def head_list(place: Place, branch: str) -> Path:
    metadata = json.loads(place.metadata_file.read_bytes())
    head = metadata["refs"][branch]["snapshot-id"]
    [snapshot] = [s for s in metadata["snapshots"] if s["snapshot-id"] == head]
    return Path(snapshot["manifest-list"].removeprefix("file://"))


def rewrite_avro(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    reader = fastavro.reader(io.BytesIO(path.read_bytes()))
    records, schema = list(reader), reader.writer_schema
    metadata = {k: v for k, v in reader.metadata.items() if not k.startswith("avro.")}
    before = copy.deepcopy(records)
    for record in records:
        change(record)
    if records == before:
        return
    out = io.BytesIO()
    fastavro.writer(out, schema, records, metadata=metadata, codec="deflate")
    path.write_bytes(out.getvalue())


def in_manifests(
    place: Place, branch: str, wanted: Callable[[dict[str, Any]], bool], location: str
) -> None:
    """Another path in the first live entry of a head that is `wanted`."""
    changed = []

    def change_entry(entry: dict[str, Any]) -> None:
        if entry["status"] != 2 and not changed and wanted(entry["data_file"]):
            entry["data_file"]["file_path"] = location
            changed.append(location)

    def change_manifest(manifest: dict[str, Any]) -> None:
        path = Path(manifest["manifest_path"].removeprefix("file://"))
        rewrite_avro(path, change_entry)
        manifest["manifest_length"] = path.stat().st_size

    rewrite_avro(head_list(place, branch), change_manifest)
    assert changed


def table_location(place: Place, location: str) -> None:
    edit_metadata(place.metadata_file, lambda metadata: metadata.update(location=location))


def manifest_list(place: Place, location: str) -> None:
    def change(metadata: dict[str, Any]) -> None:
        for snapshot in metadata["snapshots"]:
            snapshot["manifest-list"] = location

    edit_metadata(place.metadata_file, change)


def manifest(place: Place, location: str) -> None:
    changed = []

    def change(each: dict[str, Any]) -> None:
        if not changed:
            changed.append(each.update(manifest_path=location))

    rewrite_avro(head_list(place, "main"), change)


def data_file(place: Place, location: str) -> None:
    in_manifests(place, "main", lambda file: file["content"] == 0, location)


def deletion_vector(place: Place, location: str) -> None:
    in_manifests(place, "main", lambda file: file["content"] == 1, location)


def equality_delete(place: Place, location: str) -> None:
    in_manifests(place, "staging", lambda file: file["content"] == 2, location)


def data_path(place: Place, location: str) -> None:
    edit_metadata(
        place.metadata_file,
        lambda metadata: metadata["properties"].update({"write.data.path": location}),
    )


# -- what is done with them ------------------------------------------------------------------------


def read(table: tf.Table) -> None:
    table.scan().to_arrow()


def merge_on_read(table: tf.Table) -> None:
    table.scan(branch="staging").to_arrow()


def clean(table: tf.Table) -> None:
    options = RemoveOrphansOptions(older_than_ms=0, older_than_min_ms=0)
    remove_orphans(table, options)


def append(table: tf.Table) -> None:
    table.append(pa.table({"id": [9], "region": ["eu"]}, schema=SCHEMA))


CASES = [
    (table_location, (append, clean)),
    (manifest_list, (read, clean)),
    (manifest, (read, clean)),
    (data_file, (read,)),
    (deletion_vector, (read,)),
    (equality_delete, (merge_on_read, resolve)),
    (data_path, (append, clean)),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("artefact", "uses"), CASES, ids=lambda each: getattr(each, "__name__", "")
)
def test_location_outside_in_an_artefact_is_refused(
    place: Place, tmp_path: Path, artefact: Callable[[Place, str], None], uses: tuple
) -> None:
    folder = place.metadata_file.parent
    shutil.copytree(folder, tmp_path / "kept")
    for location in place.hostile():
        if not location and artefact is data_path:
            continue  # the default
        try:
            artefact(place, location)
            refused = InvalidInputError if location else TableError
            before = place.contents()
            for use in uses:
                with pytest.raises(refused):
                    use(place.table())
                assert place.contents() == before, (location, use)
        finally:
            shutil.copytree(tmp_path / "kept", folder, dirs_exist_ok=True)
        goal("G15", attempts=1)
    assert place.table().scan().to_arrow().num_rows == 5


def test_location_outside_in_a_property_is_refused_from_code_and_command_line(place: Place) -> None:
    before = place.contents()
    for location in place.hostile():
        if location:  # an empty value is no path: the default
            with pytest.raises(InvalidInputError):
                place.table().set_properties({"write.data.path": location})
            words = [
                "table",
                "create",
                "t.other",
                "--column",
                "id:long!",
                "--primary-key",
                "id",
                "--table-property",
            ]
            result = CliRunner().invoke(
                cli,
                ["--warehouse", str(place.warehouse), *words, f"write.data.path={location}"],
            )
            assert result.exit_code != 0, location
            assert len(result.stderr.strip().splitlines()) == 1, result.stderr
            goal("G15", attempts=2)
    assert place.contents() == before
