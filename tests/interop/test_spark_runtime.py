"""`Scan.to_spark` through Apache Iceberg's runtime, in a session that has its jar.

The jar decides when the JVM starts, so the session lives in a process of its own: it answers what
each read gave, once through the runtime and once without.
"""

from __future__ import annotations

import datetime as dt
import json
import math
import os
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from uuid import UUID

import pyarrow as pa
import pytest

import tableformat as tf
from tests.support.interop_tables import CASES
from tests.support.java_iceberg import Missing, runtime_session

pytestmark = [pytest.mark.interop, pytest.mark.spark]

LINEAGE = ["_row_id", "_last_updated_sequence_number"]
METADATA = ["_file", "_pos", "_spec_id", *LINEAGE]

UUIDS = [UUID(int=0), UUID(int=1 << 127), UUID(int=(1 << 128) - 1)]
TYPED = {
    "u": pa.ExtensionArray.from_storage(
        pa.uuid(), pa.array([each.bytes for each in UUIDS], pa.binary(16))
    ),
    "fix": pa.array([b"\x00\x00", b"\x80\x00", b"\xff\xff"], pa.binary(2)),
    "bin": pa.array([b"", b"\x80", None], pa.binary()),
    "day": pa.array([dt.date(1, 1, 1), dt.date(1969, 12, 31), dt.date(9999, 12, 31)]),
    "ts": pa.array([dt.datetime(1, 1, 1), None, dt.datetime(9999, 12, 31)], pa.timestamp("us")),
    "tz": pa.array([-62135596800000000, -1, 253402300799999999], pa.timestamp("us", "UTC")),
    "d": pa.array([-0.0, math.nan, math.inf]),
    "f": pa.array([0.1, -0.0, math.nan], pa.float32()),
    "dec": pa.array([Decimal("-0.01"), None, Decimal("9" * 28 + ".99")], pa.decimal128(30, 2)),
    "s": pa.array(["\uffff", "\U0001f600", ""]),
}
LEFT = {  # to our reader, and why
    f"u = '{UUIDS[1]}'": "it orders UUIDs as signed numbers, and skips files by that",
    f"u > '{UUIDS[0]}'": "it orders UUIDs as signed numbers, and skips files by that",
    "d = 0.0": "it takes 0.0 and -0.0 for two values",
    "f in (0.0, 0.1)": "it takes 0.0 and -0.0 for two values",
}
FILTERS = (
    *LEFT, "day = '0001-01-01'", "day > '0001-01-01'", "day in ('0999-01-01', '9999-12-31')",
    "ts = '0001-01-01T00:00:00'", "ts < '9999-12-31T00:00:00'",
    "tz = '0001-01-01T00:00:00+00:00'", "tz < '1970-01-01T00:00:00+00:00'",
    "d > 1.0", "d <= 1.0", "d is nan", "d != 1.0", "f = 0.1", "f < 0.1", "f is not nan",
    "dec < 0", "dec = '-0.01'", "dec > 1",
    "s > '\uffff'", "s like '\U0001f600%'", "s = ''", "bin is null",
)  # fmt: skip


def typed_table(catalog: tf.TableCatalog) -> tf.Table:
    """A row of everything that filters ask for, at the ends of its type."""
    rows = pa.table({"id": pa.array([1, 2, 3], pa.int64()), **TYPED})
    table = catalog.create_table("a.typed", rows.schema, primary_key=["id"])
    table.append(rows)
    return table


