from __future__ import annotations

from dataclasses import replace

import pytest
from pyiceberg.expressions import AlwaysTrue

from tableformat.errors import CorruptDataError, InvalidInputError, NotFoundError
from tableformat.scan import plan as plan_module
from tableformat.scan.plan import plan_scan
from tableformat.scan.reader import live_row_count, read_scan
from tableformat.spec.data_file import FileContent
from tableformat.spec.manifest_file import ManifestContent
from tests.support.random_tables import KEYED, SPECS, random_table, rows
from tests.support.scan_tables import HandMadeTable


def planned(table: HandMadeTable, row_filter: str | None = None, **state):
    return plan_scan(table.environment(), table.state(**state), row_filter=row_filter)


@pytest.fixture
def loaded(monkeypatch) -> list[str]:
    """The manifests that were opened."""
    paths: list[str] = []
    load = plan_module.load_manifest

    def spy(store, manifest):
        paths.append(manifest.manifest_path)
        return load(store, manifest)

    monkeypatch.setattr(plan_module, "load_manifest", spy)
    return paths


def partitioned() -> HandMadeTable:
    table = HandMadeTable(KEYED, list(SPECS))
    for number, region in enumerate("abc"):
        table.commit()
        table.add(rows((number, region, 1), (number + 10, region, 2)), 1)
    return table


def test_filter_on_the_partition_leaves_other_files_out_and_nothing_to_check() -> None:
    plan = planned(partitioned(), "region = 'b'")
    assert [task.entry.data_file.partition for task in plan.tasks] == [("b",)]
    assert plan.tasks[0].residual == AlwaysTrue()


def test_manifest_that_cannot_match_is_not_opened(loaded) -> None:
    planned(partitioned(), "region = 'b'", manifests_per_kind=3)
    assert len(loaded) == 1


def test_delete_manifest_older_than_every_selected_file_is_not_opened(loaded, monkeypatch) -> None:
    table = HandMadeTable(KEYED)
    table.commit()
    table.add(rows((1, "a", 1)))
    table.commit()
    table.delete_keys(rows((1, "a", 1)), [1])
    table.commit()
    table.add(rows((100, "a", 1)))
    state = table.state()
    listed = plan_module.load_manifest_list

    def as_committed(store, snapshot):
        """The delete manifest with the sequence number of the commit that wrote it."""
        return [
            replace(each, sequence_number=2) if each.content == ManifestContent.DELETES else each
            for each in listed(store, snapshot)
        ]

    monkeypatch.setattr(plan_module, "load_manifest_list", as_committed)
    everything = plan_scan(table.environment(), state)
    assert [len(task.equality_deletes) for task in everything.tasks] == [1, 0]
    assert len(loaded) == 2
    loaded.clear()
    assert len(plan_scan(table.environment(), state, row_filter="id > 50").tasks) == 1
    assert len(loaded) == 1


def test_filter_never_leaves_a_delete_out() -> None:
    """R14: the delete is on `id`, the filter on `amount`; statistics of both exclude each other."""
    table = HandMadeTable(KEYED)
    table.commit()
    table.add(rows((1, "a", 50), (2, "a", 60)))
    table.commit()
    table.delete_keys(rows((1, "a", 1)), [1])
    assert len(planned(table, "amount >= 50").tasks[0].equality_deletes) == 1


def test_manifest_of_the_wrong_kind_is_refused() -> None:
    table = HandMadeTable(KEYED)
    table.commit()
    [entry] = table.add(rows((1, "a", 1)))
    state = table.state()
    wrong = replace(entry, data_file=entry.data_file.with_(content=FileContent.EQUALITY_DELETES))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan_module, "load_manifest", lambda *_: [wrong])
        with pytest.raises(CorruptDataError, match="lists a delete file"):
            plan_scan(table.environment(), state)


def test_unknown_snapshot_and_bad_filter_are_refused() -> None:
    table = partitioned()
    state = table.state()
    with pytest.raises(NotFoundError, match="12345"):
        plan_scan(table.environment(), state, snapshot_id=12345)
    with pytest.raises(InvalidInputError, match="nope"):
        plan_scan(table.environment(), state, row_filter="nope = 1")


def test_live_rows_are_known_without_reading_when_metadata_tell() -> None:
    table = HandMadeTable(KEYED)
    table.commit()
    [entry] = table.add(rows((1, "a", 1), (2, "b", 2), (3, "c", 3)))
    assert live_row_count(planned(table).tasks[0]) == 3
    assert live_row_count(planned(table, "id > 1").tasks[0]) is None
    table.commit()
    table.delete_vector(entry, [0, 2])
    assert live_row_count(planned(table).tasks[0]) == 1
    table.delete_keys(rows((2, "b", 2)), [1])
    assert live_row_count(planned(table).tasks[0]) is None


def test_limit_opens_no_more_files_than_hold_the_rows() -> None:
    table = HandMadeTable(KEYED)
    for number in range(5):
        table.commit()
        [entry] = table.add(rows((number, "a", 1), (number, "b", 2)))
    plan = planned(table)
    table.store.delete([entry.data_file.file_path])
    batches = read_scan(table.environment(), plan, limit=7)
    assert sum(batch.num_rows for batch in batches) == 7
    with pytest.raises(NotFoundError):
        list(read_scan(table.environment(), plan, limit=9))


@pytest.mark.parametrize("manifests", [1, 4])
def test_plan_does_not_depend_on_how_entries_are_spread_over_manifests(manifests: int) -> None:
    table = random_table(21)
    tasks = planned(table, manifests_per_kind=manifests).tasks
    by_path = {task.entry.data_file.file_path: task for task in tasks}
    once = {task.entry.data_file.file_path: task for task in planned(table).tasks}
    assert by_path.keys() == once.keys()
    for path, task in by_path.items():
        assert task.has_deletes == once[path].has_deletes
        assert {e.data_file.identity for e in task.equality_deletes} == {
            e.data_file.identity for e in once[path].equality_deletes
        }
