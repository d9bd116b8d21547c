"""How staged snapshots are read: of a bucket side by side, as each request takes its time there."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from resolver import staged_snapshots
from resolver.staged_snapshots import load_staged
from tableformat.codec.avro.manifest_store import clear_manifest_cache
from tableformat.commit.branch_history import branch_history
from tableformat.runtime import Runtime
from tableformat.store import locations
from tests.support.staged_tables import StagedTable


@pytest.fixture
def staged(tmp_path):
    table = StagedTable(tmp_path)
    table.table.append(table.rows((1, "eu", "a")))
    for key in range(4):
        table.table.stage(table.rows((key, "eu", "b")))
    return table


def load(staged):
    state = staged.table.state
    waiting = list(branch_history(state, "staging"))[:4][::-1]
    environment = replace(staged.table.environment, runtime=Runtime())
    clear_manifest_cache(environment.store)
    return load_staged(environment, state, waiting)


def test_requests_to_a_bucket_are_made_side_by_side_and_answers_keep_their_order(
    staged, monkeypatch
):
    in_turn = load(staged)
    store = type(staged.table.environment.store)
    met = threading.Barrier(4)
    get = store.get

    def get_together(self, *args, **options):
        met.wait(timeout=20)  # lists, then manifests: nobody goes on before all four ask
        return get(self, *args, **options)

    monkeypatch.setattr(store, "get", get_together)
    for module in (staged_snapshots, locations):
        monkeypatch.setattr(module, "is_in_bucket", lambda _: True)
    assert load(staged) == in_turn


def test_disk_is_read_in_turn(staged, monkeypatch):
    store, here = type(staged.table.environment.store), threading.get_ident()
    get, readers = store.get, set()

    def noted(self, *args, **options):
        readers.add(threading.get_ident())
        return get(self, *args, **options)

    monkeypatch.setattr(store, "get", noted)
    load(staged)
    assert readers == {here}
