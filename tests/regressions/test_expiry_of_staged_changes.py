"""Expiry loses no staged change: whatever the branch is called, however old its ref is."""

from __future__ import annotations

from collections import Counter

import pytest

from maintenance import expire
from maintenance.tasks.options import ExpireOptions
from resolver import resolve
from tableformat import Table
from tableformat.cdc.batch_commit import BatchId, commit_batch
from tableformat.commit.changeset import CommitKind
from tableformat.commit.expiry_plan import ExpiryPolicy
from tableformat.commit.refs import create_branch, drop_ref, rollback
from tableformat.commit.retention import LONG_MAX, STAGING_RETENTION, Retention, retention_of
from tests.support.another_tool import another_tool
from tests.support.staged_tables import BASE, StagedTable

OLD = ExpiryPolicy(max_snapshot_age_ms=0, min_snapshots_to_keep=1)


def stage(staged: StagedTable, key: int, note: str, branch: str = "staging") -> None:
    staged.table.refresh().stage(upserts=staged.rows((key, "eu", note)), branch=branch)


def wait(staged: StagedTable) -> None:
    staged.environment.runtime.clock.sleep_ms(20)


def expire_all(staged: StagedTable, policy: ExpiryPolicy = OLD) -> None:
    wait(staged)
    expire(staged.table, ExpireOptions(policy=policy))


def stage_by_hand(staged: StagedTable, key: int) -> None:
    """An upsert on branch `flink`."""
    deleted = staged.equality_deletes(staged.rows((key, "eu", "")).select(["id"]))
    staged.commit(data=staged.data_files((key, "eu", "flink")), deletes=deleted, branch="flink")


def with_rows(*rows: tuple[int, str, str]) -> Counter[tuple[int, str, str]]:
    changed = {row[0] for row in rows}
    return Counter([*(row for row in BASE if row[0] not in changed), *rows])


def snapshot_ids(table: Table) -> set[int]:
    return {each.snapshot_id for each in table.refresh().state.metadata.snapshots}


def refs(staged: StagedTable) -> dict[str, int]:
    found = staged.table.refresh().state.metadata.refs
    return {name: ref.snapshot_id for name, ref in found.items()}


@pytest.mark.parametrize("branch", ["staging", "cdc"])
@pytest.mark.parametrize("own_age_ms", [None, 1], ids=["", "own"])
def test_staging_branch_is_not_dropped_for_its_age(staged, branch, own_age_ms):
    if own_age_ms is not None:
        retention = Retention(max_ref_age_ms=own_age_ms)
        create_branch(staged.environment, staged.table.identifier, branch, retention=retention)
    stage(staged, 1, "a", branch)
    staged.table.set_properties({"history.expire.max-ref-age-ms": "1"})
    expire_all(staged, ExpiryPolicy())
    stage(staged, 2, "b", branch)
    assert resolve(staged.table, staging=branch).staged_snapshots == 2
    assert staged.published() == with_rows((1, "eu", "a"), (2, "eu", "b"))


def test_unpublished_snapshots_of_any_staging_branch_stay(staged):
    for key in range(3):
        stage(staged, key, "c", "cdc")
    expire_all(staged)
    assert resolve(staged.table, staging="cdc").staged_snapshots == 3
    assert staged.published() == with_rows(*((key, "eu", "c") for key in range(3)))


def test_unpublished_tail_of_a_branch_published_in_part_stays(staged):
    for key in range(4):
        stage(staged, key, "c", "cdc")
    resolve(staged.table, staging="cdc", limit=2)
    for _ in range(3):
        staged.table.append(staged.rows((100, "eu", "own")))
        expire_all(staged)
    assert resolve(staged.table, staging="cdc").staged_snapshots == 2


