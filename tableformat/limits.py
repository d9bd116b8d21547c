"""How much a file may ask for: bound, unit, and why.

A file is judged by its own size before anything is allocated for it, so that a small file cannot
cost much memory (docs/guarantees.md, "Bad inputs"). The bounds are far above what any writer
produces.
"""

from __future__ import annotations

# Avro ------------------------------------------------------------------------------------------

# Decoded bytes of one Avro file: a floor that covers every small file, plus a multiple of the
# stored size. Deflate reaches 1032:1 and zstd more; manifests with constant statistics 30:1.
AVRO_DECODED_BYTES_FLOOR = 1024 * 1024
AVRO_EXPANSION_MAX = 100
# 8 MiB is the target size of a manifest (commit.manifest.target-size-bytes); 64 MiB decoded.
AVRO_DECODED_BYTES_MAX = 1024 * 1024 * 1024

# Entries per stored byte. Every entry names a different file, so it costs more than one byte even
# when compressed; the floor covers tiny files with a good dictionary.
AVRO_RECORDS_FLOOR = 10_000

# The schema in an Avro header: nesting of types (a manifest needs 6 levels), and values that one
# record consists of, nulls too (60, and one per partition field). Named types can be used many
# times, so a short schema could ask for 2**60 values that take no bytes.
AVRO_SCHEMA_DEPTH_MAX = 32
AVRO_SCHEMA_VALUES_MAX = 2000
AVRO_HEADER_BYTES_MAX = 64 * 1024 * 1024  # the table schema is in it; thousands of columns fit

# Puffin and deletion vectors -------------------------------------------------------------------

# Java: "Can't serialize index > 2GB", "Can't read DV larger than 2GB".
DELETION_VECTOR_BYTES_MAX = 2**31 - 1

# Highest 32-bit key and position of a 64-bit roaring bitmap, as in Java's RoaringPositionBitmap.
ROARING_KEY_MAX = 2_147_483_646
POSITION_MAX = (ROARING_KEY_MAX << 32) | 0x8000_0000

# Keys a *written* vector may span. Java writes one empty bitmap (12 bytes) for every missing key;
# 4096 keys are 1.8e13 rows in one data file, and at most 48 KiB of filler.
WRITTEN_ROARING_KEYS_MAX = 4096

# A Puffin footer describes blobs in a few hundred bytes each; this is 100 000 of them and more.
PUFFIN_FOOTER_BYTES_MAX = 64 * 1024 * 1024

# Decoded bytes of a compressed Puffin blob or footer: a floor, plus a multiple of the stored bytes.
PUFFIN_DECODED_BYTES_FLOOR = 1024 * 1024
PUFFIN_EXPANSION_MAX = 200

# Bytes of deletion vectors in one packed Puffin file; then another one is begun. They are held in
# memory until the file is stored; 64 MiB are the deletes of billions of rows.
PUFFIN_TARGET_BYTES = 64 * 1024 * 1024

# A Puffin file up to this size is read whole: one request instead of three or four.
PUFFIN_WHOLE_READ_BYTES_MAX = 1024 * 1024

# Bytes between two wanted blobs that are read along rather than asked for around.
PUFFIN_READ_GAP_BYTES_MAX = 64 * 1024

# Read from the end of a larger file in the hope that the footer fits.
PUFFIN_FOOTER_GUESS_BYTES = 64 * 1024

# Caches ----------------------------------------------------------------------------------------

# Manifest entries kept decoded per store. One entry with five statistics columns takes ~3 KB.
CACHED_MANIFEST_ENTRIES_MAX = 100_000

# Bytes of manifests kept as they are stored per store, with the names in them: ~100 a data file.
CACHED_MANIFEST_BYTES_MAX = 256 << 20

# Manifest lists kept decoded per table: those of its branches, and a backlog of staged snapshots.
CACHED_MANIFEST_LISTS_PER_TABLE_MAX = 32

# Manifest records of manifest lists kept decoded per store, ~1 KB each.
CACHED_LISTED_MANIFESTS_MAX = 20_000

# What a file of notes on manifests may lack before it is written anew: entries (so many, and a
# share of all), or manifests. Who begins reads those: 2 us an entry, 0.5 ms a manifest.
UNNOTED_FILES_MAX = 20_000
UNNOTED_SHARE_MAX = 0.1
UNNOTED_MANIFESTS_MAX = 100

# Objects that a process which stages and publishes has written lately: some seconds of a stream,
# which is published within a second or two. Larger ones are worth a read of their own.
RECENT_BYTES_MAX = 32 << 20
RECENT_OBJECT_BYTES_MAX = 4 << 20

# Row ids of data files kept per store by a process that resolves with row ids kept: 4 bytes a row.
ROW_IDS_BYTES_MAX = 128 << 20
