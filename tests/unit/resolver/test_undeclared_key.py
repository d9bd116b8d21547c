"""A key that only icefold knows, wherever a key is needed: as a declared one, beside a dict."""

import json
import random
from collections import Counter

import pyarrow as pa
import pytest
from pyiceberg.types import LongType

import tableformat as tf
from resolver import resolve
from tableformat import InvalidInputError
from tests.support.adopted_tables import NAME, ROWS, Theirs
from tests.support.change_events import envelope


@pytest.fixture(params=[2, 3], ids=["v2", "v3"])
def theirs(request, tmp_path):
    made = Theirs(tmp_path, version=request.param)
    made.cli("adopt", NAME, "--key", "id", "--apply", "key")
    made.table = made.open()
    made.before = made.facts()
    yield made
    assert made.facts() == made.before  # no test leaves a trace of the key


@pytest.fixture
def v3(tmp_path):
    made = Theirs(tmp_path, version=3)
    made.table = made.open(**{f"key.{NAME}": "id"})
    made.before = made.facts()
    yield made
    assert made.facts() == made.before


def keys(*ids):
    return pa.table({"id": pa.array(ids, pa.int64())})


def arrow(rows):
    ids, statuses, numbers = (list(column) for column in zip(*rows, strict=True))
    return pa.table(
        {"id": pa.array(ids, pa.int64()), "status": statuses, "n": pa.array(numbers, pa.int64())}
    )


def event(op, before=None, after=None):
    def row(given):
        return given and {**dict(zip(("id", "status", "n"), given, strict=True)), "x": None}

    return envelope(op, before=row(before), after=row(after))


def events(*values):
    return pa.table({"value": pa.array(values, pa.string())})


@pytest.mark.parametrize("seed", range(2))
def test_staged_changes_of_an_undeclared_key_leave_what_a_dict_says(theirs, seed):
    chance, model = random.Random(seed), {row[0]: row for row in ROWS}
    domain = [*range(15), None]
    for number in range(3):
        chosen = chance.sample(domain, 7)
        new = [(key, f"of {number}", chance.randrange(9)) for key in chosen[:4]]
        theirs.table.stage(arrow(new), deletes=keys(*chosen[4:]))
        model |= {row[0]: row for row in new}
        for key in chosen[4:]:
            model.pop(key, None)
        staged = theirs.table.scan(branch="staging", columns=["id", "status", "n"]).to_arrow()
        assert Counter(map(tuple, (row.values() for row in staged.to_pylist()))) == Counter(
            model.values()
        )
        resolve(theirs.table)
        assert theirs.rows() == Counter(model.values())
    with pytest.raises(InvalidInputError, match="upserted more than once"):
        theirs.table.stage(arrow([(1, "a", 1), (1, "b", 1)]))


def test_change_events_of_an_undeclared_key_leave_what_a_dict_says(theirs):
    given = [
        event("c", after=(20, "new", 1)),
        event("u", before=(1, "new", 1), after=(1, "paid", 1)),
        event("d", before=(2, "new", 2)),
        event("u", before=(3, "new", 0), after=(30, "moved", 0)),
        event("u", before=(1, "paid", 1), after=(1, "sent", 1)),
    ]
    theirs.table.write_changes(events(*given), format_name="debezium-json")
    theirs.table.write_changes(arrow([(4, "typed", 4)]).append_column("x", [[0.5]]))
    resolve(theirs.table)
    gone = {1, 2, 3, 4}
    assert theirs.rows() == Counter(
        [row for row in ROWS if row[0] not in gone]
        + [(20, "new", 1), (1, "sent", 1), (30, "moved", 0), (4, "typed", 4)]
    )


@pytest.mark.parametrize(
    "wrong",
    [
        event("c", after=(None, "no key", 1)),
        event("d", before=(None, "no key", 1)),
        json.dumps({"op": "c", "after": {"status": "no key"}}),
    ],
)
def test_event_without_its_key_is_not_taken_for_one_of_the_null_key(v3, wrong):
    for given, format_name in ((events(wrong), "debezium-json"),
                               (arrow([(None, "no key", 1)]), "upsert")):  # fmt: skip
        with pytest.raises(InvalidInputError):
            v3.table.write_changes(given, format_name=format_name)
    assert v3.table.refresh().state.ref("staging") is None


def test_statements_and_upserts_know_the_undeclared_key(v3):
    catalog = tf.TableCatalog(v3.table.environment)
    catalog.sql(f"DELETE FROM {NAME} WHERE id < 3")
    catalog.sql(f"UPDATE {NAME} SET status = 'paid' WHERE id = 4")
    with pytest.raises(InvalidInputError, match=r"primary key to more than one row.*id=5"):
        catalog.sql(f"UPDATE {NAME} SET id = 5 WHERE id = 6")
    for values in ([(4, "again", 1), (None, "null", 0)], [(20, "new", 2), (None, "other", 0)]):
        v3.table.upsert(arrow(values))
    assert v3.rows() == Counter(
        [row for row in ROWS if row[0] not in (0, 1, 2, 4)]
        + [(4, "again", 1), (20, "new", 2), (None, "other", 0)]
    )
    with pytest.raises(InvalidInputError, match="upserted more than once"):
        v3.table.upsert(arrow([(None, "a", 1), (None, "b", 1)]))


