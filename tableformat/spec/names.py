"""Names that are stored in tables: summary keys, reserved fields, properties. Never change one."""

from __future__ import annotations

MAIN_BRANCH = "main"
STAGING_BRANCH = "staging"

# Reserved field ids (spec: Reserved Field IDs).
POS_FIELD_ID = 2147483645
FILE_PATH_FIELD_ID = 2147483646
IS_DELETED_FIELD_ID = 2147483644
SPEC_ID_FIELD_ID = 2147483643
PARTITION_FIELD_ID = 2147483642
DELETE_FILE_PATH_FIELD_ID = 2147483546
DELETE_POS_FIELD_ID = 2147483545
ROW_ID_FIELD_ID = 2147483540
LAST_UPDATED_SEQUENCE_NUMBER_FIELD_ID = 2147483539
USER_FIELD_ID_MAX = 2147483447
# In staged data files: which columns of a row its event left out. No column of any schema: near the
# end of the ids that tables give out, so that statistics of it are kept and readers look it up
# nowhere.
MISSING_COLUMNS_FIELD_ID = 2147483400

# Snapshot summary keys. The comment above each is its line in the documentation's reference.

# On the target: the last staged snapshot that was published. Flink's converter has the same name.
STAGING_MARKER = "equality-convert-staging-snapshot"
# Staged commits that a publish covered.
STAGED_COMMITS = "icefold.cycle-staged-commits"
# Beside the cursor: that snapshot's sequence number, as the snapshot may expire.
MARKER_SEQUENCE_NUMBER = "icefold.staging-sequence-number"
# On a branch that was fast-forwarded to a staged snapshot: its sequence number, and its branch.
FORWARDED_TO = "icefold.forwarded-to"
# In a publish of several tables together: their dotted names, as a JSON array.
CUT_TABLES = "icefold.cut-tables"
# In staged commits: the sequence number of the target's snapshot that the branch stands on.
STAGING_BASE = "icefold.staging-base-sequence-number"
# Beside it: that of the last staged snapshot that was published there; 0: none was.
STAGING_BASE_PUBLISHED = "icefold.staging-base-published-sequence-number"
# In commits under a lock: the holder's token.
FENCE_TOKEN = "icefold.fence-token"  # noqa: S105
# In commits under a lock: the lock's name.
FENCE_NAME = "icefold.fence-name"
# The branch that the commit was made to: expiry cuts the table's own log.
COMMITTED_TO = "icefold.branch"
# In commits to a table whose time is ahead of the writer's clock: what that showed.
COMMITTED_MS = "icefold.committed-ms"
# In a cherry-pick: the snapshot that was picked. Java's name.
SOURCE_SNAPSHOT_ID = "source-snapshot-id"
WAP_ID = "wap.id"  # Spark's, of a snapshot that it writes on no branch
# On branches that are no staging branch: this summary repeats what older ones said.
CARRIED = "icefold.carried"
# In a batch of a change stream: the query that wrote it.
QUERY_ID = "icefold.query-id"
# In a batch of a change stream: its number, which rises within the query.
BATCH_ID = "icefold.batch-id"
# In a batch of a change stream: where it ends in the source, if the writer says so.
SOURCE_OFFSETS = "icefold.source-offsets"
# In a batch of events from files: how many of them end with it, and a digest of the last one.
SOURCE_EVENTS = "icefold.source-events"
# In a batch of a stream into many tables: names of all tables that it touches, as a JSON array.
BATCH_TABLES = "icefold.batch-tables"
# In a batch of a stream into many tables: Kafka's ids of the topics that feed the table, as JSON.
SOURCE_TOPICS = "icefold.source-topics"
# In a batch that ends where a source transaction ends: the id of the last one in it.
SOURCE_TRANSACTION = "icefold.source-transaction"
# In a batch on a branch that was moved back: the batch below it that only the target has.
BATCH_STANDS_ON = "icefold.batch-stands-on"
# In a publish of several tables together: the cut, as QUERY/BATCH.
CUT = "icefold.cut"
# In staged commits: `true` says that rows of it lack columns, which the publish fills.
MISSING_COLUMNS = "icefold.missing-columns"
# Highest time, by the source's clock, of a change up to here; in milliseconds since 1970 UTC.
SOURCE_MS = "icefold.source-ms"
# + query id: the last batch of another query; of the 256 that wrote last.
OTHER_QUERY_BATCH = "icefold.committed-batch."
# + query id: beside it, what that batch said of its source, as a JSON object of its other keys.
OTHER_QUERY_SOURCE = "icefold.committed-source."
# + query id: the last batch of a query of Iceberg's writer on Spark that was published; of 256.
STAGED_EPOCH = "icefold.staged-epoch."
# In publishes: ids of the staged snapshots that they left out, with commas.
LEFT_OUT = "icefold.left-out-snapshots"
# In what Iceberg's streaming writer on Spark commits, and what repeats it: the query that wrote it.
SPARK_QUERY = "spark.sql.streaming.queryId"
# In the same: the batch's number.
SPARK_EPOCH = "spark.sql.streaming.epochId"
FLINK_JOB = "flink.job-id"  # in what Flink's sink commits, and in what repeats it
FLINK_OPERATOR = "flink.operator-id"  # in the same; a job that is started again keeps it
WRITER_PREFIXES = (
    "flink.",
    "spark.sql.streaming.",
    "kafka.connect.offsets.",
    "icefold.query-id",
    "icefold.batch-id",
    "icefold.source-offsets",
    "icefold.source-events",
    "icefold.batch-tables",
    "icefold.source-topics",
    "icefold.source-transaction",
    "icefold.batch-stands-on",
    "icefold.source-ms",
)

