import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.stream.Stream;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.connector.source.util.ratelimit.RateLimiter;
import org.apache.flink.api.connector.source.util.ratelimit.RateLimiterStrategy;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.java.typeutils.RowTypeInfo;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.datagen.source.DataGeneratorSource;
import org.apache.flink.connector.datagen.source.GeneratorFunction;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.table.api.bridge.java.StreamTableEnvironment;
import org.apache.flink.table.connector.ChangelogMode;
import org.apache.flink.table.data.GenericRowData;
import org.apache.flink.table.data.RowData;
import org.apache.flink.table.data.StringData;
import org.apache.flink.table.runtime.typeutils.InternalTypeInfo;
import org.apache.flink.types.Row;
import org.apache.flink.types.RowKind;
import org.apache.iceberg.DistributionMode;
import org.apache.iceberg.PartitionSpec;
import org.apache.iceberg.Schema;
import org.apache.iceberg.catalog.TableIdentifier;
import org.apache.iceberg.flink.CatalogLoader;
import org.apache.iceberg.flink.FlinkSchemaUtil;
import org.apache.iceberg.flink.TableLoader;
import org.apache.iceberg.flink.sink.FlinkSink;
import org.apache.iceberg.flink.sink.IcebergSink;
import org.apache.iceberg.flink.sink.dynamic.DynamicIcebergSink;
import org.apache.iceberg.flink.sink.dynamic.DynamicRecord;
import org.apache.iceberg.types.Types;

/**
 * A Flink job on a mini cluster that upserts and deletes through one of Iceberg's sinks.
 *
 * <p>Event n is a function of n alone: the same one as `events.py` has. A job that is started again goes on
 * from the newest checkpoint in its folder, and the process ends when the last event is committed.
 */
public final class FlinkWriter {
  private static final Schema SCHEMA =
      new Schema(
          List.of(
              Types.NestedField.required(1, "id", Types.LongType.get()),
              Types.NestedField.optional(2, "region", Types.StringType.get()),
              Types.NestedField.optional(3, "v", Types.StringType.get())),
          Set.of(1));

  /**
   * What half of the keys bring to the dynamic sink from the middle of the events on.
   *
   * <p>It writes the rows of each schema by a writer of its own, and commits all of one checkpoint as one: a
   * key with events of both stays twice. So the source pauses there until checkpoints have gone through.
   */
  private static final Schema WIDER =
      new Schema(
          List.of(
              SCHEMA.findField(1),
              SCHEMA.findField(2),
              SCHEMA.findField(3),
              Types.NestedField.optional(4, "late", Types.LongType.get())),
          Set.of(1));

  private static volatile long lastEvent;

  /** Arguments: sink, uri, namespace, table(s with commas), branch, events, keys, events a second, checkpoint folder, ms. */
  public static void main(String[] arguments) throws Exception {
    String sink = arguments[0];
    String namespace = arguments[2];
    String[] tables = arguments[3].split(",");
    String branch = arguments[4];
    long events = Long.parseLong(arguments[5]);
    long keys = Long.parseLong(arguments[6]);
    double perSecond = Double.parseDouble(arguments[7]);
    Path checkpoints = Path.of(arguments[8]);

    StreamExecutionEnvironment environment =
        StreamExecutionEnvironment.createLocalEnvironment(2, configuration(checkpoints));
    environment.enableCheckpointing(Long.parseLong(arguments[9]));
    InternalTypeInfo<RowData> rows = InternalTypeInfo.of(FlinkSchemaUtil.convert(SCHEMA));
    GeneratorFunction<Long, RowData> event = n -> event(n, keys);
    long pauseMs = sink.equals("flink-dynamic") ? 3 * Long.parseLong(arguments[9]) : 0;
    RateLimiterStrategy pace =
        readers -> paused(RateLimiterStrategy.perSecond(perSecond).createRateLimiter(readers), events / 2, pauseMs);
    DataStream<RowData> stream =
        environment
            .fromSource(
                new DataGeneratorSource<>(event, events, pace, rows),
                WatermarkStrategy.noWatermarks(),
                "events")
            .uid("events")
            .setParallelism(1); // the events of a key stay in order
    CatalogLoader catalog =
        CatalogLoader.rest(
            "rest", new org.apache.hadoop.conf.Configuration(), Map.of("uri", arguments[1]));
    TableLoader table = TableLoader.fromCatalog(catalog, TableIdentifier.of(namespace, tables[0]));
    switch (sink) {
      case "flink" ->
          IcebergSink.forRowData(stream)
              .tableLoader(table)
              .equalityFieldColumns(List.of("id"))
              .upsert(true)
              .toBranch(branch)
              .uidSuffix("orders")
              .append();
      case "flink-old" ->
          FlinkSink.forRowData(stream)
              .tableLoader(table)
              .equalityFieldColumns(List.of("id"))
              .upsert(true)
              .toBranch(branch)
              .uidPrefix("orders")
              .append();
      case "flink-dynamic" ->
          DynamicIcebergSink.<RowData>forInput(stream)
              .generator(
                  (row, out) -> {
                    String name = tables[(int) (row.getLong(0) % tables.length)];
                    long n = Long.parseLong(row.getString(2).toString().substring(1));
                    boolean wider = 2 * n > events && row.getLong(0) / tables.length % 2 == 0;
                    DynamicRecord record =
                        new DynamicRecord(
                            TableIdentifier.of(namespace, name),
                            branch,
                            wider ? WIDER : SCHEMA,
                            wider ? wider(row, n) : row,
                            PartitionSpec.unpartitioned(),
                            DistributionMode.HASH,
                            2);
                    record.setUpsertMode(true);
                    record.setEqualityFields(Set.of("id"));
                    out.collect(record);
                  })
              .catalogLoader(catalog)
              .immediateTableUpdate(true) // else the first events of a key overtake each other
              .uidPrefix("orders")
              .append();
      case "flink-sql", "flink-sql-changelog" -> {
        insert(environment, stream, arguments[1], namespace + "." + tables[0], branch, sink.equals("flink-sql"));
        return;
      }
      default -> throw new IllegalArgumentException("no sink " + sink);
    }
    environment.execute("writer");
    System.out.println("all events are committed");
  }

