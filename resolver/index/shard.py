"""One RocksDB with raw byte keys: keys and a header, replaced together in one atomic step.

It holds the file dictionary; in format 1 each key shard was one, too. Many keys are ingested as a
sorted SST file. Few go through the write-ahead log: to ingest a file takes 20 ms, most of which
rocksdict holds Python's lock for, and a batch in the log 0.1 ms.

Block checksums are verified on every read, file sizes and footers when the shard is opened, so
damage is an error and never a missing row; a damaged end of the log is an older state.
"""

from __future__ import annotations

import collections
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Any
from weakref import finalize

from rocksdict import (
    AccessType,
    BlockBasedIndexType,
    BlockBasedOptions,
    Cache,
    Checkpoint,
    DBCompactionStyle,
    DBCompressionType,
    IngestExternalFileOptions,
    Options,
    Rdict,
    SstFileWriter,
    UniversalCompactOptions,
    WriteBatch,
)

from resolver.index.damage import damaged
from resolver.index.folder import disk_errors, sync_folder
from tableformat.errors import StoreUnavailableError, TableError
from tableformat.runtime import Clock

# On disk: never change. No data key is empty (resolver.keys.encode).
HEADER_KEY = b""

BLOOM_BITS_PER_KEY = 10  # 1 % false positives
RUNS_MAX = 6  # ingestions that may wait before runs of similar size are merged
GET_CHUNK_KEYS = 2048  # one call into RocksDB; larger ones are a quarter slower
SCAN_BATCH_KEYS = 65_536
INFO_LOGS_KEPT = 2
COMPACTION_POLL_MS = 2.0
_RUNNING = ("rocksdb.num-running-compactions", "rocksdb.compaction-pending")

_TOO_MANY = "Too many open files"
# Marks of an operating-system error that a rebuild would not cure.
_DISK_TROUBLE = (
    "No space left",
    "File too large",
    "Disk quota exceeded",
    "Read-only file system",
    "Permission denied",
    "Operation not permitted",
    _TOO_MANY,
    "Cannot allocate memory",
    "lock hold by current process",
    "While lock file",
)

_NOT_READ = ("LOCK", "LOG", "rocksdict-config.json")

SstChunk = tuple[Sequence[bytes], Sequence[bytes]]


def open_cache(size_bytes: int) -> Any:
    """A block cache that several shards share; it bounds the memory of all of them."""
    return Cache(size_bytes)


@contextmanager
def rocksdb_errors(location: Path) -> Iterator[None]:
    """Turn RocksDB's errors, which are bare `Exception`s, into ours.

    Raises:
        StoreUnavailableError: Full or read-only disk, or another process has the shard.
        IndexDamagedError: Everything else: missing, cut or flipped files.
    """
    try:
        yield
    except TableError:
        raise
    except Exception as error:
        # rocksdict has no narrower class
        if type(error) is not Exception and not isinstance(error, OSError):
            raise
        text = str(error)
        if any(sign in text for sign in _DISK_TROUBLE):
            action = "allow this process more: ulimit -n" if _TOO_MANY in text else None
            raise StoreUnavailableError(
                f"the index cannot be used now: {text}", action=action, index=location
            ) from error
        raise damaged(f"the index is damaged: {text}", location) from error