def test_lookups_find_rows_by_the_undeclared_key_with_an_index_and_without(theirs):
    theirs.table.append(arrow([(None, "null", 0)]))
    for source in ("scan", "index"):
        found = theirs.table.lookup([4, 99, None], columns=["id", "status"])
        assert found.source.value == source, found.reason
        assert list(zip(found.key.tolist(), found.rows["status"].to_pylist(), strict=True)) == [
            (0, "new"),
            (2, "null"),
        ]
        theirs.table.stage(deletes=keys(99))
        resolve(theirs.table)  # which builds the index


def test_changelog_pairs_rows_by_the_undeclared_key(theirs):
    theirs.table.append(arrow([(None, "null", 0)]))
    start = theirs.table.refresh().current_snapshot().snapshot_id
    theirs.table.stage(arrow([(1, "paid", 1), (None, "other", 0), (50, "new", 5)]), keys(2))
    resolve(theirs.table)
    found = theirs.table.changes(start, columns=["id", "status"]).to_arrow().to_pylist()
    assert Counter((row["_change_type"], row["id"], row["status"]) for row in found) == Counter(
        [
            ("-U", 1, "new"), ("+U", 1, "paid"), ("-U", None, "null"), ("+U", None, "other"),
            ("-D", 2, "new"), ("+I", 50, "new"),
        ]
    )  # fmt: skip


def test_kept_join_takes_tables_of_an_undeclared_key(theirs):
    catalog = tf.TableCatalog(theirs.table.environment)
    kinds = pa.schema([("kind", pa.int64()), ("label", pa.string())])
    labels = catalog.create_table("shop.labels", kinds, primary_key=["kind"])
    labels.append(pa.table({"kind": [0, 1, 2], "label": ["a", "b", "c"]}, schema=kinds))
    theirs.table.stage(deletes=keys(8))
    resolve(theirs.table)
    definition = {
        "into": "shop.labelled",
        "from": {"table": NAME, "as": "o"},
        "join": [{"table": "shop.labels", "as": "l", "how": "left", "on": {"o.n": "l.kind"}}],
        "select": {"id": "o.id", "label": "l.label"},
        "key-column": "row_key",
    }
    theirs.table.add_index("by_n", ["n"])
    theirs.before = theirs.facts()  # with the index's declaration
    with catalog.delta_join(definition) as join:
        join.run()
        theirs.table.stage(arrow([(0, "new", 2)]), deletes=keys(1))
        resolve(theirs.table)
        join.run()
    result = catalog.load_table("shop.labelled")
    resolve(result)
    found = result.scan(columns=["id", "label"]).to_arrow().to_pylist()
    assert {row["id"]: row["label"] for row in found} == {
        0: "c", 2: "c", 3: "a", 4: "b", 5: "c", 6: "a", 7: "b",
    }  # fmt: skip


def test_schema_evolution_keeps_the_undeclared_key_and_declares_nothing(theirs):
    theirs.table.update_schema(lambda change: change.rename_column("id", "number"))
    theirs.table.update_schema(lambda change: change.add_column("later", LongType()))
    assert theirs.table.primary_key == ("number",)
    new = pa.table({"number": [1], "status": ["paid"], "later": [7]})
    theirs.table.stage(new, deletes=pa.table({"number": [2]}))
    resolve(theirs.table)
    found = theirs.table.scan(columns=["number", "status"]).to_arrow().to_pylist()
    assert Counter(row["number"] for row in found) == Counter({0, 1, 3, 4, 5, 6, 7, 8})
    assert {"number": 1, "status": "paid"} in found
    schemas, properties, version = theirs.facts()
    assert not any(each.get("identifier-field-ids") for each in schemas)
    assert not any(field["required"] for each in schemas for field in each["fields"])
    theirs.before = [schemas, *theirs.before[1:]]  # the columns were asked for
    assert [properties, version] == theirs.before[1:]


def test_set_key_declares_an_undeclared_key(v3):
    v3.cli("table", "set-key", NAME, "id")
    schemas, *rest = v3.facts()
    assert schemas[-1]["identifier-field-ids"] == [1]
    assert rest == v3.before[1:]
    v3.before = v3.facts()


def test_table_whose_key_property_is_wrong_says_so_where_a_key_is_needed(theirs):
    theirs.table.set_properties({"icefold.primary-key": "n"})
    catalog = tf.TableCatalog(theirs.table.environment)
    theirs.table = catalog.load_table(NAME)
    assert theirs.table.scan().to_arrow().num_rows == len(ROWS)
    before = theirs.location
    for use in (
        lambda: theirs.table.stage(deletes=keys(1)),
        lambda: theirs.table.lookup([1]),
        lambda: theirs.table.changes(None),
        lambda: theirs.table.write_changes(events(event("d", before=ROWS[0]))),
        lambda: theirs.table.upsert(arrow([(1, "a", 1)])),
        lambda: resolve(theirs.table, staging="main", target="main"),
    ):
        with pytest.raises(InvalidInputError, match=f"do not mean the same columns.*{NAME}"):
            use()
    assert theirs.location == before
    theirs.table.set_properties({"icefold.primary-key": "id"})
    theirs.table.stage(deletes=keys(1))
