"""A Spark session with Apache Iceberg's runtime, driven through lines of JSON.

Runs in an environment of its own (see `java_iceberg`), so it imports nothing of ours. Each request
is one line on standard input, `{"do": <operation>, ...}`; each answer one line on standard output,
`{"value": ...}` or `{"error": "..."}`. Rows travel as Parquet files: no pandas, no pyarrow here.
"""

import json
import os
import sys


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

    def row_delta(self, table, rows, deleted, equality_ids, branch):
        """Commit rows and equality deletes at once, as a streaming writer does.

        Rows and deleted keys are objects by field id, in Iceberg's single-value JSON.
        """
        iceberg = self._jvm.org.apache.iceberg
        loaded = self._load(table)
        change = loaded.newRowDelta()
        for partition, records in self._by_partition(loaded, loaded.schema(), rows):
            writer = self._writer(loaded, loaded.schema(), partition, None)
            change.addRows(self._written(writer, records).toDataFile())
        ids = self._jvm.java.util.ArrayList()
        for field_id in equality_ids:
            ids.add(field_id)
        # Keys carry what places them: the columns of the key and of the partition spec.
        wanted = self._jvm.java.util.HashSet(ids)
        for field in loaded.spec().fields():
            wanted.add(field.sourceId())
        key = iceberg.types.TypeUtil.select(loaded.schema(), wanted)
        for partition, records in self._by_partition(loaded, key, deleted):
            writer = self._writer(loaded, key, partition, ids)
            change.addDeletes(self._written(writer, records).toDeleteFile())
        if branch:
            change = change.toBranch(branch)
        change.commit()

    def _load(self, table):
        spark3 = self._jvm.org.apache.iceberg.spark.Spark3Util
        return spark3.loadIcebergTable(self._spark._jsparkSession, table)

    def _by_partition(self, table, schema, values):
        iceberg = self._jvm.org.apache.iceberg
        groups = {}
        for value in values:
            record = iceberg.SingleValueParser.fromJson(schema.asStruct(), json.dumps(value))
            wrapped = iceberg.data.InternalRecordWrapper(schema.asStruct()).wrap(record)
            partition = iceberg.PartitionKey(table.spec(), schema)
            partition.partition(wrapped)
            path = table.spec().partitionToPath(partition)
            groups.setdefault(path, (partition, []))[1].append(record)
        return groups.values()

    def _writer(self, table, schema, partition, equality_ids):
        iceberg = self._jvm.org.apache.iceberg
        parquet = iceberg.FileFormat.fromString("parquet")
        files = iceberg.io.OutputFileFactory.builderFor(table, 1, 1).format(parquet).build()
        file = files.newOutputFile(table.spec(), partition)
        record = self._jvm.java.lang.Class.forName("org.apache.iceberg.data.Record")
        registry = iceberg.formats.FormatModelRegistry
        if equality_ids is None:
            builder = registry.dataWriteBuilder(parquet, record, file)
        else:
            builder = registry.equalityDeleteWriteBuilder(parquet, record, file)
            builder = builder.equalityFieldIds(equality_ids)
        return builder.schema(schema).spec(table.spec()).partition(partition).build()

    @staticmethod
    def _written(writer, records):
        for record in records:
            writer.write(record)
        writer.close()
        return writer

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
