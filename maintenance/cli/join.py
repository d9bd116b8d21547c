"""`icefold join`: keep the result of a join as a table."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from maintenance.cli.context import CliContext, json_flag, pass_context, print_json
from maintenance.cli.option_types import duration
from resolver import resolve
from resolver.number_text import plural
from tableformat.join.delta_join import JoinRound


@click.command("join")
@click.argument("definition", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--follow", is_flag=True, help="Go on with rounds, until interrupted.")
@click.option(
    "--every",
    "every_ms",
    type=duration,
    default="1s",
    show_default=True,
    help="With --follow: the pause between two rounds.",
)
@click.option(
    "--resolve", "publishes", is_flag=True, help="Publish what a round staged; else maintain does."
)
@click.option(
    "--cut",
    metavar="NAMESPACE",
    help="Join the tables as of the newest cut of NAMESPACE, not as they are; see icefold cuts.",
)
@json_flag
@pass_context
def join(
    context: CliContext,
    definition: Path,
    follow: bool,
    every_ms: int,
    publishes: bool,
    cut: str | None,
    as_json: bool,
) -> None:
    """Bring the result of the join in the file DEFINITION (TOML or JSON) up to date.

    The first round creates and fills the result's table; each later one stages what the changes of
    the joined tables change in it, exactly once. A round that is interrupted is repeated.
    """
    waits = publishes  # also what a process staged that died before it published
    with context.catalog.delta_join(definition, cut=cut) as kept:
        while True:
            done = kept.run()
            if waits or (publishes and done.snapshot_id is not None):
                resolve(context.table(kept.plan.definition.into))
                waits = False
            if not follow or done.snapshot_id is not None:
                print_json(asdict(done)) if as_json else click.echo(_text(done))
            if not follow:
                return
            context.catalog.environment.runtime.clock.sleep_ms(every_ms)


def _text(done: JoinRound) -> str:
    name = f"round {done.batch}" if done.cut is None else f"round {done.batch}, cut {done.cut}"
    if done.snapshot_id is None:
        return f"{name}: nothing has changed"
    read = ", ".join(f"{alias} {plural(n, 'change')}" for alias, n in done.changes.items())
    staged = f"{plural(done.upserts, 'row')} and {plural(done.deletes, 'delete')} staged"
    lines = [f"{name}: {read or 'all rows'}; {staged} in {done.duration_ms:,.0f} ms"]
    lines += [f"  {alias} is scanned: {reason}" for alias, reason in done.scanned.items()]
    return "\n".join(lines)
