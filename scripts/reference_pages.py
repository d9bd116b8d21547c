"""The reference pages of the site, from the code: commands, properties, metrics, summary keys."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterable, Iterator
from itertools import takewhile
from tempfile import TemporaryDirectory
from types import ModuleType

import click

from maintenance.cli.main import cli
from maintenance.ingest_watch import IngestWatch
from maintenance.metrics import SchedulerMetrics
from maintenance.scheduler import Scheduler
from maintenance.settings import settings_table
from resolver import cycle_figures, engine
from tableformat import open_catalog
from tableformat.runtime import SystemClock
from tableformat.spec import names

MIB = 1 << 20
ICEBERG_PROPERTIES: tuple[tuple[str, object, str], ...] = (
    ("write.target-file-size-bytes", 512 * MIB, "Where a data file ends."),
    ("write.delete.target-file-size-bytes", 64 * MIB, "Where a file of equality deletes ends."),
    ("write.format.default", "parquet", "No other format is written."),
    ("write.parquet.compression-codec", "zstd", "Codec of data files."),
    ("write.parquet.compression-level", "null", "Its level; the codec's own by default."),
    ("write.parquet.row-group-size-bytes", 128 * MIB, "Where a row group ends."),
    ("write.parquet.row-group-limit", MIB, "The same in rows."),
    ("write.parquet.page-size-bytes", MIB, "Where a page ends."),
    ("write.parquet.page-row-limit", 20_000, "The same in rows."),
    ("write.parquet.dict-size-bytes", 2 * MIB, "Where a dictionary is given up."),
    ("commit.retry.num-retries", 4, "Repeats after a lost swap."),
    ("commit.retry.min-wait-ms", 100, "The first wait; doubles."),
    ("commit.retry.max-wait-ms", 60_000, "The longest wait."),
    ("commit.retry.total-timeout-ms", 1_800_000, "After that there is no repeat."),
    ("commit.status-check.num-retries", 3, "Look-ups after a lost answer."),
    ("commit.status-check.min-wait-ms", 1_000, "The first wait between them; doubles."),
    ("commit.status-check.max-wait-ms", 60_000, "The longest wait."),
    ("commit.status-check.total-timeout-ms", 1_800_000, "After that the outcome is unknown."),
    ("commit.manifest-merge.enabled", "true", "Whether commits merge manifests."),
    ("commit.manifest.min-count-to-merge", 20, "Manifests that start a merge."),
    ("commit.manifest.target-size-bytes", 8 * MIB, "When a manifest is full."),
    ("write.delete.mode", "merge-on-read", "DELETE: deletion vectors, or `copy-on-write`."),
    ("write.update.mode", "merge-on-read", "The same for UPDATE."),
    ("write.merge.mode", "merge-on-read", "The same for MERGE."),
    ("write.delete.isolation-level", "serializable", "DELETE; or `snapshot`."),
    ("write.update.isolation-level", "serializable", "UPDATE; or `snapshot`."),
    ("write.merge.isolation-level", "serializable", "MERGE; or `snapshot`."),
    ("history.expire.max-snapshot-age-ms", 432_000_000, "Older snapshots expire."),
    ("history.expire.min-snapshots-to-keep", 1, "So many stay in any case."),
    ("history.expire.max-ref-age-ms", (1 << 63) - 1, "Older branches and tags expire."),
    ("gc.enabled", "true", "`false`: no file is deleted."),
    ("write.data.path", "", "Where new data files go, if not below the table's location."),
    ("write.metadata.path", "", "The same for metadata files."),
    ("write.metadata.compression-codec", "none", "`gzip`: metadata files are zipped."),
    ("write.metadata.previous-versions-max", 100, "Metadata files that the log lists."),
    ("write.metadata.delete-after-commit.enabled", "false", "Deletes those that leave the log."),
    ("write.metadata.metrics.default", "truncate(16)", "Column metrics in manifests."),
    ("write.metadata.metrics.max-inferred-column-defaults", 100, "Columns that have them."),
    ("write.metadata.metrics.column.<name>", "", "The same for one column."),
    ("write.parquet.bloom-filter-enabled.column.<name>", "false", "Bloom filter of a column."),
)


def reference_pages() -> Iterator[tuple[str, str]]:
    """Path below docs/ and Markdown of each page."""
    yield "reference/command-line.md", "\n".join(["# Commands\n", *_command(cli, "icefold")])
    yield "reference/properties.md", _properties()
    yield "reference/metrics.md", _metrics()
    yield "reference/summary-keys.md", _summary_keys()


def described_names(module: ModuleType) -> Iterator[tuple[str, str, str]]:
    """Constant, value and comment of each name that is stored: above it, or behind it."""
    source = inspect.getsource(module)
    lines = source.splitlines()
    for node in ast.parse(source).body:
        if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Name):
            continue
        value = getattr(module, node.targets[0].id)
        above = [line.removeprefix("# ") for line in _comments_above(lines[: node.lineno - 1])]
        behind = re.findall(
            r"  # (?!noqa)(.+)", "\n".join(lines[node.lineno - 1 : node.end_lineno])
        )
        if isinstance(value, str) and (above or behind):
            yield node.targets[0].id, value, " ".join(above + behind)


def _comments_above(lines: list[str]) -> list[str]:
    return list(takewhile(lambda line: line.startswith("# "), reversed(lines)))[::-1]


def _command(command: click.Command, name: str) -> Iterator[str]:
    context = click.Context(command, info_name=name)
    yield f"## {name}\n"
    yield f"```text\n{command.get_usage(context).removeprefix('Usage: ')}\n```\n"
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        yield paragraph + "\n"
    options = (each for each in command.get_params(context) if isinstance(each, click.Option))
    records = [each.get_help_record(context) for each in options]
    yield _table(
        ("option", "meaning"),
        ((_code(record[0]), _cell(record[1])) for record in records if record),
    )
    if isinstance(command, click.Group):
        for word, inner in sorted(command.commands.items()):
            yield from _command(inner, f"{name} {word}")


def _properties() -> str:
    own = [
        (_code(value), text) for name, value, text in described_names(names) if _is_property(name)
    ]
    own += [
        (_code(engine.SPARK_ROWS_MIN), f"[{engine.SPARK_ROWS_MIN_DEFAULT}] {_SPARK} rows."),
        (_code(engine.SPARK_BYTES_MIN), f"[{engine.SPARK_BYTES_MIN_DEFAULT}] {_SPARK} bytes."),
        (
            "`icefold.computed.<name>.expression`, `.type`, `.field-ids`, `.stored`",
            "A computed column: `table.add_computed_column`.",
        ),
        ("`icefold.index.<name>.columns`, `.field-ids`", "A secondary index: `icefold index add`."),
    ]
    iceberg = (
        (_code(name), _code(str(value)) if value != "" else "", text)
        for name, value, text in ICEBERG_PROPERTIES
    )
    return "\n".join(
        [
            "# Table properties\n\n`icefold table set-properties TABLE NAME=VALUE` sets them.\n",
            "## icefold's own\n",
            _table(("property", "meaning"), own),
            "## Schedule\n\n[How tasks start](../maintenance-scheduler.md#what-starts-a-task).\n",
            settings_table(),
            "\n## Iceberg's\n\nThese have an effect in icefold, with Iceberg's meaning.",
            "Of equality deletes `write.delete.parquet.*` goes before `write.parquet.*`.\n",
            _table(("property", "default", "meaning"), iceberg),
        ]
    )


_SPARK = "Where `resolve` goes to Spark by itself, in staged"


def _is_property(name: str) -> bool:
    return f"\n{name} = " in inspect.getsource(names).partition("# Table properties")[2]


def _metrics() -> str:
    clock = SystemClock()
    metrics, ingest = SchedulerMetrics(clock), IngestWatch("a.b", clock)
    with TemporaryDirectory() as folder:
        metrics.watch(Scheduler(open_catalog(warehouse=folder), ["none.*"]))
    parts = ["# Metrics\n\n[What to watch](../maintenance-scheduler.md#watching).\n"]
    for command, registry in (("maintain", metrics.registry), ("ingest", ingest.registry)):
        families = sorted(registry.collect(), key=lambda family: family.name)
        rows = (
            (
                _code(each.name + ("_total" if each.type == "counter" else "")),
                each.type,
                _cell(each.documentation),
            )
            for each in families
        )
        parts += [f"## icefold {command}\n", _table(("metric", "type", "meaning"), rows)]
    return "\n".join(parts)


def _summary_keys() -> str:
    keys = [
        (_code(value), _cell(text))
        for module in (names, cycle_figures)
        for name, value, text in described_names(module)
        if not _is_property(name)
    ]
    keys.append(
        ("`icefold.fence-token.`", "+ a lock's name: the highest of its tokens seen so far.")
    )
    return "\n".join(
        [
            "# Snapshot summary keys\n\nWhat icefold writes beside the counts of the Iceberg spec.",
            "[How they are used](../resolving.md#what-a-snapshot-says-about-itself).\n",
            _table(("key", "meaning"), keys),
        ]
    )


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines) + "\n"


def _code(text: str) -> str:
    return f"`{text}`"


def _cell(text: str) -> str:
    plain = re.sub(r"\s+", " ", text)
    return re.sub(r"([|<>*_])", r"\\\1", plain)
