"""The settings of `maintain`: one table that drives parsing, checks, help and documentation.

Each is the table property `icefold.maintain.<name>`; options of the command or the scheduler go
before the property, for all tables. A threshold of 0 turns its trigger off.
"""

from __future__ import annotations

import difflib
import textwrap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from tableformat.errors import InvalidInputError

PREFIX = "icefold.maintain."
MS_PER_UNIT = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


class TaskName(StrEnum):
    """What can be scheduled."""

    RESOLVE = "resolve"
    DROP_DEAD_DELETES = "drop-dead-deletes"
    COMPACT = "compact"
    REWRITE_VECTORS = "rewrite-vectors"
    EXPIRE = "expire"
    REWRITE_MANIFESTS = "rewrite-manifests"
    REMOVE_ORPHANS = "remove-orphans"


class Kind(StrEnum):
    """How a value is written and shown."""

    FLAG = "flag"
    COUNT = "count"
    BYTES = "bytes"
    MS = "ms"
    SHARE = "share"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting. `default` is a flag (0 or 1), a count, bytes, milliseconds or a share 0..1."""

    name: str
    kind: Kind
    default: float
    text: str

    @property
    def property_name(self) -> str:
        """The table property."""
        return PREFIX + self.name

    def parse(self, text: str) -> float:
        """The value that `text` says.

        Raises:
            InvalidInputError: It says none.
        """
        try:
            value = _parse(self.kind, text.strip().lower())
        except (ValueError, OverflowError):
            value = -1.0
        if not 0 <= value <= (1 if self.kind == Kind.SHARE else _VALUE_MAX):  # nor NaN
            raise InvalidInputError(
                f"not a {_KIND_TEXTS[self.kind]}",
                property=self.property_name,
                value=repr(text),
                action=f"the default is {self.show(self.default)}",
            )
        return value

    def show(self, value: float) -> str:
        """A value as people write it."""
        if self.kind == Kind.FLAG:
            return "true" if value else "false"
        return f"{value:g}" if self.kind == Kind.SHARE else f"{int(value)}"


_VALUE_MAX = float(1 << 53)  # exact in a float; far beyond any sensible threshold
_KIND_TEXTS = {
    Kind.FLAG: "flag (true or false)",
    Kind.COUNT: "count",
    Kind.BYTES: "number of bytes",
    Kind.MS: "number of milliseconds",
    Kind.SHARE: "share from 0 to 1",
}


def _parse(kind: Kind, text: str) -> float:
    if kind == Kind.FLAG:
        return float(("false", "true").index(text))
    if kind == Kind.SHARE:
        return float(text)
    return float(int(text))


def _setting(kind: Kind) -> Callable[[str, float, str], Setting]:
    return lambda name, default, text: Setting(name=name, kind=kind, default=default, text=text)


_count, _bytes, _ms, _share = map(_setting, (Kind.COUNT, Kind.BYTES, Kind.MS, Kind.SHARE))


def _flag(name: str, text: str, *, default: bool = True) -> Setting:
    return Setting(name=name, kind=Kind.FLAG, default=int(default), text=text)


SECOND_MS, MINUTE_MS, HOUR_MS, DAY_MS = (MS_PER_UNIT[unit] for unit in ("s", "m", "h", "d"))

_TABLE = (
    _flag("enabled", "Whether the table is maintained at all."),
    _ms("backoff-min-ms", SECOND_MS, "Wait after a task's first failure; doubles with each."),
    _ms("backoff-max-ms", 10 * MINUTE_MS, "The longest wait after failures."),
    _flag("resolve.enabled", "Whether staged changes are published."),
    _flag("resolve.cut", "Whether the table is published together with others of its stream."),
    _count("resolve.commits", 20, "Staged commits that start a cycle."),
    _count("resolve.deletes", 100_000, "Staged equality deletes that start a cycle."),
    _bytes("resolve.bytes", 256 << 20, "Staged bytes that start a cycle."),
    _ms("resolve.age-ms", SECOND_MS, "Age of the oldest staged commit that starts a cycle."),
    _ms("resolve.min-interval-ms", 0, "Pause after a publish: room for statements of others."),
    _flag("drop-dead-deletes.enabled", "Whether dead equality deletes on the target are removed."),
    _count("drop-dead-deletes.deletes", 1, "Equality deletes on the target that start it."),
    _ms("drop-dead-deletes.min-interval-ms", 10 * MINUTE_MS, "Pause between two runs."),
    _flag("compact.enabled", "Whether data files are compacted."),
    _count("compact.commits", 100, "Commits since the last compaction that start one."),
    _count("compact.files", 64, "Data files added since then that start one."),
    _bytes("compact.bytes", 1 << 30, "Bytes added since then that start one."),
    _share(
        "compact.dv-share",
        0.2,
        "Share of rows that deletes by position hide that starts one (v2: since the last).",
    ),
    _ms("compact.interval-ms", HOUR_MS, "Time after which any change starts one."),
    _ms("compact.min-interval-ms", 20 * SECOND_MS, "Pause between two compactions."),
    _bytes("compact.group-bytes", 128 << 20, "Rewritten at once; cycles get a turn in between."),
    _flag("compact.partial-progress", "Whether a run commits in several parts.", default=False),
    _count("compact.max-commits", 10, "How many parts at most; at least 1."),
    _flag("rewrite-vectors.enabled", "Whether deletion vectors are packed into fewer files."),
    _count("rewrite-vectors.dvs", 500, "Deletion vectors written since the last run."),
    _count("rewrite-vectors.position-delete-files", 50, "The same on v2: files of them."),
    _ms("rewrite-vectors.interval-ms", 6 * HOUR_MS, "Time after which any new one starts a run."),
    _ms("rewrite-vectors.min-interval-ms", 10 * MINUTE_MS, "Pause between two runs."),
    _flag("expire.enabled", "Whether old snapshots are expired (history.expire.* say which)."),
    _count("expire.snapshots", 100, "Commits since the last run that start one."),
    _ms("expire.interval-ms", HOUR_MS, "Time after which two snapshots start a run."),
    _ms("expire.min-interval-ms", MINUTE_MS, "Pause between two runs."),
    _flag("rewrite-manifests.enabled", "Whether manifests are rewritten."),
    _count("rewrite-manifests.commits", 500, "Commits since the last run that start one."),
    _ms("rewrite-manifests.interval-ms", DAY_MS, "Time after which any change starts a run."),
    _ms("rewrite-manifests.min-interval-ms", 10 * MINUTE_MS, "Pause between two runs."),
    _flag("remove-orphans.enabled", "Whether files that nothing needs are deleted."),
    _ms("remove-orphans.interval-ms", DAY_MS, "Time after which a run starts."),
    _ms("remove-orphans.min-interval-ms", 10 * MINUTE_MS, "Pause between two runs."),
    _ms("remove-orphans.older-than-ms", 3 * DAY_MS, "Younger files are never orphans."),
)
SETTINGS: Mapping[str, Setting] = {setting.name: setting for setting in _TABLE}


@dataclass(frozen=True, slots=True)
class MaintainConfig:
    """The settings of one table."""

    values: Mapping[str, float]

    def __getitem__(self, name: str) -> float:
        return self.values.get(name, SETTINGS[name].default)

    def is_enabled(self, task: TaskName) -> bool:
        """Whether `task` is on, and maintenance of the table at all."""
        return bool(self["enabled"] and self[f"{task}.enabled"])

    def min_interval_ms(self, task: TaskName) -> float:
        """The pause between two runs."""
        return self[f"{task}.min-interval-ms"]


def parse_config(
    properties: Mapping[str, str],
    overrides: Mapping[str, float] | None = None,
    defaults: Mapping[str, float] | None = None,
) -> MaintainConfig:
    """The settings that table properties say.

    Args:
        properties: Of the table.
        overrides: By name without prefix; they go before the properties.
        defaults: Where neither says anything, instead of the defaults of all.

    Raises:
        InvalidInputError: An `icefold.maintain.` property that is none, or a wrong value.
    """
    values = dict(defaults or {})
    for name, text in properties.items():
        if name.startswith(PREFIX):
            setting = find_setting(name)
            values[setting.name] = setting.parse(text)
    values.update(overrides or {})
    return MaintainConfig(values)


def parse_overrides(pairs: Mapping[str, str]) -> dict[str, float]:
    """Settings given as options, with or without the prefix.

    Raises:
        InvalidInputError: No such setting, or a wrong value.
    """
    found = [(find_setting(name), text) for name, text in pairs.items()]
    return {setting.name: setting.parse(text) for setting, text in found}


def find_setting(name: str) -> Setting:
    """The setting called `name`, with or without the prefix.

    Raises:
        InvalidInputError: There is none; names the nearest.
    """
    short = name.removeprefix(PREFIX)
    if short in SETTINGS:
        return SETTINGS[short]
    near = difflib.get_close_matches(short, SETTINGS, n=1)
    raise InvalidInputError(
        "there is no such setting",
        setting=repr(name),
        action=f"did you mean {PREFIX}{near[0]}?" if near else "see icefold maintain --settings",
    )


def parse_duration_ms(text: str) -> int:
    """`500ms`, `30s`, `5m`, `2h`, `1d` in milliseconds.

    Raises:
        InvalidInputError: It is none, or not positive.
    """
    number = text.strip().rstrip("dhms")
    unit = text.strip().removeprefix(number)
    try:
        value = float(number) * MS_PER_UNIT[unit]
    except (ValueError, KeyError):
        value = -1.0
    if not 1 <= value <= 365 * DAY_MS:
        raise InvalidInputError(
            "not a duration of 1ms to 365d",
            value=repr(text),
            action="write 500ms, 30s, 5m, 2h or 1d",
        )
    return int(value)


def settings_table(settings: Iterable[Setting] = SETTINGS.values()) -> str:
    """The settings as a Markdown table, for the documentation; see also `settings_text`."""
    lines = ["| property | default | what it says |", "|---|---|---|"]
    lines += [
        f"| `{each.property_name}` | `{each.show(each.default)}` | {each.text} |"
        for each in settings
    ]
    return "\n".join(lines)


def settings_text(width: int, settings: Iterable[Setting] = SETTINGS.values()) -> str:
    """The settings for a terminal of `width` characters: name=default, and below what it says."""
    lines = []
    for each in settings:
        lines.append(f"{each.property_name}={each.show(each.default)}")
        indent = "    "
        lines += textwrap.wrap(each.text, width, initial_indent=indent, subsequent_indent=indent)
    return "\n".join(lines)
