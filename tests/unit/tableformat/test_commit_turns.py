"""Commits of several tables have the tables to themselves; those of single ones go together."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

import tableformat as tf
from tableformat.commit.changeset import Changeset, CommitKind
from tableformat.commit.engine import TableChangeset, commit_group
from tableformat.commit_turns import CommitTurns


def test_group_is_alone_and_single_tables_are_together() -> None:
    turns = CommitTurns()
    inside = threading.Barrier(3, timeout=30)
    running: set[str] = set()
    wrong: list[set[str]] = []

    def single(name: str, group_comes: threading.Event) -> None:
        with turns.take(is_group=False):
            running.add(name)
            inside.wait()
            group_comes.wait(30)
            running.discard(name)

    def group(group_comes: threading.Event) -> None:
        group_comes.set()
        with turns.take(is_group=True):
            wrong.extend([set(running)] if running else [])

    with ThreadPoolExecutor(6) as pool:
        for _ in range(50):
            group_comes = threading.Event()
            futures = [pool.submit(single, name, group_comes) for name in ("a", "b")]
            inside.wait()
            futures.append(pool.submit(group, group_comes))
            for future in futures:
                future.result(30)
    assert not wrong


def test_group_that_waits_goes_before_those_that_come_later() -> None:
    turns = CommitTurns()
    order: list[str] = []

    def take(name: str, *, is_group: bool) -> None:
        with turns.take(is_group=is_group):
            order.append(name)

    with turns.take(is_group=False):
        group = threading.Thread(target=take, args=("group",), kwargs={"is_group": True})
        group.start()
        while not turns._groups:
            pass
        single = threading.Thread(target=take, args=("single",), kwargs={"is_group": False})
        single.start()
    group.join(30)
    single.join(30)
    assert order == ["group", "single"]


def test_interrupted_wait_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = CommitTurns()

    def interrupt(_ready: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(turns._changed, "wait_for", interrupt)
        with pytest.raises(KeyboardInterrupt), turns.take(is_group=True):
            pass
    with turns.take(is_group=False):
        pass


def test_groups_beside_commits_of_the_same_process_lose_no_race(tmp_path: object) -> None:
    catalog = tf.open_catalog("local", warehouse=str(tmp_path))
    catalog.create_namespace("t")
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False)])
    tables = [catalog.create_table(f"t.t{n}", schema, primary_key=["id"]) for n in range(3)]
    stop = threading.Event()

    def stage() -> int:
        mine = catalog.load_table("t.t1")
        count = 0
        while not stop.is_set():
            mine.stage(upserts=pa.table({"id": pa.array([count], pa.int64())}))
            count += 1
        return count

    planned = [each.state for each in tables]
    with ThreadPoolExecutor(1) as pool:
        staging = pool.submit(stage)
        try:
            for _ in range(20):
                results = commit_group(
                    tables[0].environment,
                    [
                        TableChangeset(
                            identifier=each.identifier,
                            changeset=Changeset(kind=CommitKind.APPEND, branch="main"),
                            state=state,
                        )
                        for each, state in zip(tables, planned, strict=True)
                    ],
                )
                assert {each.attempts for each in results} == {1}
        finally:
            stop.set()
        assert staging.result(30)
