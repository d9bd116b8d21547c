"""What is typed after `icefold ingest` and `icefold run`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import click

from maintenance.logs import LogFormat
from tableformat.spec.names import STAGING_BRANCH

KAFKA_BATCH_EVENTS = 500_000
_SPELLED = {
    "files": "FILES", "connector_jars": "--connector-jar", "kafka_options": "--kafka-option",
    "tables_file": "--tables", "resume_tables": "--resume",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestWords:
    """The options by their names; where a default depends on others, None means that none is given.

    `given_format`: the format's name, if it was typed.
    """

    table_name: str | None = None
    files: tuple[Path, ...] = ()
    format_name: str
    given_format: str | None
    options: Mapping[str, str]
    branch: str = STAGING_BRANCH
    query_id: str | None
    batch_events: int | None
    kafka: str | None
    topic: str | None = None
    topics: str | None
    into: str | None
    exclude_topics: str | None
    tables_file: Path | None
    engine: str | None
    cut: str | None
    dry_run: bool = False
    resume_tables: tuple[str, ...]
    connector_jars: tuple[Path, ...]
    kafka_options: Mapping[str, str]
    starting_offsets: str | None = None
    schema_registry: str | None
    registry_user_info: str | None = field(repr=False)
    registry_options: Mapping[str, str] = field(repr=False)
    checkpoint: Path | None = None
    follow: bool
    interval_s: float | None
    metrics_port: int | None
    metrics_host: str
    log_format: LogFormat
    allow_dead_letters: bool
    replay_dead_letters: bool = False
    in_any_order: bool = False
    as_json: bool

    @property
    def interval_ms(self) -> float:
        """From the start of one batch to that of the next."""
        return 1_000 if self.interval_s is None else self.interval_s * 1_000

    def refuse(self, names: Iterable[str], why: str) -> None:
        """Raise `click.UsageError` if one of some words was given; `{}` in `why` stands for it."""
        for name in names:
            if getattr(self, name):
                raise click.UsageError(why.format(spelled(name)))


def spelled(name: str) -> str:
    """The word of a field, as it is typed."""
    return _SPELLED.get(name, f"--{name.replace('_', '-')}")