IN_ONE_SESSION = """
import json, sys
import tableformat as tf
from pyspark.sql import functions as sf
from tableformat.spark.session import local_session
from tests.support.interop_tables import CASES, V2
from tests.interop.test_spark_runtime import FILTERS, LINEAGE, UUIDS, typed_table

jar, warehouse, metadata = sys.argv[1], sys.argv[2], sys.argv[3].split(",")
spark = local_session("runtime", cores=1, conf={"spark.driver.extraClassPath": jar})
catalog = tf.open_catalog("local", warehouse=warehouse)
answers = {}

def rows(frame):
    return sorted(str(row) for row in frame.toArrow().to_pylist())

def compare(name, scan, query=lambda frame: frame):
    through, without = scan.to_spark(spark), scan.to_spark(spark, runtime=False)
    assert "BatchScan icefold" in without._jdf.queryExecution().executedPlan().toString()
    plan = query(through)._jdf.queryExecution().executedPlan().toString()
    reason = plan.split("runtime: ")[1].split(")[")[0] if "BatchScan icefold" in plan else ""
    found, expected = rows(query(through)), rows(query(without))
    answers[name] = {
        "reason": reason,
        "same": found == expected,
        "types": [f.dataType.simpleString() for f in through.schema]
        == [f.dataType.simpleString() for f in without.schema],
        "rows": len(expected),
    }

for build in CASES:
    case = build(catalog)
    compare(build.__name__, case.table.scan(branch=case.ref))
    columns = [name for name in metadata if name not in LINEAGE or V2 not in case.features]
    wanted = [*case.table.primary_key, *columns]
    compare(build.__name__ + " metadata", case.table.scan(branch=case.ref, columns=wanted))

table = catalog.load_table([n for n in catalog.list_tables() if "evolved_schema" in str(n)][0])
first = table.state.metadata.snapshots[0].snapshot_id
compare("old snapshot", table.scan(snapshot_id=first))
table.refs.create_tag("first", snapshot_id=first)
compare("tag", table.refresh().scan(tag="first"))
compare("branch with a newer schema", table.scan())
shop = catalog.load_table([n for n in catalog.list_tables() if str(n).endswith("dv")][0])
compare("filter", shop.scan(filter="id > 2 and region = 'eu' or amount is null", columns=["note"]))
compare("query", shop.scan(), lambda frame: frame.where("id > 2").groupBy("region").count())
compare("limit", shop.scan(limit=3), lambda frame: frame.agg(sf.count("*").alias("n")))
compare("partition", shop.scan(columns=["id", "_partition"]))
import pyarrow as pa
timed = pa.table({"id": pa.array([1, 2]), "t": pa.array([1, None], pa.time64("us"))})
catalog.create_table("a.timed", timed.schema, primary_key=["id"]).append(timed)
compare("time", catalog.load_table("a.timed").scan())
typed = typed_table(catalog)
for text in FILTERS:
    compare("where " + text, typed.scan(filter=text, columns=["id"]))
one = f"u = '{UUIDS[1]}'"
compare("uuid", typed.scan(), lambda frame: frame.where(one))
before = shop.scan()
frame = before.to_spark(spark)
count = frame.count()
shop.append(before.to_arrow().slice(0, 0))
shop.stage(deletes=before.to_arrow().select(shop.primary_key).slice(0, 1))
from resolver import resolve
resolve(shop)
answers["pinned"] = [count, frame.count(), before.to_spark(spark).count()]
print(json.dumps(answers))
"""


@pytest.fixture(scope="module")
def answers(tmp_path_factory) -> dict:
    found = runtime_session()
    if isinstance(found, Missing):
        pytest.skip(found.reason)
    jar, packages = found
    root = Path(__file__).resolve().parents[2]
    warehouse = tmp_path_factory.mktemp("runtime")
    done = subprocess.run(
        [sys.executable, "-c", IN_ONE_SESSION, jar, warehouse, ",".join(METADATA)],
        cwd=root,
        env=os.environ | {"PYTHONPATH": f"{packages}{os.pathsep}{root}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("case", [build.__name__ for build in CASES])
def test_runtime_gives_what_our_reader_gives(answers, case) -> None:
    found = answers[case]
    reason = "the table is empty" if case == "no_snapshot" else ""
    assert found == found | {"reason": reason, "same": True, "types": True}


@pytest.mark.parametrize("case", [build.__name__ for build in CASES])
def test_metadata_columns_are_the_same(answers, case) -> None:
    found = answers[f"{case} metadata"]
    reason = "the table is empty" if case == "no_snapshot" else ""
    assert found == found | {"reason": reason, "same": True, "types": True}


def test_what_the_runtime_reads_otherwise_is_left_to_our_reader(answers) -> None:
    assert answers["partition"]["reason"] == "it reads _partition as another struct"
    assert answers["time"]["reason"].startswith("it says: ")
    assert answers["uuid"] == answers["uuid"] | {"reason": LEFT[f"u = '{UUIDS[1]}'"], "rows": 1}
    assert all(answers[name]["same"] for name in ("partition", "time", "uuid"))


@pytest.mark.parametrize(
    "name", ["old snapshot", "tag", "branch with a newer schema", "filter", "query", "limit"]
)
def test_version_filter_and_query_are_the_same(answers, name) -> None:
    assert answers[name]["rows"] > 0
    assert answers[name] == answers[name] | {"reason": "", "same": True, "types": True}


@pytest.mark.parametrize("text", FILTERS)
def test_filter_keeps_the_same_rows_of_every_type(answers, text) -> None:
    found = answers[f"where {text}"]
    assert found == found | {"reason": LEFT.get(text, ""), "same": True, "types": True}


def test_frame_keeps_its_snapshot(answers) -> None:
    before, after, anew = answers["pinned"]
    assert before == after == anew
