"""Random commits on several branches beside a dict model of live files.

Model: per snapshot, data file -> name of its live vector or None, and the set of equality deletes.
Changes are planned on the head or on an older snapshot, race with another commit, lose requests and
answers. After each step every retained snapshot is read back by a reader that shares no code with
the engine, and must be structurally sound and equal to the model.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import hypothesis.strategies as st
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tableformat.codec.avro.manifest_store import (
    clear_manifest_cache,
    load_manifest,
    load_manifest_list,
)
from tableformat.commit.changeset import Changeset, CommitKind, Validation
from tableformat.commit.cherry_pick import cherry_pick
from tableformat.commit.expire import apply_expiry
from tableformat.commit.expiry_plan import ExpiryPolicy
from tableformat.commit.refs import create_branch, fast_forward, replace_branch, rollback
from tableformat.errors import (
    AlreadyExistsError,
    CommitConflictError,
    CommitUnknownError,
    InvalidInputError,
    StoreUnavailableError,
)
from tests.support.commit_tables import IDENTIFIER, PREFIX, CommitTable
from tests.support.table_checker import check_table

BRANCHES = ("main", "staging", "audit")
FAULTS = (
    "none",
    "none",
    "none",
    "race",
    "lost request",
    "lost answer",
    "crash before",
    "cold cache",
)


@dataclass(frozen=True)
class Content:
    """What is live in one snapshot."""

    vectors: dict[str, str | None] = field(default_factory=dict)
    equality_deletes: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Known:
    """One snapshot in the model."""

    parent: int | None
    content: Content


class Commits(RuleBasedStateMachine):
    @initialize(seed=st.integers(0, 1000), merge_at=st.sampled_from([2, 3, 100]))
    def start(self, seed, merge_at):
        self.table = CommitTable(
            seed=seed, properties={"commit.manifest.min-count-to-merge": str(merge_at)}
        )
        self.files = {}  # short name -> DataFile
        self.known: dict[int, Known] = {}
        self.expired: dict[int, Known] = {}
        self.heads: dict[str, int] = {}
        self.numbers = iter(range(1 << 30))

    # --- rules ---------------------------------------------------------------------------------

    @rule(branch=st.sampled_from(BRANCHES), fault=st.sampled_from(FAULTS), count=st.integers(0, 3))
    def append(self, branch, fault, count):
        names = [self.new_data() for _ in range(count)]
        self.run(branch, fault, CommitKind.APPEND, add=names)

    @rule(branch=st.sampled_from(BRANCHES), fault=st.sampled_from(FAULTS))
    def stage(self, branch, fault):
        self.run(
            branch, fault, CommitKind.ROW_DELTA, add=[self.new_data()], equality=self.new_equality()
        )

    @precondition(lambda self: self.heads)
    @rule(data=st.data(), fault=st.sampled_from(FAULTS), with_rows=st.booleans())
    def give_vectors(self, data, fault, with_rows):
        branch, start, chosen = self.draw_files(data)
        add = [self.new_data()] if with_rows else []
        self.run(branch, fault, CommitKind.ROW_DELTA, start=start, add=add, vectors=chosen)

    @precondition(lambda self: self.heads)
    @rule(
        data=st.data(),
        fault=st.sampled_from(FAULTS),
        kind=st.sampled_from([CommitKind.OVERWRITE, CommitKind.REWRITE, CommitKind.DELETE]),
    )
    def replace_files(self, data, fault, kind):
        branch, start, chosen = self.draw_files(data)
        if not chosen:
            return
        add = [] if kind == CommitKind.DELETE else [self.new_data()]
        self.run(branch, fault, kind, start=start, add=add, remove=chosen)

    @precondition(lambda self: self.heads)
    @rule(data=st.data(), branch=st.sampled_from(BRANCHES))
    def point_branch(self, data, branch):
        target = data.draw(st.sampled_from(sorted(self.known)))
        replace_branch(
            self.table.environment,
            IDENTIFIER,
            branch,
            to=target,
            expected_head=self.heads.get(branch),
        )
        self.heads[branch] = target

    @precondition(lambda self: "main" in self.heads)
    @rule(source=st.sampled_from(BRANCHES[1:]))
    def forward_main(self, source):
        if source not in self.heads:
            create_branch(self.table.environment, IDENTIFIER, source)
            self.heads[source] = self.heads["main"]
        legal = self.heads["main"] in self.ancestors(self.heads[source])
        try:
            fast_forward(self.table.environment, IDENTIFIER, "main", to=source)
        except CommitConflictError:
            assert not legal
        else:
            assert legal
            self.heads["main"] = self.heads[source]

    @precondition(lambda self: self.heads)
    @rule(data=st.data())
    def roll_back(self, data):
        branch = data.draw(st.sampled_from(sorted(self.heads)))
        target = data.draw(st.sampled_from(self.ancestors(self.heads[branch])))
        rollback(self.table.environment, IDENTIFIER, branch=branch, snapshot_id=target)
        self.heads[branch] = target

    @precondition(lambda self: self.heads)
    @rule(data=st.data())
    def pick(self, data):
        branch = data.draw(st.sampled_from(sorted(self.heads)))
        picked = data.draw(st.sampled_from(sorted(self.known)))
        head = self.heads[branch]
        try:
            result = cherry_pick(
                self.table.environment, IDENTIFIER, snapshot_id=picked, branch=branch
            )
        except (AlreadyExistsError, CommitConflictError, InvalidInputError):
            return
        if result.snapshot.snapshot_id == picked:
            assert self.known[picked].parent == head
        else:
            self.learn(result.snapshot.snapshot_id, head, self.picked_content(picked, head))
        self.heads[branch] = result.snapshot.snapshot_id

    @precondition(lambda self: self.heads)
    @rule(keep=st.integers(1, 4))
    def expire(self, keep):
        self.table.clock.advance(1)
        policy = ExpiryPolicy(max_snapshot_age_ms=0, min_snapshots_to_keep=keep, staging={})
        apply_expiry(self.table.environment, IDENTIFIER, policy, fence=None)
        left = {each.snapshot_id for each in self.table.state.metadata.snapshots}
        self.expired |= {key: known for key, known in self.known.items() if key not in left}
        self.known = {key: known for key, known in self.known.items() if key in left}
        for branch, head in self.heads.items():
            kept = self.ancestors(head)
            assert head in kept, branch

    # --- checks --------------------------------------------------------------------------------

    @invariant()
    def table_is_sound_and_equals_the_model(self):
        if not hasattr(self, "table"):
            return
        state = self.table.state
        assert {name: ref.snapshot_id for name, ref in state.metadata.refs.items()} == self.heads
        checked = check_table(self.table.store.get, state.metadata_location)
        assert checked.keys() == self.known.keys()
        for snapshot_id, snapshot in checked.items():
            vectors = {each.referenced: each for each in snapshot.live if each.offset is not None}
            found = {
                short(each.path): short(vectors[each.path].path) if each.path in vectors else None
                for each in snapshot.live
                if each.content == 0
            }
            equality = frozenset(short(each.path) for each in snapshot.live if each.content == 2)
            content = self.known[snapshot_id].content
            assert (found, equality) == (content.vectors, content.equality_deletes)

    @invariant()
    def only_reachable_manifests_are_left(self):
        if not hasattr(self, "table") or getattr(self, "orphans_expected", False):
            return
        state = self.table.state
        needed = {each.manifest_list for each in state.metadata.snapshots}
        for snapshot in state.metadata.snapshots:
            needed |= {m.manifest_path for m in load_manifest_list(self.table.store, snapshot)}
        assert self.table.objects(".avro") == needed

    # --- machinery -----------------------------------------------------------------------------

    def run(self, branch, fault, kind, *, start=None, add=(), vectors=(), remove=(), equality=None):
        """Commit with a fault, and move the model as the rules say."""
        base = self.heads.get(branch, self.heads.get("main"))
        seen = self.known[start].content if start is not None else Content()
        new_vectors = {name: self.new_vector(name) for name in vectors}
        replaced = [seen.vectors[name] for name in vectors if seen.vectors[name] is not None]
        changeset = Changeset(
            kind=kind,
            branch=branch,
            added_data_files=tuple(self.files[name] for name in add),
            added_delete_files=tuple(
                self.files[name]
                for name in (*new_vectors.values(), *([equality] if equality else []))
            ),
            removed_entries=tuple(self.entry(start, name) for name in (*remove, *replaced)),
            validation=Validation(starting_snapshot_id=start),
        )
        self.arm(fault, branch)
        try:
            result = self.table.commit(changeset)
        except CommitConflictError:
            # The intruder of a race appends only, so it never makes the conflict.
            assert self.must_conflict(kind, start, base, vectors, remove)
            return
        except CommitUnknownError:
            assert fault == "lost request"
            self.orphans_expected = True  # nothing may be deleted
            return
        except StoreUnavailableError as error:
            self.require(fault == "crash before" and error.files_safe_to_delete)
            return
        finally:
            self.disarm()
        assert fault not in ("lost request", "crash before")
        assert not self.must_conflict(kind, start, base, vectors, remove)
        parent = self.heads.get(branch, self.heads.get("main"))
        before = self.known[parent].content if parent is not None else Content()
        after = {name: vector for name, vector in before.vectors.items() if name not in remove}
        after |= dict.fromkeys(add) | new_vectors
        self.learn(
            result.snapshot.snapshot_id,
            parent,
            Content(after, before.equality_deletes | ({equality} if equality else set())),
        )
        self.heads[branch] = result.snapshot.snapshot_id

    @staticmethod
    def require(holds):
        assert holds

    def must_conflict(self, kind, start, head, vectors, remove):
        if start is None or not (vectors or remove):
            return False
        if start not in self.ancestors(head):
            return True
        seen, now = self.known[start].content, self.known[head].content
        for name in (*vectors, *remove):
            if name not in now.vectors:
                return True
            if kind != CommitKind.DELETE and now.vectors[name] != seen.vectors[name]:
                return True
        if kind in (CommitKind.OVERWRITE, CommitKind.REWRITE):
            # Unpartitioned, so any equality delete since then may reach the removed files.
            return bool(now.equality_deletes - seen.equality_deletes)
        return False

    def arm(self, fault, branch):
        catalog, points = self.table.catalog, self.table.runtime.fail_points.armed

        def race(_):
            catalog.before_commit = None
            name = self.new_data()
            parent = self.heads.get(branch, self.heads.get("main"))
            snapshot = self.table.append(self.files[name], branch=branch).snapshot
            before = self.known[parent].content if parent is not None else Content()
            content = Content(before.vectors | {name: None}, before.equality_deletes)
            self.learn(snapshot.snapshot_id, parent, content)
            self.heads[branch] = snapshot.snapshot_id

        def lose(_):
            raise CommitUnknownError("answer lost")

        def lose_once(_):
            catalog.after_commit = None
            raise CommitUnknownError("answer lost")

        def crash(_):
            raise StoreUnavailableError("store is down")

        if fault == "race":
            catalog.before_commit = race
        elif fault == "lost request":
            catalog.before_commit = lose
        elif fault == "lost answer":
            catalog.after_commit = lose_once
        elif fault == "crash before":
            points["commit.before_swap"] = crash
        elif fault == "cold cache":
            clear_manifest_cache(self.table.store)

    def disarm(self):
        self.table.catalog.before_commit = self.table.catalog.after_commit = None
        self.table.runtime.fail_points.armed.clear()

    def draw_files(self, data):
        """A branch, a snapshot to plan on, and some of its data files."""
        branch = data.draw(st.sampled_from(sorted(self.heads)))
        history = self.ancestors(self.heads[branch])[:4]
        start = data.draw(st.sampled_from(history))
        names = sorted(self.known[start].content.vectors)
        chosen = (
            data.draw(st.lists(st.sampled_from(names), max_size=3, unique=True)) if names else []
        )
        return branch, start, chosen

    def picked_content(self, picked, head):
        """The change from the picked snapshot's parent to it, on top of `head`."""
        source, base = self.known[picked], self.known[head].content
        ever = self.expired | self.known
        old = ever[source.parent].content if source.parent is not None else Content()
        new = source.content
        vectors = {
            name: vector
            for name, vector in base.vectors.items()
            if name in new.vectors or name not in old.vectors
        }
        vectors |= {
            name: vector
            for name, vector in new.vectors.items()
            if name not in old.vectors or old.vectors[name] != vector
        }
        added = new.equality_deletes - old.equality_deletes
        return Content(vectors, base.equality_deletes | added)

    def ancestors(self, snapshot_id):
        found = []
        while snapshot_id in self.known:
            found.append(snapshot_id)
            snapshot_id = self.known[snapshot_id].parent
        return found

    def learn(self, snapshot_id, parent, content):
        assert snapshot_id not in self.known
        self.known[snapshot_id] = Known(parent, content)

    def entry(self, snapshot_id, name):
        """The entry of a file as a scan of `snapshot_id` sees it."""
        snapshot = self.table.state.metadata.snapshot_by_id(snapshot_id)
        for manifest in load_manifest_list(self.table.store, snapshot):
            for entry in load_manifest(self.table.store, manifest):
                if entry.is_live and entry.data_file.file_path == self.files[name].file_path:
                    return entry
        raise AssertionError(f"{name} is not live in {snapshot_id}")

    def new_data(self):
        name = f"d{next(self.numbers)}.parquet"
        self.files[name] = self.table.data(name.removesuffix(".parquet"))
        return name

    def new_vector(self, of):
        name = f"v{next(self.numbers)}.puffin"
        self.files[name] = self.table.vector(self.files[of], name.removesuffix(".puffin"))
        return name

    def new_equality(self):
        file = self.table.equality_delete(f"e{next(self.numbers)}")
        self.files[short(file.file_path)] = file
        return short(file.file_path)


def short(path):
    return path.removeprefix(f"{PREFIX}/")


Commits.TestCase.settings = settings(
    max_examples=40,
    stateful_step_count=25,
    deadline=None,
    # Minutes of shrinking at every failure; the steps are printed and replayable without it.
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
test_commits_beside_a_model = Commits.TestCase