  /** In SQL; without upserts Flink finds the row before each change itself, and deletes that. */
  private static void insert(
      StreamExecutionEnvironment environment,
      DataStream<RowData> stream,
      String uri,
      String table,
      String branch,
      boolean upsert)
      throws Exception {
    StreamTableEnvironment sql = StreamTableEnvironment.create(environment);
    String[] names = {"id", "region", "v"};
    TypeInformation<?>[] types = {
      TypeInformation.of(Long.class), TypeInformation.of(String.class), TypeInformation.of(String.class)
    };
    DataStream<Row> changes =
        stream
            .map(
                row ->
                    Row.ofKind(
                        row.getRowKind() == RowKind.DELETE ? RowKind.DELETE : RowKind.UPDATE_AFTER,
                        row.getLong(0),
                        row.getString(1).toString(),
                        row.getString(2).toString()))
            .returns(new RowTypeInfo(types, names))
            .setParallelism(1);
    sql.createTemporaryView(
        "changes",
        sql.fromChangelogStream(
            changes,
            org.apache.flink.table.api.Schema.newBuilder()
                .column("id", "BIGINT NOT NULL")
                .column("region", "STRING")
                .column("v", "STRING")
                .primaryKey("id")
                .build(),
            ChangelogMode.upsert()));
    sql.executeSql(
        "CREATE CATALOG rest WITH ('type'='iceberg', 'catalog-type'='rest', 'uri'='" + uri + "')");
    sql.executeSql(
            String.format(
                "INSERT INTO rest.%s /*+ OPTIONS('upsert-enabled'='%s', 'branch'='%s') */"
                    + " SELECT id, region, v FROM changes",
                table, upsert, branch))
        .await();
    System.out.println("all events are committed");
  }

  private static Configuration configuration(Path checkpoints) throws Exception {
    Configuration given = new Configuration();
    given.setString("execution.checkpointing.dir", checkpoints.toUri().toString());
    given.setString("execution.checkpointing.externalized-checkpoint-retention", "RETAIN_ON_CANCELLATION");
    given.setString("execution.checkpointing.num-retained", "3");
    given.setString("restart-strategy.type", "fixed-delay");
    given.setString("restart-strategy.fixed-delay.attempts", "1000");
    given.setString("restart-strategy.fixed-delay.delay", "1 s");
    given.setString("taskmanager.numberOfTaskSlots", "2");
    given.setString("taskmanager.memory.network.min", "32 mb");
    given.setString("taskmanager.memory.network.max", "32 mb");
    Optional<Path> newest = newest(checkpoints);
    if (newest.isPresent()) {
      System.out.println("from " + newest.get());
      given.setString("execution.state-recovery.path", newest.get().toUri().toString());
    }
    return given;
  }

  /** The newest checkpoint that is whole: the one whose metadata was written last. */
  private static Optional<Path> newest(Path checkpoints) throws Exception {
    if (!Files.exists(checkpoints)) {
      return Optional.empty();
    }
    try (Stream<Path> found = Files.walk(checkpoints, 3)) {
      return found
          .filter(each -> each.endsWith("_metadata"))
          .max((one, other) -> Long.compare(one.toFile().lastModified(), other.toFile().lastModified()))
          .map(Path::getParent);
    }
  }

  /** As `limiter`, but for a pause after one event. */
  private static RateLimiter paused(RateLimiter limiter, long after, long pauseMs) {
    boolean[] isDone = {false};
    return () -> {
      if (isDone[0] || lastEvent != after) {
        return limiter.acquire();
      }
      isDone[0] = true;
      return CompletableFuture.runAsync(
          () -> {}, CompletableFuture.delayedExecutor(pauseMs, TimeUnit.MILLISECONDS));
    };
  }

  private static RowData wider(RowData row, long n) {
    GenericRowData wider = new GenericRowData(4);
    wider.setField(0, row.getLong(0));
    wider.setField(1, row.getString(1));
    wider.setField(2, row.getString(2));
    wider.setField(3, n);
    wider.setRowKind(row.getRowKind());
    return wider;
  }

  private static RowData event(long n, long keys) {
    lastEvent = n;
    long hash = (n * 6364136223846793005L + 1442695040888963407L) >>> 33;
    long key = hash % keys;
    GenericRowData row = new GenericRowData(3);
    row.setField(0, key);
    row.setField(1, StringData.fromString(key % 3 == 0 ? "EU" : "US"));
    row.setField(2, StringData.fromString("v" + n));
    row.setRowKind(hash / keys % 8 == 0 ? RowKind.DELETE : RowKind.INSERT);
    return row;
  }
}
