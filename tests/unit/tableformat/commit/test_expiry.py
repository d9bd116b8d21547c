import pytest

from tableformat.codec.avro import manifest_entries
from tableformat.codec.avro.manifest_store import clear_manifest_cache
from tableformat.commit import expiry_plan
from tableformat.commit.changeset import Changeset, CommitKind, Fence
from tableformat.commit.evolution import update_properties
from tableformat.commit.expire import apply_expiry
from tableformat.commit.expiry_plan import ExpiryPolicy, plan_expiry
from tableformat.commit.refs import (
    create_branch,
    create_tag,
    drop_ref,
    fast_forward,
    replace_branch,
    rollback,
)
from tableformat.commit.retention import STAGING_RETENTION, Retention
from tableformat.commit.staging_branches import staging_branches
from tableformat.errors import (
    CommitConflictError,
    CommitUnknownError,
    FencedError,
    InvalidInputError,
    StoreUnavailableError,
)
from tableformat.spec.names import SNAPSHOTS_MAX, STAGING_MARKER
from tests.support.another_tool import another_tool
from tests.support.commit_tables import IDENTIFIER, CommitTable
from tests.support.reachable import reachable_locations
from tests.support.table_checker import check_table

DAY_MS = 24 * 3600 * 1000
EVERYTHING = ExpiryPolicy(max_snapshot_age_ms=0)


class ExpiryTable(CommitTable):
    """Commits one day apart; data files have bytes, so that deleting one can be seen."""

    def commit(self, changeset, **kwargs):
        for file in (*changeset.added_data_files, *changeset.added_delete_files):
            if file.file_path not in self.objects():
                self.store.put(file.file_path, b"x")
        self.clock.advance(DAY_MS)
        return super().commit(changeset, **kwargs)

    def add(self, name, **options):
        return self.append(self.data(name), **options).snapshot.snapshot_id

    def remove(self, name, **options):
        entry = self.live(options.get("branch", "main"))[name]
        change = Changeset(kind=CommitKind.DELETE, removed_entries=(entry,), **options)
        return self.commit(change).snapshot.snapshot_id

    def plan(self, policy=EVERYTHING):
        return plan_expiry(self.state.metadata, policy, now_ms=self.clock.now_ms() + 1)

    def expire(self, policy=EVERYTHING, *, fence=None, **options):
        self.clock.advance(1)
        report = apply_expiry(self.environment, IDENTIFIER, policy, fence=fence, **options)
        clear_manifest_cache(self.store)
        check_table(self.store.get, self.state.metadata_location)
        needed = reachable_locations(self.store, self.state)
        data = {each for each in needed if each.endswith((".parquet", ".puffin", ".avro"))}
        assert data <= self.objects()
        return report

    def files(self):
        return {each.rsplit("/", 1)[-1] for each in self.objects() if "/data/" in each}


@pytest.fixture
def table():
    return ExpiryTable()


def test_default_policy_keeps_five_days_and_one_snapshot(table):
    ids = [table.add(f"f{n}") for n in range(9)]
    plan = table.plan(ExpiryPolicy())
    assert plan.snapshot_ids == tuple(ids[:4])  # 1 ms older than 5 days and more
    table.clock.advance(100 * DAY_MS)
    assert table.plan(ExpiryPolicy()).snapshot_ids == tuple(ids[:8])


def test_snapshot_exactly_as_old_as_the_limit_stays(table):
    ids = [table.add(f"f{n}") for n in range(3)]
    assert table.plan(ExpiryPolicy(max_snapshot_age_ms=DAY_MS + 1)).snapshot_ids == (ids[0],)
    assert table.plan(ExpiryPolicy(max_snapshot_age_ms=DAY_MS)).snapshot_ids == tuple(ids[:2])


def test_table_properties_and_policy_set_the_limits(table):
    update_properties(
        table.environment,
        IDENTIFIER,
        updates={
            "history.expire.max-snapshot-age-ms": "0",
            "history.expire.min-snapshots-to-keep": "3",
        },
    )
    ids = [table.add(f"f{n}") for n in range(6)]
    assert table.plan(ExpiryPolicy()).snapshot_ids == tuple(ids[:3])
    assert table.plan(ExpiryPolicy(min_snapshots_to_keep=2)).snapshot_ids == tuple(ids[:4])


