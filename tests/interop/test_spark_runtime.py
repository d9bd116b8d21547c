"""`Scan.to_spark` through Apache Iceberg's runtime, in a session that has its jar.

The jar decides when the JVM starts, so the session lives in a process of its own: it answers what
each read gave, once through the runtime and once without.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.interop_tables import CASES
from tests.support.java_iceberg import Missing, runtime_session

pytestmark = [pytest.mark.interop, pytest.mark.spark]

LINEAGE = ["_row_id", "_last_updated_sequence_number"]
METADATA = ["_file", "_pos", "_spec_id", *LINEAGE]

IN_ONE_SESSION = """
import json, sys
import tableformat as tf
from pyspark.sql import functions as sf
from tableformat.spark.session import local_session
from tests.support.interop_tables import CASES, V2
from tests.interop.test_spark_runtime import LINEAGE

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
    assert all(answers[name]["same"] for name in ("partition", "time"))


@pytest.mark.parametrize(
    "name", ["old snapshot", "tag", "branch with a newer schema", "filter", "query", "limit"]
)
def test_version_filter_and_query_are_the_same(answers, name) -> None:
    assert answers[name]["rows"] > 0
    assert answers[name] == answers[name] | {"reason": "", "same": True, "types": True}


def test_frame_keeps_its_snapshot(answers) -> None:
    before, after, anew = answers["pinned"]
    assert before == after == anew
