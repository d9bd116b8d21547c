"""What an index wrote about itself is refused unless it has the types it was written with."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from pyroaring import BitMap64

from resolver.index.base import IndexDamagedError
from resolver.index.build_state import BuildState
from resolver.index.dictionary import decode_file
from resolver.index.entry import POSITION_BITS
from resolver.index.folder import current_generation
from resolver.index.header import FilesHeader, ShardHeader
from resolver.index.shard import Shard
from resolver.index.shared_versions import IndexVersion, ShardVersion, StoredFile
from resolver.index.stored_fields import check_fields
from tableformat.runtime import Runtime
from tests.support.index_builder import BINDING

DEEP = b"[" * 5000
PATH = Path("index")


def files_header(**changes: Any) -> dict[str, Any]:
    header = FilesHeader(
        generation="g",
        state="b",
        runs=(("a", "b"), ()),
        starts=(0, 7),
        next_file_id=1,
        binding=BINDING,
    )
    return {**json.loads(json.dumps(header.to_json())), **changes}


def version(**changes: Any) -> bytes:
    file = StoredFile("000004.sst", "0a.sst", 10, "ff")
    run = StoredFile("0b", "0b.run", 10, "ff")
    shard = ShardVersion("b", "MANIFEST-1", b"m", (file,))
    whole = IndexVersion(
        number=1,
        generation="g",
        binding=BINDING,
        next_file_id=1,
        gone_files=BitMap64().serialize(),
        dictionary=shard,
        shards=((run,), ()),
        starts=(7, 0),
    )
    body = json.loads(whole.encode().partition(b"\n")[2])
    text = json.dumps({**body, **changes}).encode()
    return hashlib.sha256(text).hexdigest().encode() + b"\n" + text


def shard_with(**changes: Any) -> list[dict[str, Any]]:
    file = {"name": "0b", "object_name": "0b.run", "size_bytes": 1, "sha256": "ff"}
    return [file | changes]


def test_header_that_was_written_is_read() -> None:
    assert FilesHeader.parse(files_header(), PATH).binding == BINDING
    assert ShardHeader.parse(ShardHeader("g", 0, 1, "b").to_json(), PATH).shards == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"next_file_id": "1"},
        {"next_file_id": True},
        {"next_file_id": 1.0},
        {"state": None},
        {"runs": [[1]]},
        {"runs": 7},
        {"runs": [["../x"]]},
        {"starts": [0, "7"]},
        {"starts": [0]},
        {"starts": [0, 0]},
        {"starts": [1, 7]},
        {"starts": [0, -7]},
        {"starts": [0, 1 << 32]},
        {"shard_rows": "7"},
        {"binding": {**asdict(BINDING), "branch": 5}},
        {"binding": {**asdict(BINDING), "snapshot_id": "5"}},
    ],
)
def test_header_with_a_value_of_another_type_is_damage(changes: dict[str, Any]) -> None:
    with pytest.raises(IndexDamagedError):
        FilesHeader.parse(files_header(**changes), PATH)


def test_header_of_a_shard_with_a_value_of_another_type_is_damage() -> None:
    with pytest.raises(IndexDamagedError):
        ShardHeader.parse({**ShardHeader("g", 0, 1, "b").to_json(), "state": 7}, PATH)


@pytest.mark.parametrize(
    "changes",
    [
        {"number": "1"},
        {"generation": 5},
        {"starts": [0, "7"]},
        {"starts": [0]},
        {"starts": [1, 7]},
        {"starts": [0, 1 << 32]},
        {"shards": [shard_with(size_bytes="1"), []]},
        {"shards": [shard_with(sha256=None), []]},
        {"shards": [shard_with(name="../../x.sst"), []]},
        {"shards": [shard_with(object_name="/x"), []]},
        {"shards": [shard_with(object_name=".."), []]},
        {"shards": [shard_with(name=""), []]},
    ],
)
def test_version_with_a_wrong_value_or_a_name_outside_its_folder_is_damage(
    changes: dict[str, Any],
) -> None:
    assert IndexVersion.decode(version(), "v").number == 1
    assert IndexVersion.decode(version(shards=[shard_with(), []]), "v").number == 1
    with pytest.raises(IndexDamagedError):
        IndexVersion.decode(version(**changes), "v")


@pytest.mark.parametrize(
    "data", [b"[1,0,[]]", b'["a","0",[]]', b'["a",0,[[1]]]', b'["a",0,[{"decimal":[1]}]]', DEEP]
)
def test_file_of_the_dictionary_with_a_wrong_value_is_damage(data: bytes) -> None:
    assert decode_file(b'["a",0,[{"decimal":"1.5"}]]').file_path == "a"
    with pytest.raises(IndexDamagedError):
        decode_file(data)


def test_json_that_is_nested_deeply_is_damage(tmp_path: Path) -> None:
    class Deep:
        def get(self, _key: bytes) -> bytes:
            return DEEP

    (tmp_path / "CURRENT").write_bytes(DEEP)
    signed = hashlib.sha256(DEEP).hexdigest().encode() + b"\n" + DEEP
    for read in (
        lambda: Shard(PATH, Deep()).header(),
        lambda: current_generation(tmp_path),
        lambda: IndexVersion.decode(signed, "v"),
    ):
        with pytest.raises(IndexDamagedError):
            read()


@pytest.mark.parametrize("shards", [b"1e999", b"0", b'"x"'])
def test_current_with_an_impossible_number_of_shards_is_damage(
    tmp_path: Path, shards: bytes
) -> None:
    text = b'{"format":1,"generation":"gen-%s","shards":%s}' % (b"0" * 32, shards)
    (tmp_path / "CURRENT").write_bytes(text)
    with pytest.raises(IndexDamagedError):
        current_generation(tmp_path)


@pytest.mark.parametrize("changes", [{"shards": 0}, {"shards": "3"}, {"next_file_id": None}])
def test_plan_of_a_build_with_a_wrong_value_begins_a_new_build(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    scratch = tmp_path / "build"
    (scratch / "index" / "runs").mkdir(parents=True)
    plan = {"binding": asdict(BINDING), "generation": "old", "shards": 3, "next_file_id": 1}
    plan |= {"shard_rows": None, "position_bits": POSITION_BITS}
    (scratch / "PLAN").write_text(json.dumps({**plan, **changes}))
    state = BuildState.load_or_start(tmp_path, BINDING, ["a"], shard_count=2, runtime=Runtime())
    assert (state.generation_id == "old", state.shard_count) == (False, 2)


def test_log_of_a_build_ends_where_it_is_wrong(tmp_path: Path) -> None:
    scratch = tmp_path / "build"
    (scratch / "index" / "runs").mkdir(parents=True)
    plan = {"binding": asdict(BINDING), "generation": "old", "shards": 3, "next_file_id": 1}
    plan |= {"shard_rows": None, "position_bits": POSITION_BITS}
    (scratch / "PLAN").write_text(json.dumps(plan))
    (scratch / "LOG").write_text('["a", 0, 5]\n["b", "1", 5]\n["c", 2, 5]\n')
    state = BuildState.load_or_start(
        tmp_path, BINDING, ["a", "b", "c"], shard_count=2, runtime=Runtime()
    )
    assert state.generation_id == "old"
    assert set(state.spilled) == {"a"}


def test_fields_are_compared_with_their_types() -> None:
    check_fields(BINDING)
    with pytest.raises(TypeError, match="sequence_number"):
        check_fields(BINDING.at(snapshot_id=1, sequence_number="9"))  # type: ignore[arg-type]
