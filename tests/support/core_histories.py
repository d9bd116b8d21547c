"""Steps of Iceberg's Java core API, in the random histories of `table_histories`.

It is what services write with that are no engine: commits of files that they have written, in all
the ways of `Table`, `Transaction` and `Catalog`. Equality deletes are written under a spec without
partitions, which reaches every row of a key, or all is in buckets of the key from the beginning.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from typing import Any

import pytest

import tableformat as tf
from resolver import resolve
from tests.support.interop_engines import LINEAGE
from tests.support.java_iceberg import JavaIcebergError
from tests.support.table_histories import (
    KEYS,
    Column,
    Row,
    Rows,
    Skipped,
    Staged,
    TableHistory,
    by_key,
    compare,
    local_path,
    plain,
)

FAR_MS = 32_472_144_000_000  # the year 2999
LINEAGE_IDS = dict(zip(LINEAGE, ("2147483540", "2147483539"), strict=True))
TYPES = ("long", "int", "string", "double", "date", "decimal(9, 2)")
WEIGHTS = {
    "stage": 5, "resolve": 5, "resolve_some": 2, "resolve_in_place": 1, "compact": 1, "expire": 1,
    "other_maintenance": 2, "icefold_on_main": 1, "change_main": 8, "change_staging": 8,
    "transaction": 3, "write_for_audit": 1.5, "publish_audited": 1.5, "cherrypick": 1.5,
    "rollback": 1, "fast_forward": 0.7, "move_staging": 0.4, "lose_staging": 0.5, "refs": 1,
    "rewrite_manifests": 1, "expire_snapshots": 1.2, "replace_table": 0.4, "change_columns": 2,
    "change_spec": 1.5, "change_order": 0.3, "change_properties": 1.5, "move_table": 0.4,
    "statistics": 0.6, "upgrade": 0.7, "set_key_again": 0.3, "other_format": 0.6,
}  # fmt: skip
CHANGES = {
    "append": 2, "row_delta": 5, "by_filter": 2, "copy": 2, "replace_partitions": 1.5,
    "delete_file": 1, "rewrite": 2,
}  # fmt: skip

Call = list[Any]


@dataclass(frozen=True)
class Change:
    """Calls up to the commit; the rows that it brings, and the keys of those that it takes away.

    `gone` is None where the partitions of what is written say so.
    """

    calls: list[Call]
    new: Rows
    gone: set[int] | None


class CoreHistory(TableHistory):
    """The core API's steps."""

    weights = WEIGHTS

    def create(self) -> None:
        self.is_bucketed = self.rng.random() < 0.25
        self.untold: set[int] = set()  # staged, and to be refused
        self.replaces: dict[int, list[list[Any]]] = {}  # partitions, by the snapshot that did
        by = self.rng.choice(["", "", "region", "bucket(2, id)", "truncate(10, amount)"])
        placed = "PARTITIONED BY (bucket(2, id)) " if self.is_bucketed else ""
        self.spark(
            "CREATE TABLE T (id bigint NOT NULL, region string, amount bigint NOT NULL) USING "
            f"iceberg {placed}TBLPROPERTIES ('format-version'='{self.version}')",
            "ALTER TABLE T SET IDENTIFIER FIELDS id",
        )
        if by and not self.is_bucketed:
            self.spark(f"ALTER TABLE T ADD PARTITION FIELD {by}")

    # -- the other tool ----------------------------------------------------------------------------

    def core(
        self, *commits: list[Call], in_transaction: bool = False, may_say: str = ""
    ) -> list[list[Any]]:
        """Commit; where Java refuses with these words the step does not apply.

        Returns:
            Spec and partition of each data file that was written.
        """
        self.statements += ["; ".join(map(json.dumps, calls)) for calls in commits]
        asked = {"commits": [*commits], "in_transaction": in_transaction}
        try:
            return self.shared.java.request("core", table=self.shared.java_name, **asked)
        except JavaIcebergError as error:
            said = re.search(r"Exception: ([^\n]+)", str(error))
            if not may_say or said is None or not re.search(may_say, said[1]):
                raise
            self.refusals["Java: " + re.sub(r"\d{5,}|/\S+", "..", said[1])[:70]] += 1
            raise Skipped from None

    def read(self, branch: str) -> dict[str, Any]:
        """Its rows and files, as the generic reader has them."""
        asked = {"table": self.shared.java_name, "snapshot_id": self.head(branch)}
        return self.shared.java.request("core_rows", **asked)

    def data(
        self, rows: Iterable[Row | Mapping[str, Any]], form: str = "parquet"
    ) -> dict[str, Any]:
        """The argument that stands for new files of these rows, or of rows that were read."""
        listed = [
            {str(c.field_id): _json(row.get(c.field_id), c) for c in self.columns}
            if 1 in row
            else {LINEAGE_IDS.get(k, k): v for k, v in row.items() if k not in ("_file", "_pos")}
            for row in rows
        ]
        with_ids = self.rng.random() < 0.6
        return {"data": {"rows": listed, "format": form, "with_ids": with_ids}}

    def keys(self, keys: Iterable[int], form: str = "parquet") -> dict[str, Any]:
        """The argument that stands for new equality deletes."""
        specs = self.metadata()["partition-specs"]
        fit = [s["spec-id"] for s in specs if self.is_bucketed or not s["fields"]]
        if not fit:  # it was expired
            raise Skipped
        rows = [{1: key} for key in sorted(keys)]
        return {"equality": {"rows": rows, "format": form, "spec": fit[-1]}}

    # -- changes -----------------------------------------------------------------------------------

    def change_main(self) -> None:
        self.change("main")

    def change_staging(self) -> None:
        if self.staging is None:
            raise Skipped
        self.change("staging")

    def change(self, branch: str) -> None:
        name = self.rng.choices([*CHANGES], [*CHANGES.values()])[0]
        read = self.read(branch)
        made = getattr(self, name)(branch, read)
        to = [["toBranch", branch]] if branch == "staging" else []
        refusal = "some, but not all, rows match"
        places = self.core([*made.calls, *to, ["commit"]], may_say=refusal)
        gone = self.gone(made, read, places, self.head(branch))
        self.note(branch, [(made.new, gone)])
        numbered = any(each[0] == "dataSequenceNumber" for each in made.calls)
        if branch == "staging" and numbered:
            self.untold.add(self.head("staging"))

    def gone(
        self, made: Change, read: dict[str, Any], places: list[list[Any]], snapshot: int | None
    ) -> set[int]:
        """The keys of rows that a snapshot took away."""
        if made.gone is not None:
            return made.gone
        assert snapshot is not None
        self.replaces[snapshot] = places
        return _replaced(read, places)

    def note(self, branch: str, changes: Sequence[tuple[Rows, set[int]]]) -> None:
        """The newest snapshots of a branch made these changes, one each."""
        state = self.main_before if branch == "main" else self.staging_before
        for made, (new, gone) in zip(self.newest(branch, len(changes)), changes, strict=True):
            rows = {**{k: r for k, r in state.rows.items() if k not in gone}, **new}
            state = replace(state, rows=rows)
            if branch == "main":
                self.states[made] = state
            else:
                self.on_staging(rows, gone, new.values(), made)

    def newest(self, branch: str, count: int) -> list[int]:
        parents = {
            s["snapshot-id"]: s.get("parent-snapshot-id") for s in self.metadata()["snapshots"]
        }
        found = [self.head(branch)]
        while len(found) < count:
            found.append(parents[found[-1]])
        return found[::-1]

    def append(self, _branch: str, _read: dict[str, Any]) -> Change:
        new = self.fresh(self.new_keys())
        method = self.rng.choice(["newAppend", "newFastAppend"])
        return Change([[method], ["appendFile", self.data(new)]], by_key(new), set())

    def row_delta(self, branch: str, read: dict[str, Any]) -> Change:
        """Upserts and deletes, by key and by position."""
        head, live = self.head(branch), {row["1"]: row for row in read["rows"]}
        upserts = self.draw(0, 3)
        gone = upserts | self.draw(0, 2)
        gone |= set(self.rng.sample(sorted(live), min(len(live), 2)))
        at = {k for k in gone & live.keys() if self.rng.random() < 0.4}
        new = self.fresh(upserts)
        calls: list[Call] = [["newRowDelta"], ["validateFromSnapshot", head]]
        if new:
            calls.append(["addRows", self.data(new)])
        if gone - at:
            calls.append(["addDeletes", self.keys(gone - at)])
        if at:
            places = [[live[key]["_file"], live[key]["_pos"]] for key in sorted(at)]
            calls += [["deletePositions", head, places], ["validateDeletedFiles"]]
        return Change(calls, by_key(new), gone)

    def by_filter(self, _branch: str, read: dict[str, Any]) -> Change:
        """Of whole files, or Java refuses."""
        choices = [
            (True, lambda _row: True),
            ({"type": "gt-eq", "term": "id", "value": 100}, lambda row: row["1"] >= 100),
            ({"type": "lt", "term": "id", "value": 4}, lambda row: row["1"] < 4),
            ({"type": "eq", "term": "region", "value": "eu"}, lambda row: row.get("2") == "eu"),
        ]
        [(text, matches)] = self.rng.choices(choices, [1, 3, 3, 3])
        gone = {row["1"] for row in read["rows"] if matches(row)}
        if self.rng.random() < 0.5:
            return Change([["newDelete"], ["deleteFromRowFilter", {"filter": text}]], {}, gone)
        new = self.fresh(self.new_keys())
        calls = [["newOverwrite"], ["overwriteByRowFilter", {"filter": text}]]
        return Change([*calls, ["addFile", self.data(new)]], by_key(new), gone)

    def one_file(self, branch: str, read: dict[str, Any]) -> tuple[Call, list[dict[str, Any]]]:
        """The argument that stands for a live data file, and its rows."""
        if not read["files"]:
            raise Skipped
        path = self.rng.choice(sorted(read["files"]))
        rows = [row for row in read["rows"] if row["_file"] == path]
        return {"live": [self.head(branch), path]}, rows

    def copy(self, branch: str, read: dict[str, Any]) -> Change:
        """A file once more, with changes."""
        file, rows = self.one_file(branch, read)
        fate = {row["1"]: self.rng.choice(["keep", "keep", "update", "drop"]) for row in rows}
        gone = {key for key, each in fate.items() if each != "keep"}
        new = self.fresh(key for key, each in fate.items() if each == "update")
        ways = ("newOverwrite", "deleteFile", "addFile"), ("newRowDelta", "removeRows", "addRows")
        update, remove, add = self.rng.choice(ways)
        calls: list[Call] = [[update], [remove, file]]
        for each in (new, [row for row in rows if row["1"] not in gone]):
            if each:
                calls.append([add, self.data(each)])
        return Change(calls, by_key(new), gone)

    def delete_file(self, branch: str, read: dict[str, Any]) -> Change:
        """By its path, too, which tells Java less."""
        file, rows = self.one_file(branch, read)
        named = self.rng.choice([file, {"path": file["live"][1]}])
        gone = {row["1"] for row in rows}
        return Change([["newDelete"], ["deleteFile", named]], {}, gone)

    def replace_partitions(self, _branch: str, _read: dict[str, Any]) -> Change:
        new = self.fresh(self.new_keys())
        calls = [["newReplacePartitions"], ["addFile", self.data(new)]]
        return Change(calls, by_key(new), None)

    def rewrite(self, branch: str, read: dict[str, Any]) -> Change:
        file, rows = self.one_file(branch, read)
        head = self.head(branch)
        calls: list[Call] = [["newRewrite"], ["validateFromSnapshot", head], ["deleteFile", file]]
        if rows:
            calls.append(["addFile", self.data(rows)])
            if self.rng.random() < 0.5:
                calls.append(["dataSequenceNumber", self.snapshot(head)["sequence-number"]])
        return Change(calls, {}, set())

    def transaction(self) -> None:
        """Several commits at once, on both branches, and a column."""
        commits, made = [], {"main": [], "staging": []}
        branches = [*made] if self.staging else ["main"]
        for _ in range(self.rng.randint(2, 4)):
            branch = self.rng.choice(branches)
            new = by_key(self.fresh(self.draw() if self.rng.random() < 0.6 else self.new_keys()))
            gone = {key for key in new if key in KEYS} | self.draw(0, 1)
            calls = [["newRowDelta"], ["addRows", self.data(new.values())]]
            calls += [["addDeletes", self.keys(gone)]] if gone else []
            calls += [["toBranch", branch]] if branch == "staging" else []
            commits.append([*calls, ["commit"]])
            made[branch].append((new, gone))
        name = f"c{self.number}"
        commits.append([["updateProperties"], ["set", "a", name], ["commit"]])
        if len(self.columns) < 6:
            kind = self.rng.choice(TYPES)
            commits.append([["updateSchema"], ["addColumn", name, {"type": kind}], ["commit"]])
        self.core(*commits, in_transaction=True)
        for branch, changes in made.items():
            if changes:
                self.note(branch, changes)
        self.read_columns()

    # -- picks, branches, history ------------------------------------------------------------------

    def manage(self, *calls: Call, may_say: str = "") -> None:
        self.core([["manageSnapshots"], *calls, ["commit"]], may_say=may_say)

    def write_for_audit(self) -> None:
        """Staged in no branch."""
        name, read = f"w{self.number}", self.read("main")
        kind = self.rng.choice([self.append, self.append, self.replace_partitions, self.row_delta])
        made = kind("main", read)
        known = {s["snapshot-id"] for s in self.metadata()["snapshots"]}
        places = self.core([*made.calls, ["set", "wap.id", name], ["stageOnly"], ["commit"]])
        [new] = {s["snapshot-id"] for s in self.metadata()["snapshots"]} - known
        gone = self.gone(made, read, places, new)
        self.wap[name] = Staged(new, frozenset(gone), tuple(made.new.values()))
        left = {k: r for k, r in self.main.rows.items() if k not in gone}
        self.states[new] = replace(self.main, rows={**left, **made.new})

    def publish_audited(self) -> None:
        if not self.wap:
            raise Skipped
        item = self.wap.pop(self.rng.choice(sorted(self.wap)))
        self.pick(item, picked=self.main.picked)

    def cherrypick(self) -> None:
        if not self.waiting:
            raise Skipped
        item = self.rng.choice(self.waiting)
        self.pick(item, picked=self.main.picked | {item.snapshot_id})

    def pick(self, item: Staged, picked: frozenset[int]) -> None:
        # Of partitions that were replaced Java removes files: a key that has moved since stays.
        places = self.replaces.get(item.snapshot_id)
        gone = item.deletes if places is None else _replaced(self.read("main"), places)
        self.manage(["cherrypick", item.snapshot_id], may_say="cherry[- ]?pick|Missing")
        if self.head("main") not in self.states:  # else it was fast-forwarded
            left = {k: r for k, r in self.main_before.rows.items() if k not in gone}
            self.on_main({**left, **by_key(item.rows)}, picked=picked)

    def rollback(self) -> None:
        to = self.older_head()
        how = self.rng.choice(["rollbackTo", "setCurrentSnapshot", "rollbackToTime"])
        if how == "rollbackToTime":
            to = self.snapshot(to)["timestamp-ms"] + 1
        before = self.head("main")
        self.manage([how, to])
        if self.head("main") not in self.states:  # what converted deletes before a publish
            self.manage(["setCurrentSnapshot", before])

    def fast_forward(self) -> None:
        if self.staging is None:
            raise Skipped
        names = self.rng.choice([("main", "staging"), ("staging", "main")])
        self.manage(["fastForwardBranch", *names], may_say="not an ancestor")

    def move_staging(self) -> None:
        """To main: what waits is given up."""
        if self.staging is None:
            raise Skipped
        self.manage(["replaceBranch", "staging", "main"])
        at = self.main.cursor
        self.log = self.log[:at]
        self.states = {k: s for k, s in self.states.items() if s.cursor <= at}

    def lose_staging(self) -> None:
        """Resolve says what is missing."""
        head = self.head("staging")
        if head is None:
            raise Skipped
        renamed = self.rng.random() < 0.5
        ways = ["renameBranch", "staging", "other"], ["removeBranch", "staging"]
        waiting = self.waiting
        tells = [s for e in waiting if (s := self.snapshot(e.snapshot_id)["summary"])]
        is_told = any(s.get("icefold.branch") == "staging" for s in tells)
        self.manage(ways[not renamed])
        said = ""
        try:
            resolve(self.table.refresh())
        except tf.NotFoundError as error:
            said = str(error)
        assert str(head) in said or not (said or is_told), said
        self.all_new_are_same()
        back = ["renameBranch", "other", "staging"], ["createBranch", "staging", head]
        self.manage(back[not renamed])

    def refs(self) -> None:
        self.number += 1
        head, name = self.head("main"), f"b{self.number}"
        if self.staging is None:
            self.log = self.log[: self.main.cursor]
            self.manage(["createBranch", "staging", head])
            return
        calls: list[Call] = [["createTag", f"t{self.number}", head], ["createBranch", name, head]]
        calls += [["setMinSnapshotsToKeep", name, 1], ["setMaxSnapshotAgeMs", name, 1]]
        calls += [["renameBranch", name, f"{name}x"], ["setMaxRefAgeMs", f"{name}x", 1]]
        calls += [["replaceTag", f"t{self.number}", self.head("staging")]]
        calls += [["removeBranch", f"{name}x"]] if self.rng.random() < 0.5 else []
        self.manage(*calls)

    def expire_snapshots(self) -> None:
        clean = [["cleanExpiredFiles", self.rng.random() < 0.7]]
        clean += [["cleanExpiredMetadata", True]] if self.rng.random() < 0.3 else []
        which: list[Call] = [["expireOlderThan", FAR_MS], ["retainLast", self.rng.randint(1, 3)]]
        self.core([["expireSnapshots"], *which, *clean, ["commit"]])
        self.lost = True

    def replace_table(self) -> None:
        rows = [row for row in self.read("main")["rows"] if self.rng.random() < 0.7]
        if not rows or self.main.picked:  # nothing would tell that these were staged, too
            raise Skipped
        commits = [[["newAppend"], ["appendFile", self.data(rows)], ["commit"]]]
        specs = [[["bucket", "id", 2]]] if self.is_bucketed else [[], [["identity", "region"]]]
        method = self.rng.choice(["replaceTransaction", "createOrReplaceTransaction"])
        catalog, name = self.shared.prefix, self.shared.name
        how = {"method": method, "spec": self.rng.choice(specs), "commits": commits}
        self.statements.append(json.dumps(how))
        self.shared.java.request("core_replace", catalog=catalog, name=name, **how)
        kept = {row["1"] for row in rows}
        self.read_columns()
        self.on_main({k: r for k, r in self.main_before.rows.items() if k in kept})
        self.wap, self.was_replaced = {}, True

    # -- what changes no row -----------------------------------------------------------------------

    def rewrite_manifests(self) -> None:
        by = {"of_file": self.rng.choice(["specId", "location"])}
        self.core([["rewriteManifests"], ["clusterBy", by], ["commit"]])
        self.same_main()

    def change_columns(self) -> None:
        self.number += 1
        extra, name = self.columns[3:], f"c{self.number}"
        calls: list[Call]
        if not extra or (len(extra) < 3 and self.rng.random() < 0.5):
            kind = self.rng.choice(TYPES)
            calls = [["addColumn", name, {"type": kind}]]
            if self.version == 3 and self.rng.random() < 0.5:
                value = _json(self.value(Column(name, 0, kind)), Column(name, 0, kind))
                if value is not None:
                    calls[0].append({"default": [kind, value]})
        else:
            column = self.rng.choice(extra)
            wider = {"int": "long", "decimal(9, 2)": "decimal(12, 2)"}.get(column.type)
            choices: list[Call] = [
                ["renameColumn", column.name, name],
                ["deleteColumn", column.name],
                ["moveAfter", column.name, "amount"],
                ["updateColumnDoc", column.name, name],
                ["makeColumnOptional", "amount"],
            ]
            choices += [["updateColumn", column.name, {"type": wider}]] * 2 if wider else []
            calls = [self.rng.choice(choices)]
        self.core([["updateSchema"], *calls, ["commit"]])
        self.read_columns()

    def change_spec(self) -> None:
        if self.is_bucketed:
            raise Skipped
        self.number += 1
        name, fields = f"p{self.number}", self.current_spec()
        terms = ["bucket", "id", 3], ["truncate", "amount", 10], ["ref", "region"]
        calls: list[Call] = [["addField", name, {"term": self.rng.choice(terms)}]]
        if fields and self.rng.random() < 0.6:
            old = fields[0]["name"]
            calls = self.rng.choice([[["removeField", old]], [["renameField", old, name]]])
        elif self.rng.random() < 0.2:
            calls.append(["addNonDefaultSpec"])
        self.core([["updateSpec"], *calls, ["commit"]], may_say="Cannot add")

    def change_order(self) -> None:
        down = ["desc", {"term": ["ref", "amount"]}, {"nulls": "NULLS_LAST"}]
        up = ["asc", {"term": ["ref", "id"]}, {"nulls": "NULLS_FIRST"}]
        self.core([["replaceSortOrder"], down, up, ["commit"]])

    def change_properties(self) -> None:
        name, value = self.other_property()
        self.core([["updateProperties"], ["set", name, value], ["commit"]])

    def move_table(self) -> None:
        """Where new files go."""
        location = f"{self.metadata()['location']}x"
        self.core([["updateLocation"], ["setLocation", location], ["commit"]])

    def statistics(self) -> None:
        head = self.head("main")
        call = ["setStatistics", {"statistics": head}]
        commits = [[["updateStatistics"], call, ["commit"]]]
        if self.current_spec():
            call = ["setPartitionStatistics", {"partition_statistics": head}]
            commits.append([["updatePartitionStatistics"], call, ["commit"]])
        self.core(*commits)

    def upgrade(self) -> None:
        if self.version == 3:
            raise Skipped
        self.core([["updateProperties"], ["set", "format-version", "3"], ["commit"]])
        self.version = 3

    def set_key_again(self) -> None:
        for names in ([], ["id"]):
            self.core([["updateSchema"], ["setIdentifierFields", {"names": names}], ["commit"]])
            if self.waiting and not names:
                with pytest.raises(tf.TableError, match="key"):
                    resolve(self.table.refresh())

    def other_format(self) -> None:
        """Avro and ORC are not read: told, until Java has written the rows once more, or rolled
        back."""
        form, before = self.rng.choice(["avro", "orc"]), self.head("main")
        old = set(self.read("main")["files"])
        new, gone = by_key(self.fresh(self.new_keys())), set[int]()
        if self.rng.random() < 0.5:
            gone = self.draw()
            delta = [["addRows", self.data(new.values())], ["addDeletes", self.keys(gone, form)]]
            self.core([["newRowDelta"], *delta, ["commit"]])
        else:
            files = self.data(new.values(), form)
            self.core([["newAppend"], ["appendFile", files], ["commit"]])
        self.note("main", [(new, gone)])
        self.main_before = self.main
        read, head = self.read("main"), self.head("main")
        compare(form, self.shown(self.main.rows.values()), self.as_java_shows(read))
        with pytest.raises(tf.TableError, match=f"cannot read {form.upper()} files"):
            self.table.refresh().scan().to_arrow()
        if self.waiting and not self.lost:
            with pytest.raises(tf.TableError):
                resolve(self.table.refresh())
            self.all_new_are_same()
        if gone or self.rng.random() < 0.3:
            self.manage(["rollbackTo", before])
            return
        added = set(read["files"]) - old
        rows = [row for row in read["rows"] if row["_file"] in added]
        files = [["deleteFile", {"live": [head, path]}] for path in sorted(added)]
        start = [["newRewrite"], ["validateFromSnapshot", head]]
        self.core([*start, *files, ["addFile", self.data(rows)], ["commit"]])
        self.same_main()

    # -- icefold -----------------------------------------------------------------------------------

    def resolve_in_place(self) -> None:
        """Equality deletes of main, beside a staging branch."""
        self.statements.append("resolve in place")
        resolve(self.table.refresh(), staging="main", target="main")
        self.all_new_are_same()
        self.check_engines()

    def refused(self, error: tf.TableError, waiting: list[Staged]) -> None:
        if "which rows are meant cannot be told" not in str(error):
            super().refused(error, waiting)
            return
        self.refusals["resolve: " + str(error)[:70]] += 1
        at = next(n for n, e in enumerate(self.log) if str(e.snapshot_id) in str(error))
        named = self.log[at].snapshot_id
        summary = self.snapshot(named)["summary"]
        assert named in self.untold or "removed-equality-deletes" in summary, error
        self.go_back_to(at)
        self.resolve()

    # -- what is there -----------------------------------------------------------------------------

    def as_others_read(self, branch: str) -> Counter[tuple[Any, ...]] | None:
        return self.as_java_shows(self.read(branch))

    def as_java_shows(self, read: dict[str, Any]) -> Counter[tuple[Any, ...]]:
        return Counter(
            tuple(plain(row.get(str(c.field_id))) for c in self.columns) for row in read["rows"]
        )

    def check(self) -> None:
        super().check()
        metadata = self.metadata()
        for kind in ("statistics", "partition-statistics"):
            for each in metadata.get(kind, ()):
                assert local_path(each["statistics-path"]).exists(), each

    def check_engines(self) -> None:
        """No equality delete is left, and the ids of rows are the same on both sides."""
        self.check()
        read = self.read("main")
        if self.staging is not None:
            assert "EQUALITY_DELETES" not in read["deletes"]
        if self.version == 2:
            return
        ours = self.table.refresh().scan(columns=["id", *LINEAGE]).to_arrow()
        theirs = Counter((row["1"], *(row.get(each) for each in LINEAGE)) for row in read["rows"])
        compare("lineage", theirs, Counter(tuple(row.values()) for row in ours.to_pylist()))
        ids = [each for _, each, _ in theirs if each is not None]
        assert len(ids) == len(set(ids)), f"a row id is there twice: {sorted(ids)}"


def _replaced(read: dict[str, Any], places: Sequence[Sequence[Any]]) -> set[int]:
    """The keys in partitions that files were written to; a spec without partitions is all."""
    if any(not partition for _, partition in places):
        return {row["1"] for row in read["rows"]}
    return {row["1"] for row in read["rows"] if read["files"][row["_file"]] in [*places]}


def _json(value: Any, of: Column) -> Any:
    """As Iceberg's single-value JSON has it."""
    if value is None:
        return None
    if of.type.startswith("decimal"):
        return f"{value}.00"
    return value.isoformat() if isinstance(value, date) else value
