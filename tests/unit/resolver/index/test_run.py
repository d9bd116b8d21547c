"""Runs say what a dict says, alone and together; a changed byte of one is noticed."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from resolver.index import run as run_module
from resolver.index import run_format
from resolver.index import runs as runs_module
from resolver.index.base import IndexDamagedError
from resolver.index.entry import POSITION_BITS, KeyedRows, TouchedKeys, pack_rows, touched_keys
from resolver.index.run import Run
from resolver.index.run_format import TOMBSTONE, parse_footer
from resolver.index.runs import merged_count, merged_entries, rows_of_keys, write_change, write_run
from resolver.index.shard_map import HASHES, ShardRange
from resolver.keys import EncodedKeys

Model = dict[bytes, set[int]]
WHOLE = ShardRange(0, HASHES)

# Few bytes and lengths: keys that share beginnings, that are prefixes of others, that end in NULs.
key = st.one_of(
    st.binary(min_size=1, max_size=3).map(lambda each: bytes(b % 3 for b in each)),
    st.integers(0, 40).map(lambda n: n.to_bytes(8)),
    st.integers(0, 40).map(lambda n: b"\1" + b"k" * 12 + n.to_bytes(4)),
    # More bytes that differ than a word has, some side by side, and the first are often alike.
    st.tuples(st.integers(0, 2), st.integers(0, 3)).map(
        lambda pair: bytes([pair[0]]) * 5 + b"-" + bytes([pair[0]]) * 5 + bytes([pair[1]])
    ),
)
word = st.tuples(st.integers(0, 3), st.integers(0, 5)).map(
    lambda pair: int(pack_rows(pair[0], np.array([pair[1] ** 9]))[0])
)
pairs = st.lists(st.tuples(key, word), max_size=60)
change = st.tuples(st.lists(key, max_size=20), pairs)


def keys_of(keys: list[bytes]) -> EncodedKeys:
    return EncodedKeys(binary=pa.array(keys, type=pa.large_binary()))


def keyed(rows: list[tuple[bytes, int]]) -> KeyedRows:
    words = np.array([row for _, row in rows], dtype=np.uint64)
    return KeyedRows(keys=keys_of([each for each, _ in rows]), rows=words)


def touched(cleared: list[bytes], put: list[tuple[bytes, int]]) -> TouchedKeys:
    return touched_keys(keys_of(cleared), keyed([]), keyed(put))


def all_stay(rows: np.ndarray) -> np.ndarray:
    return np.ones(len(rows), dtype=np.bool_)


def found_in(runs: list[Run], keys: list[bytes]) -> list[set[int]]:
    ordinal, rows = rows_of_keys(runs, keys_of(keys))
    assert (np.diff(ordinal) >= 0).all()
    found: list[set[int]] = [set() for _ in keys]
    for number, row in zip(ordinal.tolist(), rows.tolist(), strict=True):
        assert row not in found[number]
        found[number].add(row)
    return found


def content_of(runs: list[Run]) -> Model:
    content: Model = {}
    for keys, rows in merged_entries(runs, keep_gone=False):
        for each, row in zip(EncodedKeys(fixed=keys).to_list(), rows.tolist(), strict=True):
            assert row not in content.setdefault(each, set())
            content[each].add(row)
    return content


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of eight entries, sections of a few blocks, ranges of a few sections."""
    monkeypatch.setattr(run_format, "BLOCK_ENTRIES_MAX", 8)
    monkeypatch.setattr(run_module, "SECTION_ENTRIES", 20)
    monkeypatch.setattr(runs_module, "MERGE_ENTRIES", 16)
    monkeypatch.setattr(runs_module, "LOOKUP_CHUNK_KEYS", 7)


