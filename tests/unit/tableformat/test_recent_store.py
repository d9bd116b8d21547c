"""A store that has in memory what the process wrote: the same bytes, bounded, gone when deleted."""

from __future__ import annotations

import pickle
import random
from dataclasses import replace

import pytest

import tableformat as tf
from benchmarks.support.counting_store import CountingStore
from resolver import resolve_group
from tableformat.errors import AlreadyExistsError, CorruptDataError, NotFoundError
from tableformat.recent_store import RecentStore
from tableformat.store.base import WholeOutput
from tests.support.bank import Bank, balances_of


@pytest.fixture
def store(tmp_path):
    catalog = tf.open_catalog("local", warehouse=str(tmp_path))
    counted = CountingStore(catalog.environment.store)
    recent = RecentStore(counted, bytes_max=100, object_bytes_max=60)
    return recent, counted, str(tmp_path)


def write(store, location, *parts):
    with store.open_output(location) as sink:
        for part in parts:
            sink.write(part)
        assert sink.tell() == sum(map(len, parts))


def test_what_was_written_is_read_from_memory_and_is_in_the_store(store):
    recent, counted, folder = store
    recent.put(f"{folder}/a", b"0123456789")
    write(recent, f"{folder}/b", b"abc", memoryview(b"def"))
    assert recent.get(f"{folder}/a", offset=2, length=3) == b"234"
    assert recent.get(f"{folder}/b") == recent.open_input(f"{folder}/b").read() == b"abcdef"
    assert recent.size_bytes(f"{folder}/b") == 6
    assert counted.counts["get"] == counted.counts["open"] == 0
    assert counted.get(f"{folder}/a") == b"0123456789"
    assert counted.get(f"{folder}/b") == b"abcdef"
    with pytest.raises(CorruptDataError, match="shorter"):
        recent.get(f"{folder}/a", offset=8, length=3)
    with pytest.raises(AlreadyExistsError):
        recent.put(f"{folder}/a", b"other")
    assert recent.get(f"{folder}/a") == b"0123456789"


def test_large_old_and_deleted_objects_are_not_kept(store):
    recent, counted, folder = store
    write(recent, f"{folder}/large", b"x" * 50, b"x" * 20)
    recent.put(f"{folder}/old", b"o" * 60)
    recent.put(f"{folder}/new", b"n" * 60)
    for name, length in (("large", 70), ("old", 60), ("new", 60)):
        assert len(recent.get(f"{folder}/{name}")) == length
    assert counted.counts["get"] == 2
    recent.delete([f"{folder}/new"])
    with pytest.raises(NotFoundError):
        recent.get(f"{folder}/new")


def test_what_did_not_appear_is_not_kept(store):
    recent, _, folder = store
    sink = recent.open_output(f"{folder}/a")
    sink.write(b"abc")
    sink.abort()
    with pytest.raises(NotFoundError):
        recent.get(f"{folder}/a")
    recent.put(f"{folder}/b", b"first")
    late = recent.open_output(f"{folder}/b")
    assert isinstance(late, WholeOutput)
    late.write(b"second")
    with pytest.raises(AlreadyExistsError):
        late.close()
    assert recent.get(f"{folder}/b") == b"first"


def test_executors_get_the_store_behind_it(tmp_path):
    inner = tf.open_catalog("local", warehouse=str(tmp_path)).environment.store
    assert type(pickle.loads(pickle.dumps(RecentStore(inner)))) is type(inner)


def test_publish_of_what_this_process_staged_reads_no_file(tmp_path):
    opened = tf.open_catalog("local", warehouse=str(tmp_path)).environment
    counted = CountingStore(opened.store)
    catalog = tf.TableCatalog(replace(opened, store=RecentStore(counted)))
    bank = Bank(("bank.a", "bank.b"))
    tables = bank.create(catalog)
    for number in range(2):
        bank.stage(tables, bank.transfer(random.Random(number)))
        counted.counts.clear()
        assert len(resolve_group([catalog.load_table(name) for name in bank.names]).tables) == 2
        assert counted.counts["open"] == counted.counts["get"] == 0
    assert {name: balances_of(table.refresh()) for name, table in tables.items()} == bank.states[2]
