"""What an index keeps on disk: headers, CURRENT, versions, builds, files and entries."""

from __future__ import annotations

import hashlib
import random
import tempfile
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np

from resolver.index.base import IndexBinding, IndexDamagedError
from resolver.index.build_state import BuildState
from resolver.index.dictionary import decode_file
from resolver.index.entry import file_id_of, position_of
from resolver.index.folder import current_generation
from resolver.index.format_1 import decode_values
from resolver.index.header import FilesHeader, ShardHeader
from resolver.index.run_format import parse_footer
from resolver.index.shard import Shard
from resolver.index.shared_versions import IndexVersion
from tableformat.runtime import Runtime
from tests.fuzz.mutate_bytes import BYTE_MUTATORS
from tests.fuzz.mutate_text import JSON_MUTATORS, mutate_json
from tests.fuzz.target import Accepted, Target

_DAMAGE = (IndexDamagedError,)
BINDING = IndexBinding(
    table_uuid="6d2b6a5e-0c4f-4e3c-9a52-5f2f1d6c9a11",
    branch="main",
    key_fingerprint="1:long",
    snapshot_id=7001,
    sequence_number=9,
)


class _OneKey:
    """A database with one value."""

    def __init__(self, value: bytes) -> None:
        self._value = value

    def get(self, _key: bytes) -> bytes:
        return self._value


def _parse_header(data: bytes) -> None:
    header = Shard(Path("shard-0000"), _OneKey(data)).header()
    if "binding" in header:
        files = FilesHeader.parse(header, Path("files"))
        _check_binding(files.binding)
        _check_kinds(files.next_file_id, int)
        _check_kinds((files.generation, files.state), str)
        for shard in files.runs or ():
            _check_kinds(shard, str)
    else:
        shard = ShardHeader.parse(header, Path("shard-0000"))
        _check_kinds((shard.generation, shard.state), str)
        _check_kinds((shard.shard, shard.shards), int)


def _check_binding(binding: IndexBinding) -> None:
    _check_kinds((binding.table_uuid, binding.branch, binding.key_fingerprint), str)
    _check_kinds((binding.sequence_number, binding.encoding_version, binding.snapshot_id or 0), int)


def _check_kinds(values: object, kind: type) -> None:
    for value in values if isinstance(values, tuple) else (values,):
        if not isinstance(value, kind) or isinstance(value, bool):
            raise Accepted(f"{value!r} where a {kind.__name__} belongs")


@lru_cache
def _folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="fuzz-index-"))


def _parse_current(data: bytes) -> None:
    folder = _folder()
    (folder / "CURRENT").write_bytes(data)
    generation = current_generation(folder)
    if generation is None or generation.path.parent != folder or generation.shard_count < 1:
        raise Accepted(f"CURRENT leads to {generation}")


def _parse_version(data: bytes) -> None:
    version = IndexVersion.decode(data, "memory://index/versions/7.json")
    _check_binding(version.binding)
    _check_kinds((version.number, version.next_file_id), int)
    names = []
    for shard in (version.dictionary, *version.databases):
        _check_kinds((shard.state, shard.manifest_name), str)
        names.append(shard.manifest_name)
    for file in version.files:
        _check_kinds((file.name, file.object_name, file.sha256), str)
        _check_kinds(file.size_bytes, int)
        names += [file.name, file.object_name]
    if any("/" in name or name in ("", ".", "..") for name in names):
        raise Accepted(f"a file outside its folder: {names}")
    if not version.databases and IndexVersion.decode(version.encode(), "again") != version:
        raise Accepted("written again it is another version")


def _sign(text: bytes) -> bytes:
    return hashlib.sha256(text).hexdigest().encode() + b"\n" + text


def _change_signed(rng: random.Random, data: bytes, corpus: Sequence[bytes]) -> bytes:
    """Another text with the checksum it must have."""
    text = data.partition(b"\n")[2]
    others = [each.partition(b"\n")[2] for each in corpus]
    return _sign(rng.choice((mutate_json(), *JSON_MUTATORS))(rng, text, others))


def _parse_build(data: bytes) -> None:
    """PLAN, a line break, LOG."""
    folder = _folder()
    scratch = folder / "build"
    (scratch / "index" / "runs").mkdir(parents=True, exist_ok=True)
    plan, _, log = data.partition(b"\n")
    (scratch / "PLAN").write_bytes(plan)
    (scratch / "LOG").write_bytes(log)
    state = BuildState.load_or_start(folder, BINDING, ["a", "b"], shard_count=3, runtime=Runtime())
    _check_kinds((state.shard_count, state.next_file_id), int)
    for each in state.spilled.values():
        _check_kinds((each.file_id, each.rows), int)


def _parse_file(data: bytes) -> None:
    file = decode_file(data)
    _check_kinds((file.file_path,), str)
    _check_kinds((file.spec_id,), int)
    hash(file.partition)


def _parse_run(data: bytes) -> None:
    for section in parse_footer(data, "a", 1 << 20, Path("a.run")):
        blocks = len(section.checksums)
        if len(section.order) != blocks or len(section.first_key(blocks - 1)) != section.width:
            raise Accepted("a directory that does not fit")
        entries = np.zeros((3, len(section.columns)), dtype=np.uint8)
        if section.keys_of(entries).shape != (3, section.width):
            raise Accepted("keys of another length")
        if (file_id_of(section.rows_of(entries)) < 0).any():
            raise Accepted("a negative file id")


def _parse_entries(data: bytes) -> None:
    """Values of a few keys, in format 1: the first bytes say how long each is."""
    lengths, rest = data[:4], data[4:]
    values, at = [], 0
    for length in lengths:
        values.append(rest[at : at + length])
        at += length
    values.append(rest[at:])
    key, rows = decode_values(values)
    if len(key) != len(rows) or sum(map(len, values)) != 8 * len(rows):
        raise Accepted("rows that are not in the values")
    if (file_id_of(rows) < 0).any() or (position_of(rows) < 0).any():
        raise Accepted("a negative file id or position")


_TEXTS = (*JSON_MUTATORS, *JSON_MUTATORS, *BYTE_MUTATORS)


def _target(name: str, parse: Callable[[bytes], None], **more: object) -> Target:
    options = {"mutators": _TEXTS, "errors": _DAMAGE, "inputs": 15_000} | more
    return Target(name=name, parse=parse, **options)  # type: ignore[arg-type]


TARGETS = (
    _target("index_header", _parse_header, inputs=15_000),
    _target("index_current", _parse_current, inputs=5_000),
    _target("index_version", _parse_version, mutators=(*_TEXTS, *(_change_signed,) * 20)),
    _target("index_build", _parse_build, errors=(), inputs=1_000),
    _target("index_file", _parse_file, inputs=15_000),
    _target("index_run", _parse_run, mutators=(*_TEXTS, *BYTE_MUTATORS)),
    _target("index_entries", _parse_entries, mutators=BYTE_MUTATORS, inputs=15_000),
)
