"""Whose a stream's checkpoint is. Spark itself says a mistake late, at length, or not at all.

Spark goes on from a checkpoint's offsets whatever the stream reads and wherever it writes: events
that a new table never saw would be passed over in silence. In the folder, beside Spark's own:

| file            | is                                                                 |
|-----------------|--------------------------------------------------------------------|
| `icefold.json`  | table, branch and source, written before the stream first starts   |
| `icefold.lock`  | empty; locked by the process that runs the stream, while it runs    |
| `icefold.batch` | query id and number of the last batch, written after its commit    |
| `icefold.topics` | Kafka's ids of its topics, written before the stream first starts  |

A folder without `icefold.json` is one of an older version, or of another program: then Spark's own
log of offsets says what was read. One without `icefold.batch`, or with one that cannot be read,
says nothing about what its table must have; without `icefold.topics`, nothing about which topics
its offsets are of.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any
from urllib.parse import unquote, urlsplit

from tableformat.cdc.batch_commit import BatchId
from tableformat.errors import InvalidInputError, StoreUnavailableError

IDENTITY_FILE, LOCK_FILE, BATCH_FILE = "icefold.json", "icefold.lock", "icefold.batch"
TOPICS_FILE = "icefold.topics"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointedStream:
    """What a checkpoint belongs to; `topic` or `folder` is where events are from, if that is known.

    `topic` may be several, with commas between them.
    """

    table: str
    table_uuid: str
    branch: str
    topic: str | None = None
    folder: str | None = None

    @property
    def topics(self) -> frozenset[str]:
        """The Kafka topics."""
        return frozenset((self.topic or "").split(",")) - {""}

    @property
    def has_source(self) -> bool:
        """Whether it is known where events are from."""
        return (self.topic, self.folder) != (None, None)

    @property
    def source(self) -> str:
        """For people."""
        return f"folder {self.folder}" if self.topic is None else f"Kafka topic {self.topic!r}"


def check_checkpoint(folder: Path, stream: CheckpointedStream) -> None:
    """Whether the stream may run on the checkpoint; nothing is written.

    Raises:
        InvalidInputError: It is a checkpoint of another table, branch, topic, folder or program,
            or another process runs on it.
    """
    _refuse_other(folder, stream)
    if (folder / LOCK_FILE).exists():
        with (folder / LOCK_FILE).open("rb") as file:
            _lock(file, folder)


def claim_checkpoint(
    folder: Path, stream: CheckpointedStream, topic_ids: Mapping[str, str] | None = None
) -> IO[bytes]:
    """Make the checkpoint this process's, until the file that is returned is closed.

    Args:
        folder: The checkpoint.
        stream: What is to run on it.
        topic_ids: Kafka's ids of its topics, where brokers tell them.

    Raises:
        InvalidInputError: See `check_checkpoint`; or a topic was deleted and made anew since.
        StoreUnavailableError: The folder cannot be written.

    Effects: creates the folder and its files if they are missing, and removes what Spark has left
    of the first batch that it was killed in. The lock ends with the process.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        claim = (folder / LOCK_FILE).open("ab")
        try:
            _lock(claim, folder)
            _refuse_other(folder, stream)
            if not (folder / IDENTITY_FILE).exists():
                _write(folder / IDENTITY_FILE, json.dumps(asdict(stream), indent=2))
            _keep_topics(folder, topic_ids or {})
            _remove_halves(folder)
        except BaseException:
            claim.close()
            raise
        return claim
    except OSError as error:
        raise StoreUnavailableError(
            f"the checkpoint cannot be used: {error.strerror}", checkpoint=folder
        ) from error


def note_batch(checkpoint: str, batch: BatchId) -> None:
    """Keep in a checkpoint that a batch is committed; nothing if it is not on local disk.

    Raises:
        StoreUnavailableError: The folder cannot be written. The batch is committed all the same.

    Effects: one small file, replaced as a whole. After a power cut it may be an older one, or none.
    """
    folder = local_folder(checkpoint)
    if folder is None:
        return
    try:
        _write(folder / BATCH_FILE, json.dumps(asdict(batch)))
    except OSError as error:
        raise StoreUnavailableError(
            f"the checkpoint cannot be used: {error.strerror}", checkpoint=folder
        ) from error


def noted_batch(checkpoint: str, query_id: str) -> BatchId | None:
    """The last batch of a query that a checkpoint knows to be committed; None: it does not say."""
    folder = local_folder(checkpoint)
    if folder is None:
        return None
    try:
        known = json.loads((folder / BATCH_FILE).read_text(encoding="utf-8"))
        batch = BatchId(str(known["query_id"]), int(known["number"]))
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return batch if batch.query_id == query_id else None


