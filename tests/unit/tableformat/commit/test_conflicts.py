"""The conflict matrix of the docstring, executed cell by cell at both isolation levels."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from pyiceberg.expressions import AlwaysTrue, And, EqualTo, LessThan
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.table.snapshots import IsolationLevel
from pyiceberg.table.update import AddPartitionSpecUpdate
from pyiceberg.transforms import VoidTransform

from tableformat.commit import conflicts
from tableformat.commit.changeset import Changeset, CommitKind, Validation
from tableformat.commit.evolution import update_spec
from tableformat.errors import CommitConflictError
from tests.support.commit_tables import IDENTIFIER, CommitTable
from tests.support.table_checker import check_table

FILTER = And(EqualTo("part", "a"), LessThan("id", 10))
LEVEL_FREE = {"F", "R", "E"}  # the others hold under serializable isolation only


def parse_matrix() -> dict[tuple[str, str], set[str]]:
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in conflicts.__doc__.splitlines()
        if line.startswith("|") and not line.startswith("|--")
    ]
    header, *body = rows
    return {
        (ours, landed): set() if cell == "ok" else set(cell.split())
        for ours, *cells in body
        for landed, cell in zip(header[1:], cells, strict=True)
    }


MATRIX = parse_matrix()


class Scene:
    """Files `a` (ids 0-9) and `b` (ids 100-109) in partition a, `c` in partition b."""

    def __init__(self) -> None:
        self.table = table = CommitTable(partitioned=True)
        self.a = table.data("a", ids=range(10))
        self.b = table.data("b", ids=range(100, 110))
        self.c = table.data("c", part="b")
        self.start = table.append(self.a, self.b, self.c).snapshot.snapshot_id
        self.seen = {each.file_path: table.entry(each) for each in (self.a, self.b, self.c)}

    def new(self, name, *, matching):
        return self.table.data(name, ids=range(3, 6) if matching else range(500, 503))

    def change(self, kind, *, add=(), deletes=(), remove=()):
        """What another writer lands, always planned on the start."""
        self.table.commit(
            Changeset(
                kind=kind,
                added_data_files=tuple(add),
                added_delete_files=tuple(deletes),
                removed_entries=tuple(self.seen[each.file_path] for each in remove),
                validation=Validation(starting_snapshot_id=self.start),
            )
        )

    def ours(self, kind, isolation, **options):
        """What we commit: it concerns file `a`, and the rows that match FILTER."""
        adds = {
            CommitKind.APPEND: [self.new("ours", matching=True)],
            CommitKind.OVERWRITE: [self.new("ours", matching=True)],
            CommitKind.REWRITE: [self.table.data("ours", ids=range(10))],
        }
        gives_vector = kind == CommitKind.ROW_DELTA
        removes = kind in (CommitKind.OVERWRITE, CommitKind.REWRITE, CommitKind.DELETE)
        validation = Validation(
            starting_snapshot_id=self.start,
            isolation=isolation,
            conflict_filter=FILTER,
            **options.pop("validation", {}),
        )
        return Changeset(
            kind=kind,
            added_data_files=tuple(adds.get(kind, ())),
            added_delete_files=(self.table.vector(self.a, "ours"),) if gives_vector else (),
            removed_entries=(self.seen[self.a.file_path],) if removes else (),
            validation=validation,
            **options,
        )


@dataclass(frozen=True)
class Landed:
    kind: CommitKind
    what: str
    letters: frozenset[str]  # checks that it gives a reason for
    land: Callable[[Scene], None]

    def __str__(self) -> str:
        return f"{self.kind.value}: {self.what}"


def landed(kind, what, letters, **change):
    def land(scene):
        scene.change(kind, **{name: list(files(scene)) for name, files in change.items()})

    return Landed(kind, what, frozenset(letters.split()), land)


APPEND, ROW_DELTA = CommitKind.APPEND, CommitKind.ROW_DELTA
OVERWRITE, REWRITE, DELETE = CommitKind.OVERWRITE, CommitKind.REWRITE, CommitKind.DELETE
MATCHING = {"add": lambda s: [s.new("theirs", matching=True)]}
OTHER = {"add": lambda s: [s.new("theirs", matching=False)]}
REMOVE_A = {"remove": lambda s: [s.a]}
REMOVE_B = {"remove": lambda s: [s.b]}

VARIANTS = [
    landed(APPEND, "rows that match", "P", **MATCHING),
    landed(APPEND, "rows that do not match", "", **OTHER),
    landed(APPEND, "another partition", "", add=lambda s: [s.table.data("theirs", part="b")]),
    landed(ROW_DELTA, "rows that match", "P", **MATCHING),
    landed(ROW_DELTA, "vector on a", "F D", deletes=lambda s: [s.table.vector(s.a, "theirs")]),
    landed(ROW_DELTA, "vector on b", "D", deletes=lambda s: [s.table.vector(s.b, "theirs")]),
    landed(ROW_DELTA, "vector on c", "", deletes=lambda s: [s.table.vector(s.c, "theirs")]),
    landed(ROW_DELTA, "equality delete", "E", deletes=lambda s: [s.table.equality_delete("e")]),
    landed(
        ROW_DELTA,
        "equality delete in another partition",
        "",
        deletes=lambda s: [s.table.equality_delete("e", part="b")],
    ),
    landed(ROW_DELTA, "removes a", "F R D", **OTHER, **REMOVE_A),
    landed(OVERWRITE, "a by rows that match", "F R D P", **MATCHING, **REMOVE_A),
    landed(OVERWRITE, "a by rows that do not match", "F R D", **OTHER, **REMOVE_A),
    landed(OVERWRITE, "b by rows that match", "P", **MATCHING, **REMOVE_B),
    landed(OVERWRITE, "b by rows that do not match", "", **OTHER, **REMOVE_B),
    landed(REWRITE, "a", "F R", **MATCHING, **REMOVE_A),
    landed(REWRITE, "b", "", **OTHER, **REMOVE_B),
    landed(
        REWRITE,
        "vector on a",
        "F",
        deletes=lambda s: [s.table.vector(s.a, "theirs")],
        **OTHER,
        **REMOVE_B,
    ),
    landed(DELETE, "a", "F R D", **REMOVE_A),
    landed(DELETE, "b", "", **REMOVE_B),
]


@pytest.mark.parametrize("isolation", list(IsolationLevel), ids=lambda each: each.value)
@pytest.mark.parametrize("variant", VARIANTS, ids=str)
@pytest.mark.parametrize("ours", list(CommitKind), ids=lambda each: each.value)
def test_cell_of_the_matrix_holds(ours, variant, isolation):
    reasons = MATRIX[ours.value, variant.kind.value] & variant.letters
    if isolation == IsolationLevel.SNAPSHOT:
        reasons &= LEVEL_FREE
    scene = Scene()
    changeset = scene.ours(ours, isolation)
    variant.land(scene)
    if not reasons:
        scene.table.commit(changeset)
    else:
        with pytest.raises(CommitConflictError) as caught:
            scene.table.commit(changeset)
        landed_id = scene.table.head()
        assert set(caught.value.context["checks"]) == reasons
        assert all(f"snapshot {landed_id} (" in each for each in caught.value.conflicts)
        assert all("memory://" in each for each in caught.value.conflicts)
        assert caught.value.files_safe_to_delete
    check_table(scene.table.store.get, scene.table.state.metadata_location)


def failed_checks(scene, changeset) -> set[str]:
    try:
        scene.table.commit(changeset)
    except CommitConflictError as error:
        return set(error.context["checks"])
    return set()


def test_every_letter_of_every_cell_was_executed():
    for (ours, landed_kind), letters in MATRIX.items():
        given = set().union(*(v.letters for v in VARIANTS if v.kind.value == landed_kind))
        assert letters <= given, (ours, landed_kind)


def test_rows_of_the_matrix_are_the_checks_of_the_code():
    for kind in CommitKind:
        in_row = set().union(*(cell for (ours, _), cell in MATRIX.items() if ours == kind.value))
        assert in_row == {check.value for check in conflicts.CHECKS[kind]}


@pytest.mark.parametrize("ours", list(CommitKind), ids=lambda each: each.value)
def test_without_an_isolation_level_only_the_table_is_protected(ours):
    for variant in VARIANTS:
        reasons = MATRIX[ours.value, variant.kind.value] & variant.letters & LEVEL_FREE
        if ours == CommitKind.ROW_DELTA:
            reasons -= {"E"}  # it removes no data file
        scene = Scene()
        changeset = scene.ours(ours, None)
        variant.land(scene)
        assert failed_checks(scene, changeset) == reasons, str(variant)


def test_delete_that_allows_new_deletes_minds_vectors_on_its_files_only():
    allow = {"allow_new_deletes": True}
    for variant in VARIANTS:
        scene = Scene()
        changeset = scene.ours(ROW_DELTA, IsolationLevel.SERIALIZABLE, validation=allow)
        variant.land(scene)
        reasons = MATRIX["row_delta", variant.kind.value] & variant.letters & {"F", "P"}
        assert failed_checks(scene, changeset) == reasons, str(variant)


def test_rewrite_that_keeps_sequence_numbers_lets_equality_deletes_land():
    scene = Scene()
    changeset = scene.ours(REWRITE, None, data_sequence_number=1)
    scene.table.row_delta(deletes=[scene.table.equality_delete("e")])
    scene.table.commit(changeset)
    rewritten, delete = scene.table.live()["ours"], scene.table.live()["e-eq"]
    assert rewritten.sequence_number < delete.sequence_number


def test_vector_outside_of_the_filter_is_still_a_conflict():
    # iceberg #15966: a filtered check misses it, and the file gets two vectors.
    scene = Scene()
    ours = Changeset(
        kind=ROW_DELTA,
        added_delete_files=(scene.table.vector(scene.c, "ours"),),
        validation=Validation(
            starting_snapshot_id=scene.start,
            isolation=IsolationLevel.SNAPSHOT,
            conflict_filter=EqualTo("part", "a"),
        ),
    )
    scene.change(ROW_DELTA, deletes=[scene.table.vector(scene.c, "theirs")])
    with pytest.raises(CommitConflictError, match="checks=F"):
        scene.table.commit(ours)


def test_vector_on_a_file_that_compaction_took_is_a_conflict():
    # REPLACE is invisible to most checks of the reference implementation.
    scene = Scene()
    ours = scene.ours(ROW_DELTA, None)
    scene.change(REWRITE, add=[scene.new("small", matching=True)], remove=[scene.a])
    with pytest.raises(CommitConflictError, match=r"\(replace\) removed a referenced data file"):
        scene.table.commit(ours)


def test_conflict_between_two_harmless_commits_is_found():
    scene = Scene()
    ours = scene.ours(OVERWRITE, IsolationLevel.SNAPSHOT)
    scene.table.append(scene.table.data("before", part="b"))
    scene.change(ROW_DELTA, deletes=[scene.table.vector(scene.a, "theirs")])
    guilty = scene.table.head()
    scene.table.append(scene.table.data("after", part="b"))
    with pytest.raises(CommitConflictError) as caught:
        scene.table.commit(ours)
    assert caught.value.conflicts == (
        f"snapshot {guilty} (delete) added a deletion vector for: {scene.a.file_path}",
    )


def test_vectors_replaced_in_turn_are_no_conflict_for_one_who_saw_the_last():
    # iceberg #17764: the window holds two successive vectors of a file; ours replaces the newest.
    scene = Scene()
    table = scene.table
    first = table.vector(scene.a, "first")
    table.row_delta(deletes=[first], start=scene.start)
    second = table.vector(scene.a, "second", cardinality=2)
    table.row_delta(deletes=[second], removed=[table.entry(first)], start=table.head())
    third = table.vector(scene.a, "third", cardinality=3)
    table.row_delta(deletes=[third], removed=[table.entry(second)], start=scene.start)
    assert "third.puffin@4" in table.live()


def test_global_equality_delete_reaches_removed_files_of_any_partition():
    table = CommitTable()
    x = table.data("x", ids=range(10))
    start = table.append(x).snapshot.snapshot_id
    entry = table.entry(x)
    table.row_delta(deletes=[table.equality_delete("e")])
    with pytest.raises(CommitConflictError, match="checks=E"):
        table.commit(
            Changeset(
                kind=REWRITE,
                removed_entries=(entry,),
                added_data_files=(table.data("y"),),
                validation=Validation(starting_snapshot_id=start),
            )
        )


def test_global_equality_delete_reaches_removed_files_of_another_spec():
    # R03: an unpartitioned delete is global, also after partition evolution.
    scene = Scene()
    changeset = scene.ours(REWRITE, None)
    update_spec(scene.table.environment, IDENTIFIER, lambda spec: spec.remove_field("part"))
    scene.table.row_delta(deletes=[scene.table.equality_delete("e").with_(spec_id=1, partition=())])
    with pytest.raises(CommitConflictError, match="checks=E"):
        scene.table.commit(changeset)


def test_equality_delete_of_void_fields_reaches_removed_files_of_another_spec():
    # R03: what a v1 table is left with when its last partition field is dropped.
    scene = Scene()
    changeset = scene.ours(REWRITE, None)
    void = PartitionSpec(PartitionField(2, 1000, VoidTransform(), "part"), spec_id=1)
    catalog = scene.table.environment.catalog
    catalog.commit(scene.table.state, [AddPartitionSpecUpdate(spec=void)])
    delete = scene.table.equality_delete("e").with_(spec_id=1, partition=(None,))
    scene.table.row_delta(deletes=[delete])
    with pytest.raises(CommitConflictError, match="checks=E"):
        scene.table.commit(changeset)


def test_filter_that_matches_everything_makes_any_append_a_conflict():
    scene = Scene()
    scene.table.append(scene.table.data("theirs", part="b"))
    with pytest.raises(CommitConflictError, match="checks=P"):
        scene.table.commit(
            Changeset(
                kind=ROW_DELTA,
                added_delete_files=(scene.table.vector(scene.a, "ours"),),
                validation=Validation(
                    starting_snapshot_id=scene.start,
                    isolation=IsolationLevel.SERIALIZABLE,
                    conflict_filter=AlwaysTrue(),
                ),
            )
        )