class Shard:
    """An open shard. Reads may come from several threads."""

    __slots__ = ("__weakref__", "_db", "_remove_links", "path")

    def __init__(self, path: Path, db: Any, links: Path | None = None) -> None:
        self.path = path
        self._db = db
        self._remove_links = None
        if links is not None:
            self._remove_links = finalize(self, rmtree, links, ignore_errors=True)

    @staticmethod
    def create(path: Path, cache: Any) -> Shard:
        """A new, empty shard; the folder must not exist."""
        path.mkdir(parents=True)
        with rocksdb_errors(path):
            return Shard(path, Rdict(str(path), _options(cache, create=True)))

    @staticmethod
    def open(path: Path, cache: Any) -> Shard:
        """An existing shard.

        Raises:
            IndexDamagedError: It is missing or damaged.
            StoreUnavailableError: Another process has it open.
        """
        if not (path / "CURRENT").is_file():  # RocksDB would leave an empty database behind
            raise damaged("a shard of the index is missing", path)
        with rocksdb_errors(path):
            return Shard(path, Rdict(str(path), _options(cache, create=False)))

    @staticmethod
    def open_read_only(path: Path, cache: Any) -> Shard:
        """An existing shard, by as many processes as like, also on a disk that refuses writes.

        rocksdict writes its options into the folder that it opens, whatever the access: it gets a
        folder of links to the shard's files.

        Raises:
            IndexDamagedError: It is missing or damaged.
        """
        if not (path / "CURRENT").is_file():
            raise damaged("a shard of the index is missing", path)
        with rocksdb_errors(path):
            links = Path(mkdtemp(prefix="icefold-index-"))
            try:
                for file in path.resolve().iterdir():
                    if file.name not in _NOT_READ:
                        (links / file.name).symlink_to(file)
                options = _options(cache, create=False)
                db = Rdict(str(links), options, access_type=AccessType.read_only())
            except BaseException:
                rmtree(links, ignore_errors=True)
                raise
            return Shard(path, db, links)

    def header(self) -> dict[str, Any]:
        """What the last change said about the shard."""
        with rocksdb_errors(self.path):
            data = self._db.get(HEADER_KEY)
        try:
            header = json.loads(data)
        except (TypeError, ValueError, RecursionError) as error:
            raise damaged("a shard of the index has no readable header", self.path) from error
        if not isinstance(header, dict):
            raise damaged("the header of a shard is no object", self.path)
        return header

    def get(self, keys: Sequence[bytes]) -> list[bytes]:
        """The value of each key, empty for an absent one. Sorted keys are twice as fast."""
        values: list[bytes] = []
        with rocksdb_errors(self.path):
            for start in range(0, len(keys), GET_CHUNK_KEYS):
                values += self._db.get(keys[start : start + GET_CHUNK_KEYS], b"")
        return values

    def write(self, keys: Sequence[bytes], values: Sequence[bytes], header: dict[str, Any]) -> None:
        """Replace few keys, in any order, and the header; an empty value deletes the key.

        Atomic. It outlives this process at once, and the machine's loss of power after `sync`.
        """
        batch = WriteBatch(raw_mode=True)
        batch[HEADER_KEY] = _encoded(header)
        _put_chunk(batch, keys, values)
        with rocksdb_errors(self.path):
            self._db.write(batch)

    def sync(self) -> None:
        """Make what was written durable. From any thread; Python's lock is free meanwhile."""
        with disk_errors(self.path):
            for log in self.path.glob("*.log"):
                with suppress(FileNotFoundError), log.open("rb") as file:
                    os.fsync(file.fileno())
            sync_folder(self.path)

    def ingest(self, sst: Path) -> None:
        """Take over an SST file; atomic, and on disk when it returns. The file is moved away."""
        options = IngestExternalFileOptions()
        options.set_move_files(True)
        with rocksdb_errors(self.path):
            self._db.ingest_external_file([str(sst)], options)

    def checkpoint(self, path: Path, clock: Clock) -> None:
        """Hard-link a consistent copy to a new folder, after compactions that are due.

        Without the wait they would be thrown away with this copy, and due again in the next one.
        """
        with rocksdb_errors(self.path):
            while any(self._db.property_int_value(name) for name in _RUNNING):
                clock.sleep_ms(COMPACTION_POLL_MS)
            Checkpoint(self._db).create_checkpoint(str(path))

    def scan(
        self, *, prefix: bytes = b"", batch_keys: int = SCAN_BATCH_KEYS
    ) -> Iterator[list[tuple[bytes, bytes]]]:
        """All keys that begin with `prefix`, in order, without the header, in batches.

        Raises:
            IndexDamagedError: After the last batch that could be read.
        """
        with rocksdb_errors(self.path):
            items = self._db.items(from_key=prefix or None)
            last = prefix
            while batch := list(islice(items, batch_keys)):
                last = batch[-1][0]
                if batch[0][0] == HEADER_KEY:
                    del batch[0]  # it sorts first
                if not last.startswith(prefix):
                    yield [pair for pair in batch if pair[0].startswith(prefix)]
                    return
                if batch:
                    yield batch
            del items  # with it, whoever keeps an error would keep the database open
            self._check_end(last)

    def _check_end(self, last: bytes) -> None:
        """Check that nothing follows `last`: rocksdict's iterators end at damage without a word."""
        after = self._db.iter()
        try:
            after.seek(last)
            if after.valid() and after.key() == last:
                after.next()
            after.status()
            if after.valid():
                raise damaged("a shard of the index ended early", self.path)
        finally:
            del after

    def close(self) -> None:
        """Release the shard. What was written is in its log, so that a flush may fail."""
        with suppress(TableError), rocksdb_errors(self.path):
            self._db.close()
        if self._remove_links is not None:
            self._remove_links()


