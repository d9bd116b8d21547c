"""`icefold cuts`, and `icefold resolve --cut`: the tables of a stream as of one point of it."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence

import click

from maintenance.cli.context import CliContext, json_option, pass_context, print_json
from maintenance.cli.row_output import moment_text, print_records
from maintenance.table_patterns import find_tables
from resolver import GroupReport, resolve_group
from resolver.engine import EngineName
from tableformat.cdc.cuts import Cut
from tableformat.errors import NotFoundError


@click.command("cuts")
@click.argument("namespace")
@json_option
@pass_context
def cuts(context: CliContext, namespace: str, as_json: bool) -> None:
    """List the cuts of NAMESPACE: states that all tables of a stream show, newest first.

    With each the point of the source where it ends, when it was published, the tables that were
    published with it, and the snapshot of every table, by which any engine reads it.
    """
    found = context.catalog.cuts(namespace)
    if not found:
        context.check_namespace(namespace)
    if as_json:
        print_json([_to_dict(each) for each in found])
        return
    records = [
        {
            "cut": str(each.name),
            "published": moment_text(each.published_ms),
            "transaction": each.transaction or "",
            "offsets": json.dumps(each.offsets),
            "tables": ", ".join(each.tables),
        }
        for each in found
    ]
    print_records(context, records, empty=f"{namespace} has no cut yet")


def _to_dict(cut: Cut) -> dict[str, object]:
    return {
        "cut": str(cut.name),
        "published_ms": cut.published_ms,
        "transaction": cut.transaction,
        "offsets": cut.offsets,
        "tables": cut.tables,
        "snapshots": cut.snapshots,
    }


def publish_cut(
    context: CliContext,
    names: Sequence[str],
    *,
    set_aside: Collection[str],
    staging: str,
    target: str,
    limit: int | None,
    engine: EngineName,
) -> GroupReport:
    """Publish the tables that names and patterns mean together; see `resolve_group`."""
    found = find_tables(context.catalog.environment.catalog, names)
    if not found:
        raise NotFoundError("no table has such a name", pattern=" ".join(names))
    return resolve_group(
        [context.table(".".join(each)) for each in found],
        set_aside=set_aside,
        staging=staging,
        target=target,
        limit=limit,
        engine=engine,
    )
