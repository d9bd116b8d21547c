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

# Snapshot summary keys. The marker is the Flink converter's name, so either tool can take over.
STAGING_MARKER = "equality-convert-staging-snapshot"
# Beside the marker: the sequence number of the snapshot it names, which may expire.
MARKER_SEQUENCE_NUMBER = "icefold.staging-sequence-number"
# In staged commits: the sequence number of the target's snapshot that the branch stands on.
STAGING_BASE = "icefold.staging-base-sequence-number"
# Beside it: that of the last staged snapshot that was published there; 0: none was.
STAGING_BASE_PUBLISHED = "icefold.staging-base-published-sequence-number"
FENCE_TOKEN = "icefold.fence-token"  # noqa: S105
FENCE_NAME = "icefold.fence-name"
COMMITTED_TO = "icefold.branch"  # the branch that a commit was made to; expiry cuts the table's log
SOURCE_SNAPSHOT_ID = "source-snapshot-id"  # of a cherry-pick; Java's name
CARRIED = "icefold.carried"  # this summary repeats all that older ones held
QUERY_ID = "icefold.query-id"
BATCH_ID = "icefold.batch-id"
SOURCE_OFFSETS = "icefold.source-offsets"
MISSING_COLUMNS = (
    "icefold.missing-columns"  # true: staged rows lack columns, see spec.missing_columns
)
SOURCE_MS = "icefold.source-ms"  # highest time, at the source, of a change up to here
# + query id: the last batch of a query whose place in QUERY_ID another one has taken.
OTHER_QUERY_BATCH = "icefold.committed-batch."
WRITER_PREFIXES = (
    "flink.",
    "icefold.query-id",
    "icefold.batch-id",
    "icefold.source-offsets",
    "icefold.source-ms",
)

# Table properties of our own.
DEAD_LETTER_TABLE = "icefold.dead-letter-table"  # NAMESPACE.TABLE of bad records
DV_PLACEMENT = "icefold.dv-placement"  # packed | per-file
DV_PLACEMENT_DEFAULT = "packed"
PUBLISH = "icefold.publish"  # link | rewrite
PUBLISH_DEFAULT = "link"
ON_MISSING_ROW = "icefold.on-missing-row"  # fail | null | dead-letter
ON_MISSING_ROW_DEFAULT = "fail"
CHECK_PRIMARY_KEY = "icefold.sql.check-primary-key"  # true | false
IMMUTABLE_COLUMNS = "icefold.constraint.immutable.columns"
IMMUTABLE_FIELD_IDS = "icefold.constraint.immutable.field-ids"
IMMUTABLE_NAME = "icefold.constraint.immutable.name"
IMMUTABLE_ENFORCED = "icefold.constraint.immutable.enforced"
SEQUENCE_COLUMN = "icefold.sequence.column"
SEQUENCE_FIELD_ID = "icefold.sequence.field-id"