def test_appends_staged_by_a_query_stay(staged):
    for number in range(3):
        commit_batch(
            staged.environment,
            staged.table.identifier,
            branch="stream",
            kind=CommitKind.APPEND,
            batch=BatchId("q", number),
            data_files=staged.data_files((50 + number, "eu", "s")),
        )
    expire_all(staged)
    assert resolve(staged.table, staging="stream").staged_snapshots == 3


def test_equality_deletes_of_another_tool_stay(staged):
    with another_tool(staged.environment):
        for key in range(3):
            stage_by_hand(staged, key)
    expire_all(staged)
    assert resolve(staged.table, staging="flink").staged_snapshots == 3


def test_declared_branch_of_plain_appends_stays(staged):
    with another_tool(staged.environment):
        for key in range(3):
            staged.commit(data=staged.data_files((50 + key, "eu", "kafka")), branch="connect")
    expire_all(
        staged,
        ExpiryPolicy(max_snapshot_age_ms=0, min_snapshots_to_keep=1, staging={"connect": "main"}),
    )
    assert resolve(staged.table, staging="connect").staged_snapshots == 3


def test_staged_changes_that_a_rollback_made_unpublished_again_stay(staged):
    before = refs(staged)["main"]
    stage(staged, 1, "a")
    resolve(staged.table)
    stage(staged, 2, "b")
    staged.table.refs.rollback(snapshot_id=before)
    expire_all(staged)
    assert resolve(staged.table).staged_snapshots == 2
    assert staged.published() == with_rows((1, "eu", "a"), (2, "eu", "b"))


def test_target_of_a_waiting_branch_is_not_dropped_for_its_age(staged):
    staged.table.append(staged.rows((90, "eu", "main")))
    create_branch(
        staged.environment,
        staged.table.identifier,
        "dev",
        retention=Retention(max_ref_age_ms=1),
    )
    staged.table.append(staged.rows((91, "eu", "dev")), branch="dev")
    staged.table.refs.create_branch("cdc", snapshot_id=refs(staged)["dev"])
    stage(staged, 1, "a", "cdc")
    expire_all(staged)
    assert {"dev", "cdc"} <= refs(staged).keys()
    assert resolve(staged.table, staging="cdc", target="dev").staged_snapshots == 1
    expire_all(staged)
    assert "dev" not in refs(staged)  # nothing waits for it any more


def test_plain_branches_expire_as_they_say(staged):
    environment, identifier = staged.environment, staged.table.identifier
    create_branch(environment, identifier, "dev")
    create_branch(environment, identifier, "gone", retention=Retention(max_ref_age_ms=1))
    for key in range(3):
        staged.table.append(staged.rows((60 + key, "eu", "dev")), branch="dev")
        staged.table.append(staged.rows((70 + key, "eu", "gone")), branch="gone")
    expire_all(staged)
    assert refs(staged).keys() == {"main", "dev"}
    assert snapshot_ids(staged.table) == set(refs(staged).values())


def test_retention_of_staging_keeps_nothing_of_the_target(staged):
    stage(staged, 1, "a")
    resolve(staged.table)
    for key in range(5):
        staged.table.append(staged.rows((60 + key, "eu", "own")))
    create_branch(  # an idle branch that nothing says more of than its retention
        staged.environment,
        staged.table.identifier,
        "cdc",
        retention=STAGING_RETENTION,
    )
    staged.table.append(staged.rows((70, "eu", "own")))
    expire_all(staged)
    assert snapshot_ids(staged.table) == {refs(staged)["main"]}
    assert set(refs(staged)) == {"main", "staging", "cdc"}


def test_published_snapshots_of_a_staging_branch_that_is_never_trimmed_go(staged):
    for key in range(6):
        stage(staged, key, "a")
    for _ in range(4):
        resolve(staged.table, limit=1)
    before = len(snapshot_ids(staged.table))
    expire_all(staged)
    # The target's head; the cursor's snapshot and the two that wait.
    assert (before, len(snapshot_ids(staged.table))) == (11, 4)


