"""What other tools do to a table's refs and metadata files without changing a row or its branches.

They share no code with icefold, but where they call its own commands.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

from tableformat.commit.refs import create_branch, create_tag, drop_ref
from tests.support.foreign_table import ForeignTable, edited
from tests.support.sim_operation import Operation
from tests.support.sim_world import Actor

if TYPE_CHECKING:
    from tests.support.sim_meddlers import Meddlers

DELETE_AFTER_COMMIT = "write.metadata.delete-after-commit.enabled"
VERSIONS_MAX = "write.metadata.previous-versions-max"


def prune(tools: Meddlers, actor: Actor) -> None:
    """Somebody keeps a few metadata files only, and deletes the older ones, as all who commit then
    do; at times there is no limit for a while."""
    while True:
        actor.sleep(actor.rng.random() * 6_000)
        table, keeps = tools.table(), actor.rng.randint(1, 3)
        log = table.metadata.get("metadata-log", [])
        # The version that is replaced comes after those that stay.
        kept = log[len(log) - keeps + 1 :] if keeps > 1 else []
        is_on = actor.rng.random() < 0.8

        given = {DELETE_AFTER_COMMIT: str(is_on).lower(), VERSIONS_MAX: str(keeps)}
        change = partial(_with_settings, given=given, log=kept)

        with tools.simulation.operation(actor, Operation(actor.name, "set", is_foreign=True)):
            tools.swap(actor, table, edited(tools.put, table, change, tools.now_ms(actor)))
            if is_on:
                gone = [each["metadata-file"] for each in log if each not in kept]
                tools.simulation.store.delete(gone)


def _with_settings(
    metadata: dict[str, Any], *, given: Mapping[str, str], log: Sequence[Mapping[str, Any]]
) -> None:
    metadata["properties"] = metadata["properties"] | given
    metadata["metadata-log"] = [*log]


def tag(tools: Meddlers, actor: Actor) -> None:
    """Tags and branches at any snapshot, waiting ones too; some age, some are dropped again."""
    environment = tools.simulation.environment(actor)
    for number in count():
        actor.sleep(actor.rng.random() * 3_000)
        table = tools.table()
        refs = table.metadata.get("refs", {})
        own = sorted(name for name in refs if name.startswith("kept-"))
        ids = [i for i in table.by_id if i in tools.oracle.landed]
        kind = actor.rng.choice(["tag", "tag", "branch"])
        name = f"kept-{kind}-{actor.life}-{number}"
        if own and (len(own) > 2 or actor.rng.random() < 0.3):
            name, kind = actor.rng.choice(own), "drop"
        elif not ids:
            continue
        to = actor.rng.choice(ids[-5:]) if ids else 0
        is_foreign = actor.rng.random() < 0.5
        ages = {"max-ref-age-ms": 5_000} if actor.rng.random() < 0.3 else {}
        with tools.simulation.operation(actor, Operation(actor.name, "set", is_foreign=is_foreign)):
            if is_foreign:
                new = _with_ref(tools, actor, table, name, kind, {"snapshot-id": to} | ages)
                tools.swap(actor, table, new)
            elif kind == "drop":
                drop_ref(environment, tools.identifier, name)
            elif kind == "branch":
                create_branch(environment, tools.identifier, name, snapshot_id=to)
            else:
                create_tag(environment, tools.identifier, name, snapshot_id=to,
                           max_ref_age_ms=ages.get("max-ref-age-ms"))  # fmt: skip


def _with_ref(
    tools: Meddlers,
    actor: Actor,
    table: ForeignTable,
    name: str,
    kind: str,
    ref: Mapping[str, int],
) -> str:
    def change(metadata: dict[str, Any]) -> None:
        if kind == "drop":
            del metadata["refs"][name]
        else:
            metadata["refs"][name] = {"type": kind, **ref}

    return edited(tools.put, table, change, tools.now_ms(actor))