def local_folder(checkpoint: str) -> Path | None:
    """A checkpoint's folder; None if it is not on local disk."""
    parts = urlsplit(checkpoint)
    return Path(unquote(parts.path)).absolute() if parts.scheme in ("", "file") else None


def _write(file: Path, text: str) -> None:
    """The file as a whole, or as it was."""
    aside = file.with_name(f"{file.name}.new")
    aside.write_text(text, encoding="utf-8")
    aside.replace(file)


def _keep_topics(folder: Path, ids: Mapping[str, str]) -> None:
    """Offsets of a topic that was made anew begin again at 0: which were read, nothing tells."""
    try:
        known = dict(json.loads((folder / TOPICS_FILE).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        known = {}
    for topic in sorted(known.keys() & ids.keys()):
        if known[topic] != ids[topic]:
            raise InvalidInputError(
                f"Kafka topic {topic!r} was deleted and made anew (its id was {known[topic]}, is "
                f"{ids[topic]}), so offsets of before say nothing of it",
                action="load the table anew with a checkpoint that does not exist yet; or remove "
                f"{TOPICS_FILE} from this one, if messages have the offsets that they had (a "
                "cluster that was copied)",
                checkpoint=folder,
            )
    if ids.keys() - known.keys():
        _write(folder / TOPICS_FILE, json.dumps(known | dict(ids)))


def _remove_halves(folder: Path) -> None:
    """A process that was killed as Spark wrote down the first batch: none begins beside that."""
    if not _logs(folder):
        for name in ("offsets", "commits"):
            for half in (folder / name).glob(".*"):
                half.unlink(missing_ok=True)


def _lock(file: IO[Any], folder: Path) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise InvalidInputError(
            "another process or query runs on this checkpoint",
            action="stop it first, or give this stream a checkpoint of its own",
            checkpoint=folder,
        ) from None


def _refuse_other(folder: Path, stream: CheckpointedStream) -> None:
    known = _identity(folder)
    if known is None:
        _refuse_other_source(folder, stream, _topics_read(folder))
        return
    other = CheckpointedStream(**known)
    if other.table_uuid != stream.table_uuid:
        same = "an earlier table of this name" if other.table == stream.table else other.table
        raise _belongs(folder, f"to {same}", table=stream.table)
    if other.branch != stream.branch:
        raise _belongs(folder, f"to branch {other.branch!r}", branch=stream.branch)
    is_other = (other.topic, other.folder) != (stream.topic, stream.folder)
    if other.has_source and stream.has_source and is_other:
        raise _belongs(folder, f"to {other.source}", source=stream.source)


def _refuse_other_source(
    folder: Path, stream: CheckpointedStream, topics: frozenset[str] | None
) -> None:
    if topics is None or not stream.has_source:
        return
    if stream.topic is None and topics:
        raise _belongs(folder, f"to Kafka topic {min(topics)!r}", source=stream.source)
    if stream.topic is not None and topics != stream.topics:
        whose = f"to Kafka topic {min(topics)!r}" if topics else "to another source than Kafka"
        raise _belongs(folder, whose, source=stream.source)


def _belongs(folder: Path, whose: str, **context: object) -> InvalidInputError:
    return InvalidInputError(
        f"the checkpoint belongs {whose}",
        action="name that one's, or a folder that does not exist yet: it starts from the beginning",
        checkpoint=folder,
        **context,
    )


def _identity(folder: Path) -> Mapping[str, Any] | None:
    try:
        text = (folder / IDENTITY_FILE).read_text(encoding="utf-8")
    except OSError:
        return None
    try:
        known = json.loads(text)
        CheckpointedStream(**known)
    except (ValueError, TypeError) as error:
        raise InvalidInputError(
            f"the checkpoint's {IDENTITY_FILE} cannot be read",
            action="remove the file if the checkpoint is this stream's",
            checkpoint=folder,
        ) from error
    return dict(known)


def _logs(folder: Path) -> list[Path]:
    """What Spark has written down of where batches end."""
    return [path for path in (folder / "offsets").glob("*") if path.name.isdecimal()]


def _topics_read(folder: Path) -> frozenset[str] | None:
    """Topics in Spark's newest log of offsets, none for another source; None: nothing was read.

    A log is a version line, a line of Spark's settings, and a line of JSON per source: for Kafka
    `{"topic": {"partition": offset}}`.
    """
    logs = _logs(folder)
    if not logs:
        return None
    newest = max(logs, key=lambda path: int(path.name))
    try:
        sources = [json.loads(line) for line in newest.read_text().splitlines()[2:] if line != "-"]
    except (OSError, ValueError):
        return frozenset()
    return frozenset(
        name
        for source in sources
        if isinstance(source, dict)
        for name, partitions in source.items()
        if isinstance(partitions, dict)
    )
