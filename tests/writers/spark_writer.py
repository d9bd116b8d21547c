"""A Spark query that appends or merges events, or statements, with Apache Iceberg's runtime.

Runs on the PySpark of `tests/support/java_iceberg.py`, so it imports nothing of ours. The same
batch has the same events however often it is run. Ends with 0 when the last one is committed.
"""

import re
import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession

EVENT = """
    SELECT value AS n, id, CASE WHEN id % 3 = 0 THEN 'EU' ELSE 'US' END AS region,
           concat('v', value) AS v, deletes
    FROM (SELECT value, {id} AS id, {deletes} AS deletes
          FROM (SELECT value, shiftrightunsigned(
                    value * 6364136223846793005L + 1442695040888963407L, 33) AS mixed
                FROM {source} WHERE value < {events}))
"""
MERGE = """
    MERGE INTO {table} t USING (
        SELECT * FROM (SELECT *, row_number() OVER (PARTITION BY id ORDER BY n DESC) AS place
                       FROM changes) WHERE place = 1) s
    ON t.id = s.id
    WHEN MATCHED AND s.deletes THEN DELETE
    WHEN MATCHED THEN UPDATE SET v = s.v
    WHEN NOT MATCHED AND NOT s.deletes THEN INSERT (id, region, v) VALUES (s.id, s.region, s.v)
"""


def main(kind, jar, uri, table, branch, events, keys, per_second, commit_s, folder):
    builder = SparkSession.builder.master("local[2]").appName("writer")
    for key, text in settings(jar, uri, folder).items():
        builder = builder.config(key, text)
    spark = builder.getOrCreate()
    if branch != "main":
        spark.sql(f"ALTER TABLE rest.{table} CREATE BRANCH IF NOT EXISTS {branch}")
    if kind == "spark-statements":
        run(spark, Path(folder), float(commit_s))
        return
    count = int(events)
    source = spark.readStream.format("rate-micro-batch").option("numPartitions", 1)
    source = source.option("rowsPerBatch", max(1, int(float(per_second) * float(commit_s)))).load()
    source.createOrReplaceTempView("source")
    id_, deletes = "value", "false"
    if int(keys):
        id_, deletes = f"mixed % {keys}", f"mixed DIV {keys} % 8 = 0"
    rows = spark.sql(EVENT.format(id=id_, deletes=deletes, source="source", events=count))
    writing = rows if kind == "spark-merge" else rows.select("id", "region", "v")
    query = writing.writeStream.option("checkpointLocation", f"{folder}/checkpoint")
    query = query.trigger(processingTime=f"{commit_s} seconds")
    if kind == "spark-merge":
        written = f"rest.{table}" + ("" if branch == "main" else f".branch_{branch}")

        def merge(batch, _):
            batch.createOrReplaceTempView("changes")
            batch.sparkSession.sql(MERGE.format(table=written))

        query = query.foreachBatch(merge).start()
    else:
        query = query.option("branch", branch).option("check-nullability", "false")
        query = query.format("iceberg").start(f"rest.{table}")  # `toTable` looks for no branch
    while query.isActive and reached(query) < count:
        time.sleep(0.5)
    if query.exception() is not None:
        print("again: in the next life", flush=True)  # `run.py` counts these
        raise query.exception()
    print("all events are committed", flush=True)


def run(spark, folder, pause_s):
    """Statements, one after another; one that ran before it was noted leads to the same rows."""
    lines, at = (folder / "statements.sql").read_text().splitlines(), folder / "done"
    done = int(at.read_text()) if at.exists() else 0
    while done < len(lines):
        start = time.monotonic()
        try:
            spark.sql(lines[done])
        except Exception as error:  # what it read was compacted meanwhile
            print(f"again: {str(error)[:300]}", flush=True)
            continue
        done += 1
        note(at, done)
        time.sleep(max(0.0, pause_s - (time.monotonic() - start)))


def note(at, done):
    """So many statements ran. Killed here, a writer leaves this number or the one before."""
    fresh = at.with_name(f"{at.name}.fresh")
    fresh.write_text(str(done))
    fresh.replace(at)


def reached(query):
    """How many events are committed."""
    progress = query.lastProgress
    offset = progress and progress["sources"][0]["endOffset"]
    return int(re.search(r"offset\D+(\d+)", str(offset))[1]) if offset else 0


def settings(jar, uri, folder):
    catalog = "spark.sql.catalog.rest"
    return {
        "spark.jars": jar,
        "spark.driver.memory": "512m",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
        "spark.ui.enabled": "false",
        "spark.local.dir": folder,
        "spark.sql.ansi.enabled": "false",  # the mixing of the events overflows
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.extensions": (
            "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
        ),
        catalog: "org.apache.iceberg.spark.SparkCatalog",
        f"{catalog}.type": "rest",
        f"{catalog}.uri": uri,
        f"{catalog}.cache-enabled": "false",
    }


if __name__ == "__main__":
    main(*sys.argv[1:])
