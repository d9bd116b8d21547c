"""A checksum of the footer of a Parquet file, in that footer.

Nothing in Parquet notices a flipped bit in a footer: other statistics hide row groups from a
filter, another field id or type gives other values, and Arrow aborts the process when the levels of
a changed schema contradict a column's histograms. So our files carry a CRC-32 of the footer's
bytes, in which the eight hexadecimal digits of the checksum itself count as zeros. Other readers
ignore it.

The footer also names its file. Tools that make other files of ours may take over what they found in
the footer; what it says of another file does not count. On disk: never change.
"""

from __future__ import annotations

import zlib

import pyarrow as pa
import pyarrow.parquet as pq

from tableformat.codec.parquet.chunk_checksums import CHUNK_CHECKSUMS_KEY
from tableformat.codec.parquet.thrift_compact import BINARY, decode_struct, encode_struct
from tableformat.codec.tapped_source import TappedSource, read_range
from tableformat.errors import CorruptDataError

FOOTER_CHECKSUM_KEY = "icefold.footer-crc32"
FILE_NAME_KEY = "icefold.file-name"
NO_CHECKSUM = b"00000000"
TAIL_BYTES = 8  # length of the footer, magic
_BINARY_FIELD = b"\x18"  # Thrift: the next field of a struct, a string
_KEYS = (FOOTER_CHECKSUM_KEY, CHUNK_CHECKSUMS_KEY)  # a file has both or none
_STRUCT_END = b"\x00"
_FILE_KEY_VALUES, _KEY, _VALUE = 5, 1, 2  # field ids of parquet.thrift
_MAGIC = b"PAR1"


class FooterReads:
    """Remembers the end of a file that Arrow reads to find the footer, and checks it.

    Args:
        source: The open file.
    """

    def __init__(self, source: pa.NativeFile) -> None:
        self._source = source
        self._size_bytes: int = source.size()
        self._reads: list[tuple[int, bytes]] = []

    def tapped(self) -> TappedSource:
        """What Arrow is to read the footer from."""
        return TappedSource(self._source, lambda data, at: self._reads.append((at, data)))

    def checked(self, footer: pq.FileMetaData, location: str) -> pq.FileMetaData:
        """Hold the footer's bytes against their checksum, where the file has one.

        Returns:
            The footer; without what it says of another file.

        Raises:
            CorruptDataError: They differ, or the damage is such that no checksum is found.
        """
        size_bytes = int.from_bytes(self._at_end(TAIL_BYTES, TAIL_BYTES)[:4], "little")
        text = self._at_end(TAIL_BYTES + size_bytes, size_bytes)
        self._reads.clear()  # who keeps the reader keeps what it reads from
        values = footer.metadata or {}
        if values.get(FILE_NAME_KEY.encode(), file_name(location)) != file_name(location):
            return _without_values(text)
        stored = values.get(FOOTER_CHECKSUM_KEY.encode())
        if stored is None:
            if any(key.encode() + _BINARY_FIELD in text for key in _KEYS):
                raise CorruptDataError("the footer has lost its checksum")
            return footer
        at = place_of_value(text, FOOTER_CHECKSUM_KEY, stored)
        found = footer_checksum(text, at) if at >= 0 and len(stored) == len(NO_CHECKSUM) else b""
        if found != stored:
            raise CorruptDataError(
                "the footer does not match its checksum",
                expected=stored.decode("ascii", "replace"),
                found=found.decode(),
            )
        return footer

    def _at_end(self, before_end: int, size: int) -> bytes:
        start = self._size_bytes - before_end
        for position, data in self._reads:
            if position <= start and start + size <= position + len(data):
                return data[start - position : start - position + size]
        return read_range(self._source, start, size)


def file_name(location: str) -> bytes:
    """The last part of a file's location, by which its footer names it."""
    return location.rsplit("/", 1)[-1].encode()


def _without_values(text: bytes) -> pq.FileMetaData:
    footer, _ = decode_struct(text)
    footer.pop(_FILE_KEY_VALUES, None)
    encoded = encode_struct(footer)
    tail = len(encoded).to_bytes(4, "little") + _MAGIC
    return pq.read_metadata(pa.BufferReader(_MAGIC + encoded + tail))


def place_of_value(footer: bytes | bytearray, key: str, value: bytes) -> int:
    """Where the value of a key of the footer's metadata begins; -1 if it is not there.

    The last place that looks like it: names and statistics of columns, which may hold anything,
    come before.
    """
    key_value = encode_struct({_KEY: (BINARY, key.encode()), _VALUE: (BINARY, value)})
    at = footer.rfind(key_value)
    return at if at < 0 else at + len(key_value) - len(value) - len(_STRUCT_END)


def footer_checksum(footer: bytes | bytearray, at: int) -> bytes:
    """The checksum of a footer whose own digits begin at `at`."""
    view = memoryview(footer)
    begin = zlib.crc32(NO_CHECKSUM, zlib.crc32(view[:at]))
    return b"%08x" % zlib.crc32(view[at + len(NO_CHECKSUM) :], begin)
