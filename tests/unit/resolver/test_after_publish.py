"""A publish that landed is told as one, whatever fails after it."""

import logging

import pytest

from lock import HeldLease
from maintenance import compact
from maintenance.tasks.options import CompactOptions
from resolver import resolve
from resolver.index_keeper import LocalIndexKeeper
from tableformat.errors import StoreUnavailableError
from tests.support.staged_tables import StagedTable, keys

REFUSED = "REST catalog did not answer"


@pytest.fixture
def staged(tmp_path):
    staged = StagedTable(tmp_path)
    staged.table.append(staged.rows((1, "eu", "old")))
    return staged


@pytest.fixture
def deaf(staged, monkeypatch):
    """Once a commit has landed, the catalog does not load any more."""
    catalog = staged.environment.catalog
    real, is_deaf = catalog.load_table, []

    def load(identifier):
        if is_deaf:
            raise StoreUnavailableError(REFUSED)
        return real(identifier)

    def swapped(name):
        staged.environment.runtime.fail_points.armed.pop(name)
        is_deaf.append(True)

    def arm():
        monkeypatch.setattr(catalog, "load_table", load)
        staged.environment.runtime.fail_points.armed["commit.after_swap"] = swapped

    arm.hears = is_deaf.clear
    return arm


def test_publish_whose_table_cannot_be_loaded_again_is_reported_and_the_failure_logged(
    staged, deaf, caplog
):
    staged.table.stage(upserts=staged.rows((1, "eu", "new")))
    deaf()
    with caplog.at_level(logging.WARNING):
        report = resolve(staged.table)
    deaf.hears()
    head = staged.table.refresh().state.head_id("main")
    assert (report.staged_snapshots, report.target_snapshot_id) == (1, head)
    [message] = caplog.messages
    assert f"published as {head}, but the table could not be loaded again: {REFUSED}" in message
    assert set(staged.published()) == {(1, "eu", "new")}


def test_compaction_whose_table_cannot_be_loaded_again_is_reported(staged, deaf, caplog):
    staged.table.append(staged.rows((2, "eu", "more")))
    deaf()
    with caplog.at_level(logging.WARNING):
        report = compact(staged.table, CompactOptions(rewrite_all=True))
    deaf.hears()
    assert report.changed
    assert staged.table.refresh().state.head("main").summary.operation.value == "replace"
    assert "compact is done, but the table could not be loaded again" in caplog.text


def test_changes_whose_table_cannot_be_loaded_again_are_staged(staged, deaf, caplog):
    deaf()
    with caplog.at_level(logging.WARNING):
        result = staged.table.write_changes(staged.rows((3, "eu", "new")))
    deaf.hears()
    assert f"staged as {result.commit.snapshot.snapshot_id}" in caplog.text
    resolve(staged.table)
    assert (3, "eu", "new") in set(staged.published())


@pytest.mark.parametrize("point", ["resolve.after_publish", "resolve.after_apply"])
def test_failure_after_the_publish_says_what_was_published(staged, point):
    staged.table.stage(deletes=keys(1))

    def fail(_name):
        raise StoreUnavailableError("the disk is full")

    staged.environment.runtime.fail_points.armed[point] = fail
    with pytest.raises(
        StoreUnavailableError, match=r"published as \d+, but then: the disk"
    ) as told:
        resolve(staged.table)
    head = staged.table.refresh().state.head_id("main")
    assert str(head) in str(told.value)
    assert not told.value.files_safe_to_delete


def test_vectors_that_cannot_be_deleted_fail_no_publish(staged, monkeypatch):
    """A cycle that lost a race has written some for nothing."""
    staged.table.append(staged.rows((2, "eu", "old")))
    staged.table.stage(deletes=keys(1, 2))
    points = staged.environment.runtime.fail_points

    def overtake(_name):
        points.armed.clear()
        staged.table.delete("id = 2")

    def refuse(_locations):
        raise StoreUnavailableError("the store does not delete")

    points.armed["resolve.after_dv_write"] = overtake
    monkeypatch.setattr(staged.environment.store, "delete", refuse)
    assert resolve(staged.table).attempts == 2
    assert not set(staged.published())


def test_lease_is_held_until_the_index_is_closed(staged, monkeypatch):
    """The next holder opens the same folder."""
    ended = []

    def note(owner, name):
        close = owner.close

        def noted(self):
            ended.append(name)
            close(self)

        monkeypatch.setattr(owner, "close", noted)

    note(LocalIndexKeeper, "index")
    note(HeldLease, "lease")
    staged.table.stage(staged.rows((1, "eu", "new")))
    resolve(staged.table)
    assert ended == ["index", "lease"]
