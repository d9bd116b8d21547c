"""Nessie, which hands out credentials, makes v2 tables and keeps no branches: used as it is."""

from __future__ import annotations

import subprocess
import sys

import pyarrow as pa
import pytest
from pyiceberg.catalog.rest import RestCatalog

import tableformat as tf
from maintenance import CompactOptions, compact, expire
from resolver import resolve
from tableformat.commit.changeset import Changeset, CommitKind
from tableformat.commit.engine import commit
from tableformat.errors import InvalidInputError, UnsupportedError
from tableformat.paths import data_file_locations, equality_delete_locations
from tableformat.write.data_files import write_data_files
from tableformat.write.equality_deletes import write_equality_deletes
from tests.support.nessie import Nessie, start_nessie
from tests.support.s3_server import s3_server

pytestmark = [pytest.mark.services, pytest.mark.interop, pytest.mark.slow]

NAME = "shop.orders"
SCHEMA = pa.schema([("id", pa.int64()), ("status", pa.string())])
RESOLVER = """
import sys
import tableformat as tf
from resolver import resolve
catalog = tf.open_catalog("nessie", **dict(each.split("=", 1) for each in sys.argv[1:]))
print(resolve(catalog.load_table("shop.orders"), staging="main", target="main").staged_snapshots)
"""


@pytest.fixture(scope="module")
def nessie():
    running = start_nessie()
    yield running
    running.server.kill()


@pytest.fixture(autouse=True)
def _no_keys_of_our_own(monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)


class Writer:
    """Upserts on `main`, as Flink commits them: rows, and equality deletes of what was before.

    Attributes:
        rows: What the table should hold.
    """

    def __init__(self, table: tf.Table) -> None:
        self.table = table
        self.rows: dict[int, str] = {}

    def upsert(self, rows: dict[int, str], *deleted: int) -> None:
        metadata, environment = self.table.refresh().state.metadata, self.table.environment
        given = {"schema": metadata.schema(), "spec": metadata.spec(), "properties": {}}
        ids = environment.runtime.ids
        data = write_data_files(
            environment.store,
            pa.table([list(rows), list(rows.values())], schema=SCHEMA),
            location_for=data_file_locations(metadata, ids),
            **given,
        )
        deletes = write_equality_deletes(
            environment.store,
            pa.table({"id": pa.array([*rows, *deleted], pa.int64())}),
            equality_ids=[1],
            location_for=equality_delete_locations(metadata, ids),
            **given,
        )
        change = Changeset(
            kind=CommitKind.ROW_DELTA,
            added_data_files=tuple(data),
            added_delete_files=tuple(deletes),
        )
        commit(environment, self.table.identifier, change)
        self.rows = {k: v for k, v in self.rows.items() if k not in deleted} | rows


def opened(nessie: Nessie) -> tf.TableCatalog:
    return tf.open_catalog("nessie", **nessie.properties)


def pyiceberg_rows(nessie: Nessie) -> dict[int, str]:
    """With another reader, which refuses equality deletes, and keys of the server."""
    theirs = RestCatalog("theirs", uri=nessie.uri, warehouse="warehouse")
    rows = theirs.load_table(NAME).scan().to_arrow().to_pylist()
    found = {row["id"]: row["status"] for row in rows}
    assert len(found) == len(rows)
    return found


def start_resolver(nessie: Nessie) -> subprocess.Popen[str]:
    given = [f"{key}={value}" for key, value in nessie.properties.items()]
    return subprocess.Popen(
        [sys.executable, "-c", RESOLVER, *given],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_table_on_nessie_is_resolved_in_place_beside_kills_of_the_server(nessie, caplog):
    catalog = opened(nessie)
    table = catalog.create_table(NAME, SCHEMA, primary_key=["id"])
    assert "made a v2 table, v3 was asked for" in caplog.text
    assert not catalog.environment.catalog.commits_groups
    writer = Writer(table)
    writer.upsert(dict.fromkeys(range(20), "new"))
    with pytest.raises(UnsupportedError, match=r"no branch or tag.*nessie.*resolve in place"):
        table.stage(pa.table([[1], ["paid"]], schema=SCHEMA))
    with pytest.raises(UnsupportedError, match="Implement format version update"):
        table.upgrade()
    assert table.refresh().scan().to_arrow().num_rows == 20

    nessie.restart()
    writer.upsert({1: "paid", 2: "paid"}, 3)
    writer.upsert({2: "sent", 30: "new"}, 4)
    assert resolve(table.refresh(), staging="main", target="main").deleted_rows == 5
    nessie.restart()
    assert pyiceberg_rows(nessie) == writer.rows
    found = table.refresh().lookup([{"id": 2}, {"id": 3}])
    assert found.rows.to_pylist() == [{"id": 2, "status": "sent"}]

    writer.upsert({5: "paid"}, 6)
    workers = [start_resolver(nessie) for _ in range(2)]
    outputs = [worker.communicate(timeout=120) for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0], outputs
    assert sorted(int(output) for output, _ in outputs) == [0, 1]
    assert pyiceberg_rows(nessie) == writer.rows

    nessie.restart()
    options = CompactOptions(rewrite_all=True, input_files_min=1)
    assert compact(table.refresh(), options).deleted_rows
    assert pyiceberg_rows(nessie) == writer.rows
    with pytest.raises(InvalidInputError, match=r"gc\.enabled"):  # its branches may need the files
        expire(table)
    s3 = s3_server()
    requests = zip(s3.requests, s3.authorizations, strict=True)
    puts = [key for what, key in requests if what.startswith("PUT /nessie/") and "/data/" in what]
    assert puts
    assert all("Credential=ASIA" in key for key in puts)  # of the role, from STS
    catalog.drop_table(NAME)
    assert catalog.list_tables("shop") == []