def test_table_bounds_how_many_snapshots_of_a_branch_stay(table):
    """Commits are a day apart; five days stay by default."""
    most = {SNAPSHOTS_MAX: "2"}
    update_properties(table.environment, IDENTIFIER, updates=most)
    ids = [table.add(f"f{n}") for n in range(6)]
    assert table.plan(ExpiryPolicy()).snapshot_ids == tuple(ids[:4])
    assert table.plan(ExpiryPolicy(min_snapshots_to_keep=3)).snapshot_ids == tuple(ids[:3])
    assert table.plan(ExpiryPolicy(max_snapshot_age_ms=3 * DAY_MS)).snapshot_ids == tuple(ids[:3])
    four_days = Retention(max_snapshot_age_ms=4 * DAY_MS)
    create_branch(table.environment, IDENTIFIER, "b", retention=four_days)
    assert table.plan(ExpiryPolicy()).snapshot_ids == tuple(ids[:2])


def test_age_that_the_table_says_goes_before_the_bound(table):
    """Whoever asked for a history is not to lose it by a default."""
    says = {SNAPSHOTS_MAX: "2", "history.expire.max-snapshot-age-ms": str(4 * DAY_MS)}
    update_properties(table.environment, IDENTIFIER, updates=says)
    ids = [table.add(f"f{n}") for n in range(6)]
    assert table.plan(ExpiryPolicy()).snapshot_ids == tuple(ids[:2])


def test_each_branch_keeps_its_newest_snapshots_below_the_bound(table):
    update_properties(table.environment, IDENTIFIER, updates={SNAPSHOTS_MAX: "2"})
    first = table.add("f0")
    create_branch(table.environment, IDENTIFIER, "b")
    ours = [table.add(f"f{n}") for n in range(1, 4)]
    theirs = [table.add(f"b{n}", branch="b") for n in range(3)]
    assert table.plan(ExpiryPolicy()).snapshot_ids == (first, ours[0], theirs[0])


def test_bound_is_a_positive_number(table):
    update_properties(table.environment, IDENTIFIER, updates={SNAPSHOTS_MAX: "0"})
    with pytest.raises(InvalidInputError, match="max-snapshots-to-keep"):
        table.plan(ExpiryPolicy())


def test_malformed_property_is_refused(table):
    update_properties(
        table.environment, IDENTIFIER, updates={"history.expire.max-snapshot-age-ms": "soon"}
    )
    with pytest.raises(InvalidInputError, match="max-snapshot-age-ms"):
        table.plan(ExpiryPolicy())


def test_tag_keeps_its_snapshot_and_no_other(table):
    ids = [table.add(f"f{n}") for n in range(4)]
    create_tag(table.environment, IDENTIFIER, "t", snapshot_id=ids[1])
    assert table.plan().snapshot_ids == (ids[0], ids[2])


def test_settings_of_a_branch_go_before_the_policy(table):
    ids = [table.add(f"f{n}") for n in range(6)]
    create_branch(
        table.environment,
        IDENTIFIER,
        "b",
        retention=Retention(max_snapshot_age_ms=1, min_snapshots_to_keep=3),
    )
    assert table.plan().snapshot_ids == tuple(ids[:3])


def test_old_ref_is_dropped_with_what_only_it_needs(table):
    first = table.add("x")
    second = table.add("y")
    create_branch(
        table.environment,
        IDENTIFIER,
        "b",
        snapshot_id=first,
        retention=Retention(max_ref_age_ms=3 * DAY_MS),
    )
    assert table.plan().refs == ()
    table.clock.advance(5 * DAY_MS)
    plan = table.plan()
    assert plan.refs == ("b",)
    assert plan.snapshot_ids == (first,)
    table.expire()
    assert table.state.ref("b") is None
    assert table.head() == second


def test_main_is_never_dropped(table):
    table.add("x")
    table.clock.advance(1000 * DAY_MS)
    assert table.plan(ExpiryPolicy(max_ref_age_ms=0, max_snapshot_age_ms=0)).refs == ()


def test_snapshot_of_no_branch_stays_while_it_is_young(table):
    first = table.add("x")
    lost = table.add("y")
    rollback(table.environment, IDENTIFIER, snapshot_id=first)
    assert table.plan(ExpiryPolicy(max_snapshot_age_ms=DAY_MS)).snapshot_ids == ()
    assert table.plan().snapshot_ids == (lost,)


