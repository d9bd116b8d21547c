"""Histories of a stream into many tables that other tools meddle with while it runs.

Balances move between accounts of three tables, each transfer a transaction of the source. Between
any two turns of the process that stages them, another tool acts on one table: it moves, drops and
makes branches anew, rewrites, expires, appends, stages by equality deletes, replaces the table, or
an operator drops it, makes it anew or restores it, or makes its topic anew. Accounts below `OTHERS`
are nobody else's: at the end each table holds what the source says of them, and each cut that is
named holds one state of the source, whatever was done. Topics have one partition or two.
"""

from __future__ import annotations

import copy
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from pyiceberg.types import LongType

import tableformat as tf
from maintenance import CompactOptions, ExpireOptions, ExpiryPolicy, compact, expire
from maintenance.cli.run import AT_ONCE
from maintenance.scheduler import Scheduler
from maintenance.scheduler_options import SchedulerOptions
from resolver import resolve, resolve_group
from tableformat.cdc.many.local_engine import Cut
from tableformat.errors import FencedError, NotFoundError, TableError
from tableformat.spec.names import SET_ASIDE
from tests.crash.test_run_kills import FIELDS, transaction
from tests.support.fake_kafka import FakeCluster
from tests.support.foreign_table import edited
from tests.support.foreign_tool import ForeignTool, now_ms, write
from tests.support.memory_disk import memory_disk
from tests.support.stream_worlds import engine_of, message

TABLES, ACCOUNTS, START, OTHERS = ("a", "b", "c"), 3, 100, 1_000
NOTHING_KEPT = ExpireOptions(policy=ExpiryPolicy(max_snapshot_age_ms=0, min_snapshots_to_keep=1))
Balances = dict[tuple[str, int], int]


class Skipped(Exception):
    """The step does not apply here."""