# Table properties of our own. The comment above each is its line in the reference, too.

# Set by `icefold ingest` on a table whose events it cannot take: why and since when, as JSON.
SET_ASIDE = "icefold.ingest.set-aside"
# Set by `icefold ingest` on a table that it has taken up again: the batches it lacked, as JSON.
LEFT_OUT = "icefold.ingest.left-out"
# Set by `icefold load` while it goes on, as JSON: no change is published until it is through.
LOAD = "icefold.load"
# Where bad records go: NAMESPACE.TABLE; without it TABLE_dead_letter.
DEAD_LETTER_TABLE = "icefold.dead-letter-table"
# How many snapshots of a branch expiry keeps at most, unless the branch, the caller or the table
# (`history.expire.max-snapshot-age-ms`) says an age. Default: no bound; tables that icefold makes
# say 1000.
SNAPSHOTS_MAX = "icefold.expire.max-snapshots-to-keep"
# `packed`: many deletion vectors per Puffin file; `per-file`: one in each. Default: packed.
DV_PLACEMENT = "icefold.dv-placement"
DV_PLACEMENT_DEFAULT = "packed"
# `link`: staged files are published as they are; `rewrite`: written once more, rows keep their ids.
# Default: link.
PUBLISH = "icefold.publish"
PUBLISH_DEFAULT = "link"
# A staged row that lacks columns and replaces no row: `fail`, the cycle is refused; `null`, they
# are null; `dead-letter`, the row is put aside. Default: fail.
ON_MISSING_ROW = "icefold.on-missing-row"
ON_MISSING_ROW_DEFAULT = "fail"
# The columns that name a row, where no identifier fields do; set by `icefold adopt --apply key`.
PRIMARY_KEY = "icefold.primary-key"
# Their field ids, which decide.
PRIMARY_KEY_FIELD_IDS = "icefold.primary-key.field-ids"
# Whether UPDATE and MERGE refuse to give a key to a second row. Default: true.
CHECK_PRIMARY_KEY = "icefold.sql.check-primary-key"
# The columns of the IMMUTABLE constraint; set by `icefold table immutable`.
IMMUTABLE_COLUMNS = "icefold.constraint.immutable.columns"
# Their field ids, which decide.
IMMUTABLE_FIELD_IDS = "icefold.constraint.immutable.field-ids"
# The constraint's name. Default: IMMUTABLE_COLUMNS_ and the columns.
IMMUTABLE_NAME = "icefold.constraint.immutable.name"
# Whether a cycle that would break the constraint is refused. Default: false.
IMMUTABLE_ENFORCED = "icefold.constraint.immutable.enforced"
# Whether an enforced IMMUTABLE constraint lets rows be deleted: `allowed`, `forbidden`. Default:
# allowed.
IMMUTABLE_DELETES = "icefold.constraint.immutable.deletes"
# The column that orders versions of a row; set by `icefold table sequence`.
SEQUENCE_COLUMN = "icefold.sequence.column"
# Its field id, which decides.
SEQUENCE_FIELD_ID = "icefold.sequence.field-id"
