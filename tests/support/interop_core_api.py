"""Calls of Iceberg's core API that come as lines of JSON; runs inside `interop_spark_worker`.

A commit is a list of calls, `[method, *arguments]`, each on what the one before gave; the first is
on the table. An argument that is an object is made of what it holds (`CoreApi._made`), and one
that stands for several files makes as many calls. It imports nothing of ours.
"""

import itertools
import json


class CoreApi:
    """One table, as it is."""

    def __init__(self, jvm, table):
        self.jvm = jvm
        self.iceberg = jvm.org.apache.iceberg
        self.table = table
        self.written = []

    def commit(self, commits, in_transaction):
        """Make them; returns spec and partition of each file that was written."""
        target = self.table.newTransaction() if in_transaction else self.table
        self.commit_on(target, commits)
        if in_transaction:
            target.commitTransaction()
        return self.written

    def commit_on(self, target, commits):
        """Make them on the table or a transaction."""
        for calls in commits:
            at = target
            for name, *arguments in calls:
                at = self._call(at, name, arguments)

    def replace(self, catalog, name, method, spec, commits):
        """The table, with its columns and other partitions: calls on the builder of a spec."""
        schema = self.table.schema()
        specs = self.iceberg.PartitionSpec.builderFor(schema)
        for call, *arguments in spec:
            specs = getattr(specs, call)(*arguments)
        builder = catalog.buildTable(self.iceberg.catalog.TableIdentifier.parse(name), schema)
        transaction = getattr(builder.withPartitionSpec(specs.build()), method)()
        self.table = transaction.table()
        self.commit_on(transaction, commits)
        transaction.commitTransaction()

    def rows(self, ref):
        """Of a snapshot, by field id, with place and lineage by name; what files it has."""
        metadata = self.iceberg.MetadataColumns
        more = [metadata.FILE_PATH, metadata.ROW_POSITION]
        if self._version() >= 3:
            more += [metadata.ROW_ID, metadata.LAST_UPDATED_SEQUENCE_NUMBER]
        names = {str(each.fieldId()): each.name() for each in more}
        schema = self.iceberg.types.TypeUtil.join(
            self.table.schema(), self.iceberg.Schema(self._list(more))
        )
        struct = schema.asStruct()
        wrapper = self.iceberg.data.InternalRecordWrapper(struct)
        to_json = self.iceberg.SingleValueParser.toJson
        read = self.iceberg.data.IcebergGenerics.read(self.table)
        records = read.useSnapshot(ref).project(schema).build()
        found = [json.loads(to_json(struct, wrapper.wrap(each))) for each in self._each(records)]
        rows = [{names.get(key, key): value for key, value in row.items()} for row in found]
        tasks = self._tasks(ref)
        files = {path: self._place(task.file()) for path, task in tasks.items()}
        deletes = [each for task in tasks.values() for each in task.deletes()]
        kinds = sorted({each.content().toString() for each in deletes})
        return {"rows": rows, "files": files, "deletes": kinds}

    # -- arguments ---------------------------------------------------------------------------------

    def _call(self, at, name, arguments):
        if name == "deletePositions":
            return self._delete_positions(at, *arguments)
        made = [each if isinstance(each, list) else [each] for each in map(self._made, arguments)]
        for some in itertools.product(*made):
            at = getattr(at, name)(*some)
        return at

    def _made(self, argument):
        if not isinstance(argument, dict):
            return argument
        [(kind, value)] = argument.items()
        return getattr(self, f"_{kind}")(value)

    def _data(self, given):
        """Data files of rows by field id, in Iceberg's single-value JSON; one per partition."""
        schema = self.table.schema()
        if given.get("with_ids") and self._version() >= 3:
            schema = self.iceberg.MetadataColumns.schemaWithRowLineage(schema)
        spec = self._spec(given)
        found = []
        for partition, records in self._by_partition(spec, schema, given["rows"]):
            builder = self._builder("data", given["format"], spec, partition)
            found.append(self._write(builder.schema(schema), records).toDataFile())
        self.written += map(self._place, found)
        return found

    def _equality(self, given):
        """Equality deletes of some columns; rows hold what places them, too."""
        spec, schema = self._spec(given), self.table.schema()
        ids = self._list(given.get("ids", [1]))
        wanted = self.jvm.java.util.HashSet(ids)
        for field in spec.fields():
            wanted.add(field.sourceId())
        key = self.iceberg.types.TypeUtil.select(schema, wanted)
        found = []
        for partition, records in self._by_partition(spec, key, given["rows"]):
            builder = self._builder("equalityDelete", given["format"], spec, partition)
            builder = builder.equalityFieldIds(ids).schema(key)
            found.append(self._write(builder, records).toDeleteFile())
        return found

    def _delete_positions(self, change, ref, places):
        """Position deletes, on v3 vectors that take over what was there."""
        tasks = self._tasks(ref)
        if self._version() < 3:
            return self._delete_by_files(change, tasks, places)
        factory = self.iceberg.io.OutputFileFactory.builderFor(self.table, 1, 1)
        factory = factory.format(self._format("puffin")).build()
        indexes = {path: self._deleted(tasks[path], path) for path, _ in places}
        writer = self.iceberg.deletes.BaseDVFileWriter(factory, self._function(indexes))
        for path, position in places:
            file = tasks[path].file()
            writer.delete(path, position, tasks[path].spec(), file.partition())
        writer.close()
        for each in writer.result().deleteFiles():
            change = change.addDeletes(each)
        for each in writer.result().rewrittenDeleteFiles():
            change = change.removeDeletes(each)
        return change

    def _delete_by_files(self, change, tasks, places):
        def where(place):
            file = tasks[place[0]].file()
            return file.specId(), tasks[place[0]].spec().partitionToPath(file.partition())

        for _, group in itertools.groupby(sorted(places, key=lambda p: (where(p), p)), where):
            group = list(group)
            task = tasks[group[0][0]]
            builder = self._builder(
                "positionDelete", "parquet", task.spec(), task.file().partition()
            )
            position = self.iceberg.deletes.PositionDelete.create
            records = [position().set(path, at) for path, at in group]
            change = change.addDeletes(self._write(builder, records).toDeleteFile())
        return change

    def _deleted(self, task, path):
        """The positions that are deleted in a file; None where none is."""
        content = self.iceberg.FileContent.POSITION_DELETES
        files = [each for each in task.deletes() if each.content().equals(content)]
        if not files:
            return None
        inputs = self._function(
            {each: self.table.io().newInputFile(each.location()) for each in files}
        )
        loader = self.iceberg.data.BaseDeleteLoader(inputs)
        return loader.loadPositionDeletes(self._list(files), path)

    def _live(self, given):
        """The data file of that path."""
        ref, path = given
        return self._tasks(ref)[path].file()

    def _path(self, text):
        # A String would be taken for that of a protected method, which deletes the file itself.
        return self.jvm.java.lang.StringBuilder(text)

    def _filter(self, text):
        parse = self.iceberg.expressions.ExpressionParser.fromJson
        return parse(json.dumps(text), self.table.schema())

    def _type(self, text):
        return self.iceberg.types.Types.fromPrimitiveString(text)

    def _default(self, given):
        """A literal; the value as JSON."""
        kind, value = given
        kind = self._type(kind)
        value = self.iceberg.SingleValueParser.fromJson(kind, json.dumps(value))
        return self.iceberg.expressions.Expressions.lit(value).to(kind)

    def _term(self, given):
        name, *arguments = given
        return getattr(self.iceberg.expressions.Expressions, name)(*arguments)

    def _nulls(self, name):
        return getattr(self.iceberg.NullOrder, name)

    def _names(self, values):
        return self._list(values)

    def _of_file(self, method):
        """A method of files, as a function of them."""
        return self._as_function("org.apache.iceberg.ContentFile", method)

    def _statistics(self, snapshot_id):
        """A statistics file that says nothing."""
        name = self.jvm.java.util.UUID.randomUUID().toString()
        location = f"{self.table.location()}/metadata/{name}.stats"
        writer = self.iceberg.puffin.Puffin.write(self.table.io().newOutputFile(location)).build()
        writer.finish()
        writer.close()
        sizes = writer.fileSize(), writer.footerSize()
        return self.iceberg.GenericStatisticsFile(snapshot_id, location, *sizes, self._list([]))

    def _partition_statistics(self, snapshot_id):
        handler = self.iceberg.PartitionStatsHandler
        return handler.computeAndWriteStatsFile(self.table, snapshot_id)

    # -- files -------------------------------------------------------------------------------------

    def _version(self):
        return self.iceberg.TableUtil.formatVersion(self.table)

    def _spec(self, given):
        wanted = given.get("spec")
        return self.table.spec() if wanted is None else self.table.specs()[wanted]

    def _place(self, file):
        spec = self.table.specs()[file.specId()]
        return [file.specId(), spec.partitionToPath(file.partition())]

    def _tasks(self, ref):
        scan = self.table.newScan().useSnapshot(ref)
        return {each.file().location(): each for each in self._each(scan.planFiles())}

    def _by_partition(self, spec, schema, rows):
        struct, groups = schema.asStruct(), {}
        for row in rows:
            record = self._record(struct, row)
            partition = self.iceberg.PartitionKey(spec, schema)
            partition.partition(self.iceberg.data.InternalRecordWrapper(struct).wrap(record))
            path = spec.partitionToPath(partition)
            groups.setdefault(path, (partition, []))[1].append(record)
        return groups.values()

    def _record(self, struct, row):
        record = self.iceberg.SingleValueParser.fromJson(struct, json.dumps(row))
        moments = self.iceberg.util.DateTimeUtil
        made = {
            "date": moments.dateFromDays,
            "time": moments.timeFromMicros,
            "timestamp": moments.timestampFromMicros,
            "timestamptz": moments.timestamptzFromMicros,
            "timestamp_ns": moments.timestampFromNanos,
            "timestamptz_ns": moments.timestamptzFromNanos,
        }
        for at, each in enumerate(struct.fields()):
            kind = each.type().toString()
            if kind in made and record.get(at) is not None:
                record.set(at, made[kind](record.get(at)))
        return record

    def _builder(self, content, name, spec, partition):
        form = self._format(name)
        files = self.iceberg.io.OutputFileFactory.builderFor(self.table, 1, 1).format(form).build()
        file = files.newOutputFile(spec, partition)
        registry = self.iceberg.formats.FormatModelRegistry
        if content == "positionDelete":
            builder = registry.positionDeleteWriteBuilder(form, file)
        else:
            record = self.jvm.java.lang.Class.forName("org.apache.iceberg.data.Record")
            builder = getattr(registry, f"{content}WriteBuilder")(form, record, file)
        return builder.spec(spec).partition(partition)

    @staticmethod
    def _write(builder, records):
        writer = builder.build()
        for each in records:
            writer.write(each)
        writer.close()
        return writer

    # -- Java --------------------------------------------------------------------------------------

    def _format(self, name):
        return self.iceberg.FileFormat.fromString(name)

    @staticmethod
    def _each(iterable):
        found = iterable.iterator()
        while found.hasNext():
            yield found.next()
        iterable.close()

    def _list(self, values):
        found = self.jvm.java.util.ArrayList()
        for each in values:
            found.add(each)
        return found

    def _function(self, values):
        """A dict, as a `java.util.function.Function`."""
        found = self.jvm.java.util.HashMap()
        for key, value in values.items():
            if value is not None:
                found.put(key, value)
        return self._as_function("java.util.Map", "get", found)

    def _as_function(self, of, method, bound=None):
        """A method as a `java.util.function.Function`, of the object or of its argument."""
        java = self.jvm.java.lang
        named = java.Class.forName
        found = next(each for each in named(of).getMethods() if each.getName() == method)
        handle = java.invoke.MethodHandles.publicLookup().unreflect(found)
        if bound is not None:
            handle = handle.bindTo(bound)
        function = named("java.util.function.Function")
        return java.invoke.MethodHandleProxies.asInterfaceInstance(function, handle)