class MeddledStream:
    """One seed."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.folder = Path(tempfile.mkdtemp(prefix="icefold-meddled-", dir=memory_disk()))
        self.warehouse = self.folder / "warehouse"
        self.catalog = tf.open_catalog("local", warehouse=str(self.warehouse))
        self.cluster = FakeCluster()
        self.number, self.others = 1, OTHERS
        self.held: Balances = {(t, k): START for t in TABLES for k in range(ACCOUNTS)}
        self.states = {1: dict(self.held)}
        self.backups: dict[str, list[str]] = {name: [] for name in TABLES}
        self.done: list[str] = []
        self.cuts_are_told, self.has_topic_anew = True, False
        self.copies = 0
        self.later: dict[str, int] = {}  # where staging was moved back to, and main follows
        self.renamed: str | None = None
        for name in TABLES:
            self.cluster.create(f"pg.public.{name}", self.rng.choice((1, 1, 2)))
        self.refusals: Counter[str] = Counter()
        transaction(
            self.cluster, 1, "c", {t: dict.fromkeys(range(ACCOUNTS), START) for t in TABLES}
        )

    def close(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def tool(self, name: str) -> ForeignTool:
        return ForeignTool(self.warehouse, "shop", name)

    # -- the source and the stream -----------------------------------------------------------------

    def transfer(self) -> None:
        rng, amount, changed = self.rng, self.rng.randint(1, 50), {}
        self.number += 1
        for table, sign in zip(rng.choices(TABLES, k=2), (-1, 1), strict=True):
            place = table, rng.randrange(ACCOUNTS)
            self.held[place] += sign * amount
            changed.setdefault(table, {})[place[1]] = self.held[place]
        transaction(self.cluster, self.number, "u", changed)
        self.states[self.number] = dict(self.held)

    def run(self, turns: int, acts: Callable[[], None]) -> None:
        """A process, with others between its turns, until it ends."""
        left = iter(range(turns))

        def stop() -> bool:
            if next(left, None) is None:
                return True
            acts()
            return False

        left_out = [f"pg.public.{n}" for n in self.rng.sample(TABLES, self.rng.random() < 0.2)]
        self.done.append(f"run without {left_out}")
        engine = self.engine(exclude=left_out)
        try:
            engine.run(follow=True, stop=stop)
        except TableError as error:
            self.told("stream", error)

    def engine(self, cut: Cut = Cut.TRANSACTION, **more: Any):
        excluded = {each.rpartition(".")[2] for each in more.get("exclude", ())}
        resume = [f"shop.{n}" for n in TABLES if n not in excluded and self.is_aside(n)]
        return engine_of(
            self.catalog, self.cluster, cut=cut, interval_ms=0, refresh_ms=0,
            settle_ms=0, resume=resume, **more,
        )  # fmt: skip

    def is_aside(self, name: str) -> bool:
        try:
            return SET_ASIDE in self.catalog.load_table(f"shop.{name}").properties
        except NotFoundError:
            return False

    def told(self, who: str, error: TableError) -> None:
        text = str(error)
        if "\n" in text or not text:
            raise AssertionError(f"not one line: {text!r}")
        self.done.append(f"{who}: {text}")
        self.refusals[f"{who}: {text[:90]}"] += 1

    def publish(self) -> None:
        """Together, or a table by itself."""
        tables = [self.catalog.load_table(name) for name in self.catalog.list_tables("shop")]
        if not tables:
            raise Skipped
        if self.rng.random() < 0.3:
            scheduler = Scheduler(self.catalog, ["shop.*"], SchedulerOptions(defaults=AT_ONCE))
            for one in scheduler.run_once().runs:
                self.done.append(f"{one.table}: {one.outcome} {one.text}")
            self.check_cuts()
            return
        try:
            if self.rng.random() < 0.8:
                self.done.append(resolve_group(tables).describe())
            else:
                table = self.rng.choice(tables)
                self.done.append(resolve(table).describe())
        except TableError as error:
            self.told("publish", error)
        self.check_cuts()

    def maintain(self) -> None:
        table = self.one()
        try:
            if self.rng.random() < 0.5:
                compact(table, CompactOptions(rewrite_all=True))
            else:
                expire(table, NOTHING_KEPT)
        except TableError as error:
            self.told("maintain", error)

    # -- others ------------------------------------------------------------------------------------

    def one(self) -> tf.Table:
        names = self.catalog.list_tables("shop")
        if not names:
            raise Skipped
        return self.catalog.load_table(self.rng.choice(names))

    def drawn(self) -> tuple[str, ForeignTool, Any]:
        name = self.one().name.removeprefix("shop.")
        tool = self.tool(name)
        self.done[-1] += f" {name}"
        return name, tool, tool.table()

    def new_rows(self) -> list[tuple[int, int]]:
        self.others += 1
        return [(self.others, self.rng.randrange(9))]

    def roll_back(self) -> None:
        _, tool, table = self.drawn()
        chain = [] if table.head("main") is None else list(table.ancestors(tool.head("main")))
        if len(chain) < 2:
            raise Skipped
        tool.set_branch("main", self.rng.choice(chain[1:4])["snapshot-id"])

    def forward(self) -> None:
        """Main to staging."""
        _, tool, table = self.drawn()
        head, staged = tool.head("main"), tool.head("staging")
        if head is None or staged is None:
            raise Skipped
        if head not in [each["snapshot-id"] for each in table.ancestors(staged)]:
            raise Skipped
        tool.set_branch("main", staged)

    def copy_branch(self) -> None:
        """A branch and a tag on what readers see, or on what waits: a copy before an incident."""
        _, tool, table = self.drawn()
        head = tool.head(self.rng.choice(["main", "staging"]))
        if head is None:
            raise Skipped
        self.copies += 1
        tool.set_branch(f"copy{self.copies}", head)
        table = tool.table()
        tag = {"snapshot-id": head, "type": "tag"}
        name = f"tag{self.copies}"
        tool.swap(table, edited(write, table, lambda m: m["refs"].update({name: tag}), now_ms()))

    def both_back(self) -> None:
        """Staging to where main was; main goes there later, after more was staged."""
        name, tool, table = self.drawn()
        if table.head("main") is None or "staging" not in table.metadata["refs"]:
            raise Skipped
        chain = [each["snapshot-id"] for each in table.ancestors(tool.head("main"))][1:4]
        if not chain:
            raise Skipped
        to = self.rng.choice(chain)
        tool.set_branch("staging", to)
        self.later[name] = to

    def roll_back_later(self) -> None:
        """Main to where staging was moved back to before."""
        names = [each for each in self.later if self.catalog.table_exists(f"shop.{each}")]
        if not names:
            raise Skipped
        name = self.rng.choice(names)
        self.done[-1] += f" {name}"
        tool, to = self.tool(name), self.later.pop(name)
        table = tool.table()
        if table.head("main") is None:
            raise Skipped
        if to not in [each["snapshot-id"] for each in table.ancestors(tool.head("main"))]:
            raise Skipped
        tool.set_branch("main", to)

    def cut_back(self) -> None:
        """Main of a table to where it is in a cut, the newest or an older one."""
        name, tool, table = self.drawn()
        try:
            cuts = self.catalog.cuts("shop")
        except TableError as error:
            self.told("cuts", error)
            return
        chain = [each["snapshot-id"] for each in table.ancestors(tool.head("main"))]
        at = [cut.snapshots[f"shop.{name}"] for cut in cuts[:3] if f"shop.{name}" in cut.snapshots]
        fit = [each for each in at if each in chain]
        if not fit:
            raise Skipped
        tool.set_branch("main", self.rng.choice(fit))

    def cherry_pick(self) -> None:
        """What waits first or later is picked to main, or, at its head, forwarded to."""
        _, tool, table = self.drawn()
        head, staged = tool.head("main"), tool.head("staging")
        if head is None or staged is None:
            raise Skipped
        chain = [each["snapshot-id"] for each in table.ancestors(staged)]
        waiting = chain[: chain.index(head)] if head in chain else []
        if not waiting or tool.cherry_pick(self.rng.choice(waiting)) is None:
            raise Skipped

    def switch_publish(self) -> None:
        """`icefold.publish` between vectors and rewritten rows."""
        _, tool, table = self.drawn()
        now = table.metadata["properties"].get("icefold.publish")
        tool.set_properties({"icefold.publish": "link" if now == "rewrite" else "rewrite"})

    def rename_table(self) -> None:
        """Away and, by somebody else, back again, later."""
        if self.renamed is not None:
            name, self.renamed = self.renamed, None
            self.done[-1] += f" back {name}"
            with suppress(NotFoundError):
                self.catalog.drop_table(f"shop.{name}")  # what the stream has made meanwhile
            self.catalog.rename_table(f"away.{name}", f"shop.{name}")
            return
        name, _, _ = self.drawn()
        self.backups[name].clear()
        self.renamed = name
        if "away" not in self.catalog.list_namespaces():
            self.catalog.create_namespace("away")
        self.catalog.rename_table(f"shop.{name}", f"away.{name}")

    def drop_staging(self) -> None:
        _, tool, table = self.drawn()
        if "staging" not in table.metadata["refs"]:
            raise Skipped
        tool.swap(table, edited(write, table, lambda m: m["refs"].pop("staging"), now_ms()))

    def staging_anew(self) -> None:
        """Dropped, and made anew at the head of main."""
        _, tool, table = self.drawn()
        if table.head("main") is None or "staging" not in table.metadata["refs"]:
            raise Skipped
        tool.swap(table, edited(write, table, lambda m: m["refs"].pop("staging"), now_ms()))
        tool.set_branch("staging", tool.head("main"))

    def staging_to_main(self) -> None:
        """What waits is given up."""
        _, tool, table = self.drawn()
        if table.head("main") is None or "staging" not in table.metadata["refs"]:
            raise Skipped
        tool.set_branch("staging", tool.head("main"))

    def staging_back(self) -> None:
        _, tool, table = self.drawn()
        if "staging" not in table.metadata["refs"]:
            raise Skipped
        chain = list(table.ancestors(tool.head("staging")))
        if len(chain) < 2:
            raise Skipped
        tool.set_branch("staging", self.rng.choice(chain[1:4])["snapshot-id"])

    def append(self) -> None:
        _, tool, table = self.drawn()
        branch = self.rng.choice(["main", "staging"])
        if table.head(branch) is None or not self.can_write(tool):
            raise Skipped
        tool.append(self.new_rows(), branch=branch)

    def upsert(self) -> None:
        """By equality deletes."""
        _, tool, table = self.drawn()
        branch = self.rng.choice(["main", "staging"])
        if table.head(branch) is None or not self.can_write(tool):
            raise Skipped
        key = self.rng.randint(OTHERS, self.others)
        files = [*tool.data_files([(key, self.rng.randrange(9))]), *tool.key_deletes([key])]
        tool.commit(branch, "overwrite", add=files)

    def can_write(self, tool: ForeignTool) -> bool:
        """Whether there is a manifest to write alike, and the columns are those of the rows."""
        schema = tool.table().schema
        return [schema.by_id[each].name for each in schema.fields] == ["id", "balance"]

    def rewrite(self) -> None:
        _, tool, table = self.drawn()
        if table.head("main") is None or not self.can_write(tool):
            raise Skipped
        if any(e.is_key_delete for e in tool.live(tool.head("main"))):
            raise Skipped
        tool.rewrite(keep_row_ids=self.rng.random() < 0.5)

    def expire_elsewhere(self) -> None:
        name, tool, _ = self.drawn()
        self.backups[name].clear()
        tool.expire(older_than_ms=now_ms() + 1, retain_last=1)

    def replace_table(self) -> None:
        _, tool, table = self.drawn()
        if table.head("main") is None or not self.can_write(tool):
            raise Skipped
        rows = [row.values for row in tool.rows()]
        tool.replace_table([row for row in rows if row[0] >= OTHERS] or self.new_rows())

    def drop_table(self) -> None:
        name, _, _ = self.drawn()
        self.backups[name].clear()
        self.catalog.drop_table(f"shop.{name}")

    def topic_anew(self) -> None:
        """A topic is deleted and made anew, with a snapshot; its table is dropped, as is told."""
        name = self.rng.choice(TABLES)
        self.done[-1] += f" {name}"
        topic = f"pg.public.{name}"
        self.cluster.make_anew(topic)
        self.backups[name].clear()
        with suppress(NotFoundError):
            self.catalog.drop_table(f"shop.{name}")
        for key in range(ACCOUNTS):
            row = {"id": key, "balance": self.held[name, key]}
            event = message("r", row, fields=FIELDS)
            self.cluster.send(topic, event, partition=key % self.cluster.partitions(topic))
        self.cuts_are_told, self.has_topic_anew = False, True

    def make_anew(self) -> None:
        """Dropped and made anew, by somebody else: without rows."""
        name, _, _ = self.drawn()
        table = self.catalog.load_table(f"shop.{name}")
        schema = table.scan().to_arrow().schema
        self.backups[name].clear()
        self.catalog.drop_table(table.name)
        self.catalog.create_table(table.name, schema, primary_key=["id"])

    def back_up(self) -> None:
        name, tool, _ = self.drawn()
        self.backups[name].append(tool.location())

    def restore(self) -> None:
        name, tool, table = self.drawn()
        if not self.backups[name]:
            raise Skipped
        tool.swap(table, self.rng.choice(self.backups[name]))

    def clear_properties(self) -> None:
        """UNSET of what icefold notes on the table: from then on nothing tells what it lacked."""
        _, tool, table = self.drawn()
        noted = [k for k in table.metadata["properties"] if k.startswith("icefold.ingest")]
        if not noted:
            raise Skipped

        self.cuts_are_told = False

        def change(metadata: dict[str, Any]) -> None:
            for each in noted:
                del metadata["properties"][each]

        tool.swap(table, edited(write, table, change, now_ms()))

    def drop_key(self) -> None:
        """DROP IDENTIFIER FIELDS, and SET again by whoever notices."""
        _, tool, table = self.drawn()

        def change(metadata: dict[str, Any]) -> None:
            current = copy.deepcopy(metadata["schemas"][-1])
            for each in metadata["schemas"]:
                if each["schema-id"] == metadata["current-schema-id"]:
                    current = copy.deepcopy(each)
            current["schema-id"] = len(metadata["schemas"])
            current.pop("identifier-field-ids", None)
            metadata["schemas"].append(current)
            metadata["current-schema-id"] = current["schema-id"]

        tool.swap(table, edited(write, table, change, now_ms()))

    def rename_column(self) -> None:
        """The stream makes the column anew, or stands aside, until somebody renames it back."""
        table = self.one()
        names = [each.name for each in table.schema().fields]
        old, new = ("balance", "held") if "balance" in names else ("held", "balance")
        if new in names:
            raise Skipped
        table.update_schema(lambda update: update.rename_column(old, new))

    def add_column(self) -> None:
        self.others += 1
        name = f"c{self.others}"
        self.one().update_schema(lambda update: update.add_column(name, LongType()))

    # -- what is there -----------------------------------------------------------------------------

    def shown(self, name: str, snapshot_id: int | None = None) -> dict[int, int]:
        found = self.catalog.load_table(f"shop.{name}").scan(snapshot_id=snapshot_id)
        rows = [r for r in found.to_arrow().to_pylist() if r["id"] < OTHERS]
        if len({r["id"] for r in rows}) != len(rows):
            raise AssertionError(f"{name}: a key has two rows: {rows}")
        return {r["id"]: r["balance" if "balance" in r else "held"] for r in rows}

    def check_cuts(self) -> None:
        """Each shows one state of the source."""
        if not self.cuts_are_told:
            return
        try:
            cuts = self.catalog.cuts("shop")
        except TableError as error:
            self.told("cuts", error)
            return
        for cut in cuts:
            number = int(str(cut.transaction).partition(":")[0]) if cut.transaction else None
            for table, at in cut.snapshots.items():
                name = table.removeprefix("shop.")
                shown = self.shown(name, at)
                states = [self.states[number]] if number else self.states.values()
                wanted = [{k: b for (t, k), b in s.items() if t == name} for s in states]
                if shown not in wanted:
                    raise AssertionError(f"{cut.name}: {table} shows {shown}, not {wanted[0]}")

    def heal(self) -> None:
        """An operator follows what is told, then all tables hold what the source says."""
        for name in self.catalog.list_tables("shop"):
            table = self.catalog.load_table(name)
            if "held" in [each.name for each in table.schema().fields]:
                table.update_schema(lambda update: update.rename_column("held", "balance"))
        cuts = [Cut.TRANSACTION] * 6
        if self.has_topic_anew:  # parts of transactions may have gone with it
            cuts[1] = Cut.BATCH
        for number, cut in enumerate(cuts):
            try:
                self.engine(cut).run(follow=False)
            except FencedError as error:
                self.told("stream at the end", error)
                continue
            if self.published_all() and Cut.BATCH not in cuts[number + 1 :]:
                return
        raise AssertionError("no way leads on")

    def published_all(self) -> bool:
        is_well = True
        for name in TABLES:
            table = self.catalog.load_table(f"shop.{name}")
            try:
                resolve(table)
            except TableError as error:
                self.told("publish at the end", error)
                is_well = False
                self.mend(table)
        return is_well

    def mend(self, table: tf.Table) -> None:
        """Staging is given up: the stream stages again what was not published."""
        table.refresh()
        if not table.primary_key:
            table.set_primary_key(["id"])
        elif table.state.ref("staging") is not None:
            table.refs.drop("staging")
        else:  # what was dropped is given up as well
            head = table.state.head("main")
            table.refs.create_branch("staging", snapshot_id=head.snapshot_id)

    def check(self) -> None:
        for name in TABLES:
            shown = self.shown(name)
            wanted = {k: b for (t, k), b in self.held.items() if t == name}
            if shown != wanted:
                raise AssertionError(f"shop.{name} shows {shown}, not {wanted}")


MEDDLING = {
    "roll_back": 2, "forward": 1, "drop_staging": 1, "staging_anew": 1, "staging_back": 1,
    "append": 2, "upsert": 2, "rewrite": 2, "expire_elsewhere": 1, "replace_table": 0.5,
    "drop_table": 0.3, "make_anew": 0.5, "back_up": 2, "restore": 0.7, "clear_properties": 0.7,
    "drop_key": 0.3, "maintain": 1, "rename_column": 0.4, "add_column": 0.5, "topic_anew": 0.5,
    "copy_branch": 1, "both_back": 1.5, "roll_back_later": 3, "cut_back": 1, "cherry_pick": 0.7,
    "switch_publish": 0.7, "rename_table": 0.3, "staging_to_main": 0.5,
}  # fmt: skip


def run(seed: int, *, rounds: int = 4, turns: int = 12) -> MeddledStream:
    """A history; what fails names its seed and what was done."""
    stream = MeddledStream(seed)
    rng = stream.rng
    weights = {name: w for name, w in MEDDLING.items() if rng.random() < 0.5}

    def act() -> None:
        names = ["transfer"] * 3 + ["publish"] * 2 + ["nothing"] * 2
        name = rng.choice([*names, "meddle", "meddle"] if weights else names)
        if name == "meddle":
            [name] = rng.choices([*weights], [*weights.values()])
        if name == "nothing":
            return
        stream.done.append(name)
        try:
            getattr(stream, name)()
        except Skipped:
            stream.done[-1] += ": skipped"
        else:
            if name in weights and rng.random() < 0.3:
                stream.check_cuts()

    try:
        for _ in range(rounds):
            stream.run(turns, act)
            for _ in range(rng.randint(0, 3)):
                act()
        stream.heal()
        stream.check()
        stream.transfer()  # and it goes on by itself
        stream.engine().run(follow=False)
        stream.published_all()
        stream.check()
        stream.check_cuts()
    except Exception as error:
        done = "\n".join(stream.done)
        raise AssertionError(f"seed {seed}: {type(error).__name__}: {error}\n{done}") from error
    finally:
        stream.close()
    return stream