def write_sst(path: Path, pairs: Iterable[SstChunk], header: dict[str, Any]) -> None:
    """Write one SST file with a header.

    Args:
        path: Must not exist.
        pairs: Keys and values in chunks; over all chunks the keys are distinct, bytewise
            ascending and not empty; an empty value deletes the key.
        header: What `Shard.header` gives once the file is ingested.

    Effects: the file is complete and synced when this returns; a crash leaves a part of it.
    """
    with rocksdb_errors(path):
        writer = SstFileWriter(_options(None, create=False))
        writer.open(str(path))
        writer[HEADER_KEY] = _encoded(header)
        for keys, values in pairs:
            _put_chunk(writer, keys, values)
        writer.finish()


def _encoded(header: dict[str, Any]) -> bytes:
    return json.dumps(header, sort_keys=True).encode()


def _put_chunk(writer: Any, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
    if all(values):
        collections.deque(map(writer.__setitem__, keys, values), maxlen=0)
        return
    if not any(values):
        collections.deque(map(writer.__delitem__, keys), maxlen=0)
        return
    for key, value in zip(keys, values, strict=True):
        if value:
            writer[key] = value
        else:
            del writer[key]


def _options(cache: Any, *, create: bool) -> Any:
    table = BlockBasedOptions()
    table.set_bloom_filter(BLOOM_BITS_PER_KEY, False)
    table.set_format_version(5)
    # Index and filter are cut into pages of the block cache, so its size bounds all memory.
    table.set_index_type(BlockBasedIndexType.two_level_index_search())
    table.set_partition_filters(True)
    table.set_pin_top_level_index_and_filter(True)
    if cache is None:
        table.disable_cache()
    else:
        table.set_block_cache(cache)
        table.set_cache_index_and_filter_blocks(True)
    universal = UniversalCompactOptions()
    universal.size_ratio = 25
    universal.max_size_amplification_percent = 100
    options = Options(raw_mode=True)
    options.create_if_missing(create)
    options.set_error_if_exists(create)
    options.set_paranoid_checks(True)
    options.set_block_based_table_factory(table)
    options.set_compression_type(DBCompressionType.zstd())
    options.set_optimize_filters_for_hits(True)
    options.set_compaction_style(DBCompactionStyle.universal())
    options.set_universal_compaction_options(universal)
    options.set_level_zero_file_num_compaction_trigger(RUNS_MAX)
    options.set_write_buffer_size(1 << 20)
    options.set_max_background_jobs(1)
    options.set_keep_log_file_num(INFO_LOGS_KEPT)
    return options