@pytest.mark.parametrize("branch", ["staging", "cdc"])
def test_staging_is_given_retention_that_other_tools_honour(staged, branch):
    def retention() -> Retention:
        return retention_of(staged.table.refresh().state.ref(branch))

    stage(staged, 1, "a", branch)
    assert retention() == STAGING_RETENTION
    assert retention().max_ref_age_ms == LONG_MAX
    stage(staged, 2, "b", branch)
    assert retention() == STAGING_RETENTION
    assert resolve(staged.table, staging=branch).trimmed
    assert retention() == STAGING_RETENTION


def test_staging_of_another_tool_is_given_retention_by_the_next_commit_or_trim(staged):
    identifier = staged.table.identifier
    create_branch(staged.environment, identifier, "staging")
    stage(staged, 1, "a")
    assert retention_of(staged.table.state.ref("staging")) == STAGING_RETENTION
    staged.table.refs.drop("staging")
    with another_tool(staged.environment):
        stage_by_hand(staged, 1)
    assert retention_of(staged.table.refresh().state.ref("flink")) == Retention()
    assert resolve(staged.table, staging="flink").trimmed
    assert retention_of(staged.table.refresh().state.ref("flink")) == STAGING_RETENTION


def test_retention_of_users_survives_stage_and_trim(staged):
    own = Retention(max_snapshot_age_ms=86_400_000, min_snapshots_to_keep=7)
    create_branch(staged.environment, staged.table.identifier, "staging", retention=own)
    stage(staged, 1, "a")
    assert retention_of(staged.table.state.ref("staging")) == own
    assert resolve(staged.table).trimmed
    assert retention_of(staged.table.refresh().state.ref("staging")) == own


def test_branches_that_are_not_staged_to_are_given_no_retention(staged):
    staged.table.append(staged.rows((60, "eu", "dev")), branch="dev")
    staged.table.append(staged.rows((61, "eu", "main")))
    for branch in ("dev", "main"):
        assert retention_of(staged.table.state.ref(branch)) == Retention()


def test_staged_changes_of_another_tool_outlive_a_publish_that_main_has_lost(tmp_path):
    """Their branch stands on that publish, so nothing above the history of main looks staged."""
    staged = StagedTable(tmp_path)
    staged.table.append(staged.rows(*BASE))
    create_branch(staged.environment, staged.table.identifier, "flink")
    base = staged.table.refresh().state.head_id("main")
    with another_tool(staged.environment):
        stage_by_hand(staged, 3)
    resolve(staged.table, staging="flink")
    drop_ref(staged.environment, staged.table.identifier, "flink")  # made anew: without retention
    create_branch(staged.environment, staged.table.identifier, "flink")
    rollback(staged.environment, staged.table.identifier, snapshot_id=base)
    expire_all(staged)
    assert resolve(staged.table.refresh(), staging="flink").staged_snapshots == 1
    assert staged.published()[(3, "eu", "flink")] == 1


# -- R88 -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("branch", ["staging", "main"])
def test_r88_flinks_sink_finds_its_whole_history_after_resolve_compact_and_expire(staged, branch):
    """It validates vectors from the first snapshot on (Iceberg's `validateAddedDVs`)."""
    for number in range(4):
        with another_tool(staged.environment):
            staged.commit(
                branch=branch,
                data=staged.data_files((number, "eu", f"v{number}")),
                deletes=staged.equality_deletes(staged.rows((number, "eu", ""))),
                summary={"flink.job-id": "job", "flink.max-committed-checkpoint-id": str(number)},
            )
        resolve(staged.table.refresh(), staging=branch)
        staged.rewrite()
        expire_all(staged)
        metadata = staged.table.refresh().state.metadata
        by_id = {each.snapshot_id: each for each in metadata.snapshots}
        at = metadata.refs[branch].snapshot_id
        while at is not None:
            at = by_id[at].parent_snapshot_id
    assert staged.published() == with_rows(*((key, "eu", f"v{key}") for key in range(4)))