@pytest.mark.slow
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(first=pairs, changes=st.lists(change, max_size=5), ratio=st.sampled_from([0, 1, 2]))
def test_runs_say_what_a_dict_says(
    first: list[tuple[bytes, int]],
    changes: list[tuple[list[bytes], list[tuple[bytes, int]]]],
    ratio: int,
    tiny: None,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(runs_module, "MERGED_SIZE_RATIO", ratio)
    folder = tmp_path_factory.mktemp("runs")
    model: Model = {}
    for each, row in first:
        model.setdefault(each, set()).add(row)
    rows = [(each, row) for each in model for row in model[each]]
    runs = []
    if write_run(folder / "0.run", "0", iter([keyed(rows)])):
        runs = [Run(folder / "0.run", "0")]
    for number, (cleared, put) in enumerate(changes, start=1):
        path = folder / f"{number}.run"
        written = write_change(folder, str(number), runs, touched(cleared, put), all_stay, WHOLE)
        ((_, name),) = written.parts
        assert path.exists() == (name is not None)
        runs = [*([Run(path, name)] if name else []), *runs[written.merged :]]
        for each in cleared:
            model.pop(each, None)
        for each, row in put:
            model.setdefault(each, set()).add(row)
        assert content_of(runs) == model
    asked = [*model, *(each for each, _ in first), b"\0", b"\2\2\2\2", bytes(8), b"\xff" * 17]
    assert found_in(runs, asked) == [model.get(each, set()) for each in asked]
    assert len({path.stem for path in folder.iterdir()}) == len(list(folder.iterdir()))


def test_newer_runs_hide_older_ones_before_and_after_some_are_merged(tmp_path: Path) -> None:
    names = [bytes([number]) for number in range(100)]
    write_run(tmp_path / "0.run", "0", iter([keyed([(name, 1) for name in names])]))
    runs = [Run(tmp_path / "0.run", "0")]
    changes = [
        touched(names[:5], [(name, 2) for name in names[5:10]]),
        touched([names[5], *names[90:95]], [(names[6], 3), *((name, 4) for name in names[:2])]),
    ]
    expected = [{1}] * 100
    expected[:10] = [set()] * 5 + [{1, 2}] * 5
    for number, change in enumerate(changes, start=1):
        path = tmp_path / f"{number}.run"
        merged = write_change(tmp_path, str(number), runs, change, all_stay, WHOLE).merged
        assert merged == number - 1, "all but the first"
        runs = [Run(path, str(number)), *runs[merged:]]
        if number == 2:
            expected[:7] = [{4}, {4}, set(), set(), set(), set(), {1, 2, 3}]
            expected[90:95] = [set()] * 5
        assert found_in(runs, names) == expected
        assert content_of(runs) == {
            name: rows for name, rows in zip(names, expected, strict=True) if rows
        }


@pytest.mark.parametrize("width", [1, 3, 8, 9, 16])
@pytest.mark.parametrize("seed", range(3))
def test_many_random_keys_are_found_and_others_are_not(
    width: int, seed: int, tmp_path: Path
) -> None:
    generator = np.random.default_rng(seed)
    count = 20_000 if width > 1 else 200
    words = generator.integers(0, 256, (count, width), dtype=np.uint8)
    words[:, : width // 2] %= 4  # dense on the left
    rows = pack_rows(generator.integers(0, 9, count), generator.permutation(count).astype(np.int64))
    keys = EncodedKeys(fixed=words)
    write_run(tmp_path / "a.run", "a", iter([KeyedRows(keys=keys, rows=rows)]))
    model: Model = {}
    for each, row in zip(keys.to_list(), rows.tolist(), strict=True):
        model.setdefault(each, set()).add(row)
    asked = EncodedKeys(fixed=generator.integers(0, 5, (500, width), dtype=np.uint8)).to_list()
    asked += list(model)[::7]
    assert found_in([Run(tmp_path / "a.run", "a")], asked) == [
        model.get(each, set()) for each in asked
    ]


def test_run_takes_no_more_bytes_than_its_keys_and_rows_need(tmp_path: Path) -> None:
    """A dense range of 2**20 integers in eight files: three bytes of key, three of row."""
    count = 1 << 20
    keys = np.arange(count, dtype=">u8").view(np.uint8).reshape(-1, 8)
    positions = np.random.default_rng(1).permutation(count)
    rows = pack_rows(positions % 8, positions // 8)
    write_run(tmp_path / "a.run", "a", iter([KeyedRows(keys=EncodedKeys(fixed=keys), rows=rows)]))
    assert (tmp_path / "a.run").stat().st_size < 6.2 * count


@pytest.fixture(params=[POSITION_BITS, 36], ids=["now", "as before"])
def small_run(
    request: pytest.FixtureRequest, tiny: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """As it is written now, and with as many bits of position as earlier releases wrote."""
    monkeypatch.setattr(runs_module, "MERGED_SIZE_RATIO", 0)
    monkeypatch.setattr(run_format, "POSITION_BITS", request.param)
    monkeypatch.setattr(run_format, "_POSITION_MASK", np.uint64((1 << request.param) - 1))
    rows = [(b"\1" + bytes([n, 0]), n << 36 | n) for n in range(100)]
    rows += [(b"\0", 5), (b"\0", 6), (b"x" * 20, 7)]
    write_run(tmp_path / "0.run", "0", iter([keyed([(b"x" * 20, 8)])]))
    older = [Run(tmp_path / "0.run", "0")]
    change = touched([b"gone", bytes(3)], rows)
    write_change(tmp_path, "a", older, change, all_stay, WHOLE)
    monkeypatch.setattr(run_format, "POSITION_BITS", POSITION_BITS)
    monkeypatch.setattr(run_format, "_POSITION_MASK", np.uint64((1 << POSITION_BITS) - 1))
    return tmp_path / "a.run"


def everything(path: Path) -> list[tuple[list[bytes], list[int]]]:
    run = Run(path, "a")
    found = []
    for section in run.sections:
        keys, rows = run.between(section, b"", None)
        found.append((EncodedKeys(fixed=keys).to_list(), rows.tolist()))
        run.find(keys)
    return found


def test_every_changed_byte_is_noticed(small_run: Path) -> None:
    intact = small_run.read_bytes()
    assert any(int(TOMBSTONE) in rows for _, rows in everything(small_run))
    for at in range(len(intact)):
        for flip in (1, 0x80):
            data = bytearray(intact)
            data[at] ^= flip
            small_run.write_bytes(data)
            with pytest.raises(IndexDamagedError):
                everything(small_run)


def test_every_changed_byte_is_noticed_or_harmless_to_a_look_up(small_run: Path) -> None:
    """Which reads the blocks of one key, and not those beside them."""
    intact = small_run.read_bytes()
    asked = [[b"gone"], [b"\1\7\0"], [b"\1\x60\0", b"\0"], [b"x" * 20, b"\1\x30\0"]]
    expected = [found_in([Run(small_run, "a")], keys) for keys in asked]
    harmless = 0
    for at in range(len(intact)):
        small_run.write_bytes(intact[:at] + bytes([intact[at] ^ 0x10]) + intact[at + 1 :])
        for keys, rows in zip(asked, expected, strict=True):
            with suppress(IndexDamagedError):
                assert found_in([Run(small_run, "a")], keys) == rows
                harmless += 1
    assert 0 < harmless < len(intact) * len(asked) / 2


def test_every_cut_is_noticed(small_run: Path) -> None:
    intact = small_run.read_bytes()
    for length in range(len(intact)):
        small_run.write_bytes(intact[:length])
        with pytest.raises(IndexDamagedError):
            everything(small_run)
    small_run.write_bytes(intact + b"\0")
    with pytest.raises(IndexDamagedError):
        everything(small_run)
    with pytest.raises(IndexDamagedError, match="missing"):
        Run(small_run.with_name("b"), "b")


def test_run_under_another_name_is_refused(small_run: Path) -> None:
    with pytest.raises(IndexDamagedError, match="another name"):
        Run(small_run, "b")


def test_run_cut_while_it_is_open_is_noticed(small_run: Path) -> None:
    run = Run(small_run, "a")
    small_run.write_bytes(b"")
    with pytest.raises(IndexDamagedError, match="ended early"):
        run.between(run.sections[0], b"", None)


@pytest.mark.parametrize("footer", [b"", b"\n", b"{}\n", b"[" * 5000, b'{"format": 3}\n'])
def test_footer_that_nobody_wrote_is_refused(footer: bytes) -> None:
    with pytest.raises(IndexDamagedError):
        parse_footer(footer, "a", 0, Path("a.run"))


def test_failing_writer_leaves_no_file(tmp_path: Path) -> None:
    def failing():
        yield keyed([(b"a", 1)])
        raise ValueError("the source failed")

    with pytest.raises(ValueError, match="source"):
        write_run(tmp_path / "a.run", "a", failing())
    assert not list(tmp_path.iterdir())


def test_runs_stay_few_and_rows_are_written_rarely() -> None:
    sizes, written, most = [1_000_000], 0, 0
    for _ in range(2_000):
        merged = merged_count(1_000, sizes)
        sizes = [1_000 + sum(sizes[:merged]), *sizes[merged:]]
        written += sizes[0]
        most = max(most, len(sizes))
    assert most <= 8
    assert written <= 12 * 2_000 * 1_000


@pytest.mark.parametrize("row", range(1, 12))
def test_leading_bytes_are_compared_as_they_stand(row: int) -> None:
    matrix = np.random.default_rng(row).integers(0, 256, (20, row), dtype=np.uint8)
    for width in range(row + 1):
        words = run_format.comparable(matrix, width).tolist()
        leading = [each[:width].tobytes() for each in matrix]
        if width <= 8:
            assert words == [int.from_bytes(each) for each in leading]
        else:
            assert [each.ljust(width, b"\0") for each in words] == leading


def test_sections_of_a_large_run_are_searched_as_one(tiny: None, tmp_path: Path) -> None:
    """They end with a block that is not full, and are read together with what follows."""
    rows = [(number.to_bytes(3), number) for number in range(0, 600, 2)]
    write_run(tmp_path / "a.run", "a", iter([keyed(rows)]))
    run = Run(tmp_path / "a.run", "a")
    assert sum(len(section.pieces) for section in run.sections) == 15
    assert len(run.sections) < 10, "what all of a section have in common is not the same in all"
    asked = [number.to_bytes(3) for number in range(620)]
    assert found_in([run], asked) == [{n} if n < 600 and not n % 2 else set() for n in range(620)]
    assert content_of([run]) == {key: {row} for key, row in rows}
