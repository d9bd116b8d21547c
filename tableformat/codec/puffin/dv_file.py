"""Deletion vectors in Puffin files, through an object store.

A vector is told by (location, content offset, content size): one Puffin file may hold many (R44).
What the manifest entry says about it must be what the Puffin footer says.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Literal

from tableformat.codec.avro.manifest_entries import data_file_problem
from tableformat.codec.puffin.container import (
    DELETION_VECTOR_TYPE,
    MAGIC,
    TAIL_BYTES,
    Blob,
    BlobMetadata,
    PuffinFooter,
    check_head,
    decode_puffin,
    decode_puffin_footer,
    encode_puffin,
    footer_size_bytes,
)
from tableformat.codec.puffin.deletion_vector import (
    Positions,
    decode_deletion_vector,
    encode_deletion_vector,
)
from tableformat.errors import CorruptDataError, InternalError, InvalidInputError, error_context
from tableformat.limits import (
    DELETION_VECTOR_BYTES_MAX,
    PUFFIN_FOOTER_GUESS_BYTES,
    PUFFIN_READ_GAP_BYTES_MAX,
    PUFFIN_TARGET_BYTES,
    PUFFIN_WHOLE_READ_BYTES_MAX,
)
from tableformat.side_by_side import run_ahead
from tableformat.spec.data_file import PUFFIN_FORMAT, DataFile, FileContent
from tableformat.spec.names import DELETE_FILE_PATH_FIELD_ID, POS_FIELD_ID
from tableformat.store.base import ObjectStore
from tableformat.store.locations import requests_of

Placement = Literal["packed", "per-file"]

CREATED_BY = "icefold"
OPEN_BLOBS_MAX = 1 << 16  # about 64 MiB of decoded footers
_REFERENCED_DATA_FILE = "referenced-data-file"
_CARDINALITY = "cardinality"


@dataclass(frozen=True, slots=True)
class DeletionVector:
    """What to write: a data file and all positions that are deleted in it."""

    data_file: DataFile
    positions: Positions


def write_deletion_vectors(
    store: ObjectStore,
    vectors: Sequence[DeletionVector],
    *,
    location_for: Callable[[], str],
    placement: Placement,
    bounds_of: Collection[int] = (),
) -> list[DataFile]:
    """Store deletion vectors, and describe each as a delete file to commit.

    Args:
        store: Where the Puffin files go.
        vectors: One per data file at most. Empty ones are left out; when nothing remains, nothing
            is written (R54).
        location_for: Gives a fresh Puffin location.
        placement: `packed` puts many vectors into one file, `per-file` one into each: some readers
            confuse vectors that share a file.
        bounds_of: Field ids, those of the key: an entry repeats the bounds that these columns have
            in its data file. Other writers see by them whose rows a new vector cannot concern; a
            reader that leaves out the data file by them leaves out the vector, and no other.

    Returns:
        The entries in the order of `vectors`, without the empty ones.

    Raises:
        InternalError: Two vectors for one data file, one for a delete file, or a position past the
            data file's rows.
        StoreUnavailableError: A file could not be stored (R49); those stored before stay behind.

    Effects: puts one object after the other. They mean nothing until a commit refers to them; a
    crash leaves them for orphan removal.
    """
    if placement not in ("packed", "per-file"):
        raise InvalidInputError("unknown placement of deletion vectors", placement=placement)
    wanted = [vector for vector in vectors if vector.positions]
    _check_vectors(wanted)
    bytes_max = PUFFIN_TARGET_BYTES if placement == "packed" else 0
    entries: list[DataFile] = []
    for group, blobs in _groups(wanted, bytes_max):
        puffin = encode_puffin(blobs, {"created-by": CREATED_BY})
        location = location_for()
        store.put(location, puffin.data)
        entries += [
            _entry(vector, blob, location, len(puffin.data), bounds_of)
            for vector, blob in zip(group, puffin.blobs, strict=True)
        ]
    return entries


def read_deletion_vectors(
    store: ObjectStore, dvs: Sequence[tuple[DataFile, int | None]]
) -> list[Positions]:
    """Read vectors, each Puffin file's footer once, and check all that can be checked.

    Args:
        store: Where the Puffin files are.
        dvs: Manifest entry and the rows of its data file, if known.

    Returns:
        The positions, in the order of `dvs`.

    Raises:
        CorruptDataError: An entry is incomplete, a Puffin file is damaged or has another size, its
            footer has no such vector, or a vector is damaged.
        NotFoundError: A Puffin file is gone.

    Effects: one read for a Puffin file up to 1 MiB, three or four for a larger one.
    """
    return PuffinFiles(store).read(dvs)


class PuffinFiles:
    """Puffin files that several readers of one job share; safe in several threads.

    A footer tells of every vector of its file, so who reads them one by one would otherwise decode
    all of it for each.

    Memory: the footers read last, of `OPEN_BLOBS_MAX` vectors together, and the whole of small
    files; one file always.
    """

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._files: OrderedDict[tuple[str, int], _PuffinFile] = OrderedDict()
        self._blobs = 0
        self._guard = Lock()

    def __reduce__(self) -> tuple[type[PuffinFiles], tuple[ObjectStore]]:
        return PuffinFiles, (self._store,)  # another process opens its own

    def read(self, dvs: Sequence[tuple[DataFile, int | None]]) -> list[Positions]:
        """See `read_deletion_vectors`."""
        by_file: dict[tuple[str, int], list[int]] = {}
        for ordinal, (dv, _) in enumerate(dvs):
            _check_entry(dv)
            by_file.setdefault((dv.file_path, dv.file_size_in_bytes), []).append(ordinal)
        results: dict[int, Positions] = {}

        def read(file: tuple[str, int]) -> None:
            ordinals = sorted(by_file[file], key=lambda each: dvs[each][0].content_offset or 0)
            puffin = self._open(*file)
            blobs = [_find_blob(puffin, dvs[ordinal][0]) for ordinal in ordinals]
            for ordinal, stored in zip(ordinals, puffin.read(blobs), strict=True):
                dv, record_count = dvs[ordinal]
                with error_context(data_file=dv.referenced_data_file):
                    results[ordinal] = decode_deletion_vector(
                        stored,
                        location=dv.file_path,
                        cardinality=dv.record_count,
                        record_count=record_count,
                    )

        at_once = requests_of(dvs[0][0].file_path) if len(by_file) > 1 else 1
        deque(run_ahead(read, by_file, at_once=at_once), maxlen=0)
        return [results[ordinal] for ordinal in range(len(dvs))]

    def _open(self, location: str, size_bytes: int) -> _PuffinFile:
        key = (location, size_bytes)
        with self._guard:
            puffin = self._files.get(key)
            if puffin is not None:
                self._files.move_to_end(key)
                return puffin
        puffin = _PuffinFile(self._store, location, size_bytes)
        with self._guard:
            if key not in self._files:
                self._files[key] = puffin
                self._blobs += len(puffin.blobs)
            while self._blobs > OPEN_BLOBS_MAX and len(self._files) > 1:
                self._blobs -= len(self._files.popitem(last=False)[1].blobs)
        return puffin


class _PuffinFile:
    """An opened Puffin file: its blobs by place, and their bytes. Small files are held whole."""

    def __init__(self, store: ObjectStore, location: str, size_bytes: int) -> None:
        self._store = store
        self._location = location
        self._whole: bytes | None = None
        if size_bytes <= PUFFIN_WHOLE_READ_BYTES_MAX:
            self._whole = store.get(location)
            if len(self._whole) != size_bytes:
                raise CorruptDataError(
                    "Puffin file has the wrong size",
                    location=location,
                    expected_bytes=size_bytes,
                    found_bytes=len(self._whole),
                )
            footer = decode_puffin(self._whole, location=location)
        else:
            footer = self._load_footer(size_bytes)
        # Of two records of one place the first counts.
        self.blobs = {(blob.offset, blob.length): blob for blob in reversed(footer.blobs)}

    def read(self, blobs: Sequence[BlobMetadata]) -> Iterator[bytes]:
        """The stored bytes of blobs, in their order; neighbours come in one read."""
        start, data = 0, self._whole or b""
        for ordinal, blob in enumerate(blobs):
            end = blob.offset + blob.length
            if not start <= blob.offset <= end <= start + len(data):
                start = blob.offset
                length = _run_length(blobs, ordinal)
                data = self._store.get(self._location, offset=start, length=length)
            yield data[blob.offset - start : end - start]

    def _load_footer(self, size_bytes: int) -> PuffinFooter:
        location = self._location
        check_head(self._store.get(location, offset=0, length=len(MAGIC)), location=location)
        guess = min(size_bytes, PUFFIN_FOOTER_GUESS_BYTES)
        tail = self._store.get(location, offset=size_bytes - guess, length=guess)
        needed = footer_size_bytes(
            tail[-TAIL_BYTES:], file_size_bytes=size_bytes, location=location
        )
        if needed > guess:
            tail = self._store.get(location, offset=size_bytes - needed, length=needed)
        return decode_puffin_footer(tail, file_size_bytes=size_bytes, location=location)


def _run_length(blobs: Sequence[BlobMetadata], first: int) -> int:
    """Bytes from blob `first` through those that follow it closely, in order and within bounds."""
    start = blobs[first].offset
    end = start + blobs[first].length
    for blob in blobs[first + 1 :]:
        blob_end = blob.offset + blob.length
        if not end <= blob.offset <= end + PUFFIN_READ_GAP_BYTES_MAX:
            break
        if blob_end - start > PUFFIN_WHOLE_READ_BYTES_MAX:
            break
        end = blob_end
    return end - start


def _check_vectors(vectors: Sequence[DeletionVector]) -> None:
    seen: set[str] = set()
    for vector in vectors:
        file = vector.data_file
        problem = None
        if file.content != FileContent.DATA:
            problem = f"a vector for a file of {file.content.name}"
        elif file.file_path in seen:
            problem = "two vectors for one data file"  # R43
        elif vector.positions.max() >= file.record_count:
            problem = f"position {vector.positions.max()} of {file.record_count} rows"
        if problem is not None:
            raise InternalError(
                f"cannot write deletion vectors: {problem}", data_file=file.file_path
            )
        seen.add(file.file_path)


def _groups(
    vectors: Sequence[DeletionVector], bytes_max: int
) -> Iterator[tuple[list[DeletionVector], list[Blob]]]:
    """Vectors and their blobs by Puffin file: a new one where `bytes_max` would be exceeded."""
    group: list[DeletionVector] = []
    blobs: list[Blob] = []
    held_bytes = 0
    for vector in vectors:
        blob = _blob(vector)
        if blobs and held_bytes + len(blob.data) > bytes_max:
            yield group, blobs
            group, blobs, held_bytes = [], [], 0
        group.append(vector)
        blobs.append(blob)
        held_bytes += len(blob.data)
    if blobs:
        yield group, blobs


def _blob(vector: DeletionVector) -> Blob:
    return Blob(
        type=DELETION_VECTOR_TYPE,
        data=encode_deletion_vector(vector.positions),
        fields=(POS_FIELD_ID,),
        properties={
            _REFERENCED_DATA_FILE: vector.data_file.file_path,
            _CARDINALITY: str(len(vector.positions)),
        },
    )


def _entry(
    vector: DeletionVector,
    blob: BlobMetadata,
    location: str,
    file_size_in_bytes: int,
    bounds_of: Collection[int],
) -> DataFile:
    file = vector.data_file
    # PyIceberg and polars find the data file through these bounds, not by referenced_data_file.
    path_bound = {DELETE_FILE_PATH_FIELD_ID: file.file_path.encode()}
    return DataFile(
        content=FileContent.POSITION_DELETES,
        file_path=location,
        file_format=PUFFIN_FORMAT,
        spec_id=file.spec_id,
        partition=file.partition,
        record_count=len(vector.positions),
        file_size_in_bytes=file_size_in_bytes,
        lower_bounds=path_bound | _chosen(file.lower_bounds, bounds_of),
        upper_bounds=path_bound | _chosen(file.upper_bounds, bounds_of),
        referenced_data_file=file.file_path,
        content_offset=blob.offset,
        content_size_in_bytes=blob.length,
    )


def _chosen(bounds: Mapping[int, bytes] | None, field_ids: Collection[int]) -> dict[int, bytes]:
    return {each: bounds[each] for each in field_ids if each in bounds} if bounds else {}


def _check_entry(dv: DataFile) -> None:
    if not dv.is_dv:
        raise InternalError("not a deletion vector", location=dv.file_path)
    problem = data_file_problem(dv)
    if problem is None and (dv.content_size_in_bytes or 0) > DELETION_VECTOR_BYTES_MAX:
        problem = "a deletion vector larger than 2 GB"
    if problem is not None:
        raise CorruptDataError(f"not a valid manifest entry: {problem}", location=dv.file_path)


def _find_blob(puffin: _PuffinFile, dv: DataFile) -> BlobMetadata:
    """The footer's record of the vector; the spec demands that both agree, Java does not look."""
    blob = puffin.blobs.get((dv.content_offset or 0, dv.content_size_in_bytes or 0))
    if blob is None:
        raise CorruptDataError(
            "the Puffin footer has no deletion vector at the manifest's offset and size",
            location=dv.file_path,
            content_offset=dv.content_offset,
            content_size=dv.content_size_in_bytes,
        )
    referenced = blob.properties.get(_REFERENCED_DATA_FILE)
    cardinality = blob.properties.get(_CARDINALITY)
    problem = None
    if blob.type != DELETION_VECTOR_TYPE:
        problem = f"its type is {blob.type[:80]!r}"
    elif blob.compression_codec is not None:
        problem = "it is compressed"
    elif referenced != dv.referenced_data_file:
        problem = f"it refers to {referenced}"
    elif cardinality != str(dv.record_count):
        problem = f"its cardinality is {cardinality}, the manifest says {dv.record_count}"
    if problem is not None:
        raise CorruptDataError(
            f"the Puffin footer contradicts the manifest: {problem}", location=dv.file_path
        )
    return blob
