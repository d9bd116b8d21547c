"""A Spark session with Apache Iceberg's runtime, driven through lines of JSON.

Runs in an environment of its own (see `java_iceberg`), so it imports nothing of ours. Each request
is one line on standard input, `{"do": <operation>, ...}`; each answer one line on standard output,
`{"value": ...}` or `{"error": "..."}`. Rows travel as Parquet files: no pandas, no pyarrow here.
"""

import json
import os
import sys

from interop_core_api import CoreApi


class Worker:
    """Each public method is an operation."""

    def __init__(self, conf):
        from pyspark.sql import SparkSession

        builder = SparkSession.builder.master("local[2]").appName("icefold interop")
        for key, value in conf.items():
            builder = builder.config(key, value)
        self._spark = builder.getOrCreate()
        self._jvm = self._spark._jvm

    def answer(self, request):
        operation = request.pop("do")
        if operation.startswith("_") or operation in ("answer", "stop"):
            raise ValueError(f"no operation {operation}")
        return getattr(self, operation)(**request)

    def stop(self):
        self._spark.stop()

    def configure(self, conf):
        """Set session settings; a null unsets one."""
        for key, value in conf.items():
            if value is None:
                self._spark.conf.unset(key)
            else:
                self._spark.conf.set(key, value)

    def sql(self, text):
        """Run a statement for its effect."""
        self._spark.sql(text)

    def query(self, text, into):
        """Write the rows of a query to a Parquet folder."""
        self._write(self._spark.sql(text), into)

    def load(self, location, options, columns, where, into):
        """Write the rows of a metadata file's table to a Parquet folder."""
        frame = self._spark.read.format("iceberg").options(**options).load(location)
        self._write(frame.where(where).selectExpr(*columns), into)

    def stream(self, table, branch, source, checkpoint):
        """Append JSON files that a query has not seen, one batch for each."""
        rows = self._spark.readStream.schema("id BIGINT, region STRING, v STRING")
        rows = rows.option("maxFilesPerTrigger", 1).json(source)
        query = rows.writeStream.format("iceberg").option("branch", branch)
        query = query.option("check-nullability", "false").option("checkpointLocation", checkpoint)
        query.trigger(availableNow=True).start(table).awaitTermination()

    def run(self, code):
        """Run a documented snippet; its `rows` come back. Its session is this one."""
        names = {}
        exec(code, names)
        return names["rows"]

    def core(self, table, commits, in_transaction):
        """Commit by the core API, as `CoreApi` says."""
        return CoreApi(self._jvm, self._load(table)).commit(commits, in_transaction)

    def core_rows(self, table, snapshot_id):
        """The rows of a snapshot as the generic reader has them."""
        return CoreApi(self._jvm, self._load(table)).rows(snapshot_id)

    def core_replace(self, catalog, name, **how):
        """Replace a table through its catalog, as `CoreApi.replace` says."""
        spark3 = self._jvm.org.apache.iceberg.spark.Spark3Util
        loaded = spark3.loadIcebergCatalog(self._spark._jsparkSession, catalog)
        api = CoreApi(self._jvm, self._load(f"{catalog}.{name}"))
        api.replace(loaded, name, **how)

    def _load(self, table):
        spark3 = self._jvm.org.apache.iceberg.spark.Spark3Util
        return spark3.loadIcebergTable(self._spark._jsparkSession, table)

    @staticmethod
    def _write(frame, into):
        frame.coalesce(1).write.parquet(into)


def main():
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever Spark prints goes to the log
    worker = None
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if worker is None:
                worker = Worker(request["conf"])
                answer = {"value": None}
            else:
                answer = {"value": worker.answer(request)}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
    if worker is not None:
        worker.stop()


if __name__ == "__main__":
    main()