def test_staged_snapshots_are_kept_back_to_the_marker(table):
    table.add("x")
    staged = [table.add(f"s{n}", branch="staging") for n in range(4)]
    table.add("y", summary={STAGING_MARKER: str(staged[1])})
    table.add("z")  # carries the marker
    plan = table.plan()
    assert set(staged[1:]).isdisjoint(plan.snapshot_ids)
    assert staged[0] in plan.snapshot_ids
    assert set(plan.protected) == {staged[1], staged[2]}
    assert staged[0] in table.plan(ExpiryPolicy(max_snapshot_age_ms=0, staging={})).snapshot_ids


def test_staged_snapshots_without_a_marker_are_kept_back_to_the_target(table):
    first = table.add("x")
    base = table.add("y")
    staged = [table.add(f"s{n}", branch="staging") for n in range(3)]
    table.add("z")
    plan = table.plan()
    assert plan.snapshot_ids == (first,)
    assert set(plan.protected) == {base, *staged[:2]}


def commit_of_flink(table, name, *, branch="main", job="job", operator="sink", **counts):
    """As its sink does: it repeats nothing, and says what it is."""
    summary = {"flink.job-id": job, "flink.operator-id": operator}
    with another_tool(table.environment):
        done = table.append(
            table.data(name), branch=branch, carry_marker=False, summary={**summary, **counts}
        )
    return done.snapshot.snapshot_id


@pytest.mark.parametrize("deletes", ["added-dvs", "added-equality-delete-files"])
@pytest.mark.parametrize("branch", ["main", "staging"])
def test_whole_history_stays_while_flink_deletes(table, branch, deletes):
    """Its sink validates vectors from the first snapshot on, and fails for ever once that is gone.

    Vectors come with the first checkpoint that changes a key twice, which may be much later.
    """
    table.add("a")
    table.add("b")
    create_branch(table.environment, IDENTIFIER, "staging")
    commit_of_flink(table, "c", branch=branch, **{deletes: "1"})
    assert table.plan().snapshot_ids == ()


def test_history_goes_where_flink_only_appends_or_has_left_or_it_is_cut(table):
    first = table.add("a")
    flink = commit_of_flink(table, "b")
    assert table.plan().snapshot_ids == (first,)
    vectors = commit_of_flink(table, "c", **{"added-dvs": "1"})
    own = table.add("d", summary={"added-dvs": "1"})  # repeats what Flink said
    assert table.state.head("main").summary.additional_properties["flink.job-id"] == "job"
    assert table.plan().snapshot_ids == ()
    table.clock.advance(5 * DAY_MS)
    assert table.plan().snapshot_ids == (first, flink, vectors)
    table.expire(ExpiryPolicy(min_snapshots_to_keep=1, max_snapshot_age_ms=0))
    commit_of_flink(table, "e", **{"added-dvs": "1"})
    assert table.plan().snapshot_ids == (own,)


def test_commit_of_flink_that_no_branch_has_any_more_keeps_the_history_and_itself(table):
    """Its branch was moved to the target once all was published."""
    table.add("a")
    create_branch(table.environment, IDENTIFIER, "staging")
    staged = commit_of_flink(table, "b", branch="staging", **{"added-equality-delete-files": "1"})
    table.add("c", summary={STAGING_MARKER: str(staged)})
    replace_branch(table.environment, IDENTIFIER, "staging", to="main", expected_head=staged)
    assert table.plan().snapshot_ids == ()


def test_history_of_a_tag_is_not_kept_for_writers(table):
    ids = [table.add("a"), *(commit_of_flink(table, each, operator=each) for each in "bc")]
    create_tag(table.environment, IDENTIFIER, "told", snapshot_id=ids[2])
    replace_branch(table.environment, IDENTIFIER, "main", to=ids[0], expected_head=ids[2])
    assert table.plan().snapshot_ids == (ids[1],)


def test_history_of_a_v2_table_goes_whatever_flink_deletes():
    table = ExpiryTable(properties={"format-version": "2"})
    first = table.add("a")
    commit_of_flink(table, "b", **{"added-equality-delete-files": "1"})
    assert table.plan().snapshot_ids == (first,)


def test_last_commit_of_each_streaming_writer_stays_in_reach_for_five_days(table, monkeypatch):
    """One that does not find it commits its files again, which may have been deleted since."""
    first = commit_of_flink(table, "a", operator="one")
    found = commit_of_flink(table, "b", job="restarted", operator="one")
    between = table.add("c")  # repeats what that one said
    newer = [commit_of_flink(table, "d", operator="two"), table.add("e"), table.add("f")]
    assert table.plan().snapshot_ids == (first, found)
    assert set(table.plan().protected) == {between, *newer[:-1]}
    with monkeypatch.context() as patch:
        patch.setattr(expiry_plan, "_SOUGHT_MAX", 2)
        assert table.plan().protected == ()
    table.clock.advance(5 * DAY_MS)
    assert set(table.plan().snapshot_ids) == {first, found, between, *newer[:-1]}


