"""Every error icefold raises, grouped by what the caller does next.

```
TableError                  .kind  .retry  .context  .files_safe_to_delete (False unless proven)
|-- CommitConflictError     refresh, plan again, commit again; written files may be dropped
|-- CommitUnknownError      find out by the commit's own id first; delete nothing, do not retry
|-- FencedError             stop this writer: a newer holder exists
|-- StoreUnavailableError   wait and repeat (idempotent steps only)
|-- InvalidInputError       fix the call (also ValueError)
|   `-- AccessRefusedError  fix the credentials: nothing is wrong with the table
|-- NotFoundError           fix the call (also LookupError)
|-- AlreadyExistsError      fix the call
|-- UnsupportedError        valid by the spec, but not done here; names what is not
|-- CorruptDataError        fix the data; .location says where
`-- InternalError           report it: our bug, never bad bytes and never bad input
```

A commit that returns is *committed*. `CommitConflictError` and `CommitUnknownError` are the other
two outcomes; every other class is raised before the swap. Clean-up code reads only
`files_safe_to_delete`. The message is one line, `<what failed>: <why>; <k>=<v>, ...; <what to do>`;
its text is not an interface, `kind`, `retry` and the context keys are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from typing import Any, Self

# Characters of the message, of the advice and of each context value that are shown.
PART_LENGTH_MAX = 1000


class ErrorKind(StrEnum):
    """What went wrong. Append-only: values are part of the interface."""

    CONFLICT = "conflict"
    UNKNOWN = "unknown"
    FENCED = "fenced"
    UNAVAILABLE = "unavailable"
    INVALID_INPUT = "invalid-input"
    NOT_FOUND = "not-found"
    ALREADY_EXISTS = "already-exists"
    UNSUPPORTED = "unsupported"
    CORRUPT_DATA = "corrupt-data"
    INTERNAL = "internal"


class Retry(StrEnum):
    """What repeating the same call can do."""

    NEVER = "never"
    AFTER_WAIT = "after-wait"
    AFTER_REPLAN = "after-replan"
    AFTER_LOOKUP = "after-lookup"


class TableError(Exception):
    """Base of all errors; never raised itself.

    Args:
        message: What failed and why, without context or advice.
        action: What the reader of the line can do about it.
        **context: Named values (`location=`, `table=`, `key=`, ...), appended to the line.
    """

    kind: ErrorKind = ErrorKind.INTERNAL
    retry: Retry = Retry.NEVER
    files_safe_to_delete: bool = False

    def __init__(self, message: str, *, action: str | None = None, **context: object) -> None:
        super().__init__(message)
        self.message = message
        self.action = action
        self.context: dict[str, str] = {name: str(value) for name, value in context.items()}

    def __str__(self) -> str:
        parts = [one_line(self.message)]
        if self.context:
            parts.append(", ".join(f"{k}={one_line(v)}" for k, v in self.context.items()))
        if self.action:
            parts.append(one_line(self.action))
        return "; ".join(parts)

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.message, self.action, self.context, self.__dict__))

    def with_context(self, **context: object) -> Self:
        """Add context that an outer layer knows; existing keys stay."""
        for name, value in context.items():
            self.context.setdefault(name, str(value))
        return self


def one_line(text: str) -> str:
    """`text` fit for one line of any terminal, in any encoding, and not without end.

    Damaged files and wrong input name things as they like, and messages quote them.
    """
    if len(text) > PART_LENGTH_MAX:
        text = f"{text[:PART_LENGTH_MAX]}..."
    text = text.replace("\n", " ")
    if text.isprintable():
        return text
    escaped = "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in text
    )
    return escaped[: PART_LENGTH_MAX + 3]


def _rebuild(
    cls: type[TableError],
    message: str,
    action: str | None,
    context: dict[str, str],
    state: dict[str, Any],
) -> TableError:
    error = cls(message, action=action, **context)
    error.__dict__.update(state)
    return error


class CommitConflictError(TableError):
    """The commit did not land, because something else did.

    `conflicts` names the snapshots and files it clashed with; empty when only the swap was lost.
    `is_proven` is False where a catalog refused the commit and shows nothing that it lost to: the
    refusal may be the echo of its own repeated request.
    """

    kind = ErrorKind.CONFLICT
    retry = Retry.AFTER_REPLAN
    files_safe_to_delete = True
    is_proven: bool = True

    def __init__(
        self,
        message: str,
        *,
        conflicts: Sequence[str] = (),
        action: str | None = None,
        **context: object,
    ) -> None:
        super().__init__(message, action=action, **context)
        self.conflicts = tuple(conflicts)

    def as_unproven(self) -> Self:
        """The same, of a refusal that may be an echo."""
        self.is_proven = self.files_safe_to_delete = False
        return self


class CommitUnknownError(TableError):
    """The commit may have landed. Look for `snapshot_id`; until then delete nothing."""

    kind = ErrorKind.UNKNOWN
    retry = Retry.AFTER_LOOKUP


class FencedError(TableError):
    """A newer fence token was seen: another holder has taken over."""

    kind = ErrorKind.FENCED
    files_safe_to_delete = True


class StoreUnavailableError(TableError):
    """The object store or the catalog did not answer; nothing is known to have changed."""

    kind = ErrorKind.UNAVAILABLE
    retry = Retry.AFTER_WAIT


class InvalidInputError(TableError, ValueError):
    """The call cannot be right, whatever the state of the table."""

    kind = ErrorKind.INVALID_INPUT


class AccessRefusedError(InvalidInputError):
    """Who asks may not: credentials are missing, wrong or have ended. Tables are as they were."""


class NotFoundError(TableError, LookupError):
    """A named thing does not exist."""

    kind = ErrorKind.NOT_FOUND


class AlreadyExistsError(TableError):
    """A thing of that name exists already."""

    kind = ErrorKind.ALREADY_EXISTS


class UnsupportedError(TableError):
    """Valid, but not done here."""

    kind = ErrorKind.UNSUPPORTED


class CorruptDataError(TableError):
    """Bytes that break the format. `context["location"]` names the file."""

    kind = ErrorKind.CORRUPT_DATA


class InternalError(TableError):
    """A state that correct code cannot reach."""

    kind = ErrorKind.INTERNAL


@contextmanager
def error_context(**context: object) -> Iterator[None]:
    """Attach `context` to every `TableError` that passes."""
    try:
        yield
    except TableError as error:
        error.with_context(**context)
        raise


@contextmanager
def refusing_deep_nesting(what: str) -> Iterator[None]:
    """Python's recursion limit as a wrong input: what parses and visits trees calls itself."""
    try:
        yield
    except RecursionError as error:
        raise InvalidInputError(f"cannot read the {what}: it is nested too deeply") from error