def test_staging_that_was_moved_to_the_target_protects_nothing_more(table):
    table.add("x")
    staged = table.add("s", branch="staging")
    table.add("s2", summary={STAGING_MARKER: str(staged)})
    replace_branch(table.environment, IDENTIFIER, "staging", to="main", expected_head=staged)
    assert table.plan().protected == ()
    assert staged in table.plan().snapshot_ids


def test_expired_table_loses_only_what_nothing_reaches(table):
    table.add("x")
    table.add("y")
    table.remove("x")
    table.add("z")
    before = table.objects()
    report = table.expire()
    assert table.files() == {"y.parquet", "z.parquet"}
    assert (report.data_files, report.manifest_lists) == (1, 3)
    assert report.manifests >= 1
    assert not report.failed
    assert len(table.state.metadata.snapshots) == 1
    left = {each for each in table.objects() if each.endswith(".avro")}
    assert left == {each for each in reachable_locations(table.store, table.state) & before
                    if each.endswith(".avro")}  # fmt: skip


def test_nothing_to_expire_changes_nothing(table):
    table.add("x")
    before = table.state.metadata_location
    report = table.expire()
    assert report.plan.snapshot_ids == ()
    assert table.state.metadata_location == before


def test_puffin_file_stays_while_one_of_its_vectors_is_live(table):
    x, y = table.data("x"), table.data("y")
    table.append(x, y)
    table.row_delta(deletes=[table.vector(x, "p", offset=4), table.vector(y, "p", offset=60)])
    replaced = table.entry(table.vector(x, "p", offset=4))
    table.row_delta(deletes=[table.vector(x, "q")], removed=[replaced])
    table.expire()
    assert "p.puffin" in table.files()
    table.remove("y")
    table.add("z")
    table.expire()
    assert table.files() == {"x.parquet", "z.parquet", "q.puffin"}


def test_staged_file_that_was_published_again_survives_its_staged_snapshot(table):
    # Same location under other numbers: the resolver adds staged files to the target.
    table.add("x")
    shared = table.data("shared")
    staged = table.append(shared, branch="staging").snapshot.snapshot_id
    table.append(shared, summary={STAGING_MARKER: str(staged)})
    replace_branch(table.environment, IDENTIFIER, "staging", to="main", expected_head=staged)
    report = table.expire()
    assert staged in report.plan.snapshot_ids
    assert "shared.parquet" in table.files()


def test_file_that_another_branch_needs_survives(table):
    table.add("x")
    create_branch(table.environment, IDENTIFIER, "b")
    table.remove("x")
    table.add("y")
    table.expire()
    assert "x.parquet" in table.files()


def test_branch_created_while_expiring_keeps_its_snapshot(table):
    first = table.add("x")
    table.remove("x")
    table.add("y")

    def intrude(_):
        table.catalog.before_commit = None
        create_branch(table.environment, IDENTIFIER, "late", snapshot_id=first)

    table.catalog.before_commit = intrude
    report = table.expire()
    assert first not in report.plan.snapshot_ids
    assert "x.parquet" in table.files()


def test_file_added_again_between_removal_and_deletion_survives(table):
    shared = table.data("shared")
    table.append(shared)
    table.remove("shared")
    table.add("y")
    real = table.store.delete

    def add_again_first(state):
        table.catalog.after_commit = None
        table.append(shared, branch="main")

    table.catalog.after_commit = add_again_first
    table.expire()
    assert real is not None
    assert "shared.parquet" in table.files()


def test_unknown_outcome_deletes_nothing(table):
    table.add("x")
    table.remove("x")
    table.add("y")
    before = table.objects(".avro") | table.objects(".parquet")

    def lose(_):
        raise CommitUnknownError("answer lost")

    table.catalog.before_commit = lose
    with pytest.raises(CommitUnknownError):
        table.expire()
    assert table.objects(".avro") | table.objects(".parquet") == before


def test_lost_swap_deletes_nothing(table):
    table.add("x")
    table.remove("x")
    table.add("y")

    def refuse(_):
        raise CommitConflictError("lost")

    table.catalog.before_commit = refuse
    with pytest.raises(CommitConflictError):
        table.expire()
    assert "x.parquet" in table.files()


def test_overtaken_holder_expires_and_deletes_nothing(table):
    table.add("x")
    table.remove("x", fence=Fence("maintenance", 5))
    table.add("y")
    with pytest.raises(FencedError):
        table.expire(fence=Fence("maintenance", 4))
    assert len(table.state.metadata.snapshots) == 3

    def overtake(_):
        table.catalog.after_commit = None
        table.add("z", fence=Fence("maintenance", 6))

    table.catalog.after_commit = overtake
    with pytest.raises(FencedError):
        table.expire(fence=Fence("maintenance", 5))
    assert "x.parquet" in table.files()


def test_failing_deletes_are_reported_and_harmless(table):
    table.add("x")
    table.remove("x")
    table.add("y")

    def fail(_):
        raise StoreUnavailableError("store is down")

    table.store.delete = fail
    report = table.expire()
    assert {each.rsplit("/", 1)[-1] for each in report.failed} >= {"x.parquet"}
    assert report.data_files == 0


def test_failure_after_the_removal_says_that_snapshots_have_expired(table):
    table.add("x")
    table.remove("x")
    clear_manifest_cache(table.store)
    get = table.store.get

    def fail(location, **options):
        if location.endswith(".avro"):
            raise StoreUnavailableError("object store refused: 403 ExpiredToken")
        return get(location, **options)

    table.store.get = fail
    with pytest.raises(StoreUnavailableError, match=r"expired \(1\), .* orphan removal: .* 403"):
        apply_expiry(table.environment, IDENTIFIER, EVERYTHING, fence=None)
    assert len(table.state.metadata.snapshots) == 1


def test_metadata_only_expiry_leaves_the_files(table):
    table.add("x")
    table.remove("x")
    table.add("y")
    report = table.expire(delete_files=False)
    assert len(report.plan.snapshot_ids) == 2
    assert "x.parquet" in table.files()


def test_table_that_shares_files_is_refused(table):
    table.add("x")
    table.add("y")
    update_properties(table.environment, IDENTIFIER, updates={"gc.enabled": "false"})
    with pytest.raises(InvalidInputError, match="other tables"):
        table.expire()


def test_history_that_was_expired_is_a_conflict_for_old_scans(table):
    x = table.data("x")
    start = table.append(x).snapshot.snapshot_id
    table.add("y")
    table.expire()
    with pytest.raises(CommitConflictError, match="not in the branch's history"):
        table.row_delta(deletes=[table.vector(x, "p")], start=start)


def test_marker_and_fence_survive_expiry(table):
    table.add("x", summary={STAGING_MARKER: "77"}, fence=Fence("resolver", 3))
    for n in range(3):
        table.add(f"f{n}")
    table.expire()
    snapshot = table.append(table.data("last")).snapshot
    assert snapshot.summary[STAGING_MARKER] == "77"
    with pytest.raises(FencedError):
        table.add("zombie", fence=Fence("resolver", 2))


def staging_of(table, declared=None):
    found = staging_branches(table.state.metadata, declared or {})
    return {each.name: (each.target, each.is_certain) for each in found.values()}


def stage(table, name, branch, **options):
    return table.add(name, branch=branch, carry_marker=False, **options)


def test_branches_that_are_staged_to_are_found_with_their_target(table):
    table.add("x")
    create_branch(table.environment, IDENTIFIER, "plain")
    table.add("y", branch="dev")
    create_branch(table.environment, IDENTIFIER, "cdc", snapshot_id=table.head("dev"))
    stage(table, "s", "cdc")
    stage(table, "t", "staging")
    assert staging_of(table) == {"cdc": ("dev", True), "staging": ("main", True)}
    assert staging_of(table, {"cdc": "main", "plain": "dev", "none": "main"}) == {
        "cdc": ("main", True),
        "plain": ("dev", True),
        "staging": ("main", True),
    }


def test_target_that_no_longer_exists_is_main(table):
    table.add("x")
    table.add("y", branch="dev")
    create_branch(table.environment, IDENTIFIER, "cdc", snapshot_id=table.head("dev"))
    stage(table, "s", "cdc")
    drop_ref(table.environment, IDENTIFIER, "dev")
    assert staging_of(table) == {"cdc": ("main", False)}


def test_target_is_not_certain_where_one_branch_was_fast_forwarded_to_the_other(table):
    table.add("x")
    table.add("y", branch="dev")
    fast_forward(table.environment, IDENTIFIER, "main", to="dev")
    stage(table, "s", "cdc")
    assert staging_of(table) == {"cdc": ("main", False)}


def test_copy_of_a_staging_branch_is_kept_but_never_moved(table):
    table.add("x")
    staged = [stage(table, f"s{n}", "staging") for n in range(3)]
    create_branch(table.environment, IDENTIFIER, "copy")
    replace_branch(
        table.environment, IDENTIFIER, "copy", to="staging", expected_head=table.head("copy")
    )
    replace_branch(table.environment, IDENTIFIER, "staging", to="main", expected_head=staged[-1])
    assert staging_of(table)["copy"] == ("main", False)
    assert set(staged).isdisjoint(table.plan().snapshot_ids)


def test_idle_branch_with_the_retention_of_staging_is_one(table):
    table.add("x")
    create_branch(table.environment, IDENTIFIER, "cdc", retention=STAGING_RETENTION)
    create_branch(
        table.environment, IDENTIFIER, "b", retention=Retention(max_snapshot_age_ms=DAY_MS)
    )
    assert staging_of(table) == {"cdc": ("main", True)}


def test_tags_and_branches_without_staged_changes_are_no_staging_branches(table):
    staged = stage(table, "s", "cdc")
    create_tag(table.environment, IDENTIFIER, "staging", snapshot_id=staged)
    table.add("x")
    table.add("y", branch="dev")
    drop_ref(table.environment, IDENTIFIER, "cdc")
    assert staging_of(table) == {}


def test_branch_begun_on_a_publish_that_main_lost_and_repeated_is_no_staging_branch(table):
    """As Flink's converter publishes: the marker alone, which says no sequence number."""
    base = table.add("x")
    staged = stage(table, "s", "cdc")
    table.add("p", summary={STAGING_MARKER: str(staged)})
    create_branch(table.environment, IDENTIFIER, "dev")
    rollback(table.environment, IDENTIFIER, snapshot_id=base)
    assert set(staging_of(table)) == {"cdc", "dev"}  # what `dev` covers waits again
    table.add("p2", summary={STAGING_MARKER: str(staged)})
    assert set(staging_of(table)) == {"cdc"}


def test_own_retention_of_staging_counts_above_the_target_only(table):
    ids = [table.add(f"f{n}") for n in range(4)]
    create_branch(
        table.environment,
        IDENTIFIER,
        "staging",
        retention=Retention(max_snapshot_age_ms=100 * DAY_MS, min_snapshots_to_keep=5),
    )
    staged = [stage(table, f"s{n}", "staging") for n in range(3)]
    head = table.add("p", summary={STAGING_MARKER: str(staged[-1])})
    assert table.plan().snapshot_ids == tuple(ids)
    replace_branch(table.environment, IDENTIFIER, "staging", to="main", expected_head=staged[-1])
    assert table.plan().snapshot_ids == (*ids, *staged)
    assert table.head() == head


def test_history_of_the_target_goes_where_it_proves_nothing_for_a_copy(table):
    base = table.add("x")
    staged = stage(table, "s0", "staging")
    create_branch(table.environment, IDENTIFIER, "copy", snapshot_id=staged)
    later = stage(table, "s1", "staging")
    published = [table.add(f"p{n}", summary={STAGING_MARKER: str(later)}) for n in range(3)]
    replace_branch(table.environment, IDENTIFIER, "staging", to="main", expected_head=later)
    assert set(table.plan().snapshot_ids) == {later, *published[:-1]}
    assert set(table.plan().protected) == {base}


def test_expiry_decodes_the_manifests_that_name_what_goes_and_no_others(table, monkeypatch):
    for number in range(15):
        table.add(f"f{number}")
    table.remove("f3")
    table.remove("f7")
    clear_manifest_cache(table.store)
    decoded = []
    inherit = manifest_entries._inherit

    def counted(values, manifest, *rest):
        decoded.append(manifest.manifest_path)
        return inherit(values, manifest, *rest)

    with monkeypatch.context() as patched:
        patched.setattr(manifest_entries, "_inherit", counted)
        table.clock.advance(1)
        report = apply_expiry(table.environment, IDENTIFIER, EVERYTHING, fence=None)
    assert report.data_files == 2
    assert "f3.parquet" not in table.files()
    assert len(set(decoded)) <= 4  # of fifteen: those that only expired snapshots had, and the last
