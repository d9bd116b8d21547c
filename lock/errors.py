"""Every error of `lock`, grouped by what the caller does next.

```
LockError                    .message  .action  .context: dict[str, str]
|-- LeaseUnavailableError    someone else has it (.holder): wait longer, or come back later
|-- LeaseLostError           stop before the next irreversible step: a newer holder may exist
|-- LockUnavailableError     the lock's store did not answer: wait and repeat
|-- UnsafeStoreError         the store ignores write conditions: use another one
|-- InvalidLockError         fix the call (also ValueError): name, task, lease time, URL
`-- CorruptLockError         the stored record is not one of ours; context["location"] names it
```

One line each, `<what failed>: <why>; <k>=<v>, ...; <what to do>`. No message, context or cause text
ever holds a password: stores describe themselves without credentials.
"""

from __future__ import annotations

from typing import Any

# Characters of the message, of the advice and of each context value that are shown.
PART_LENGTH_MAX = 1000


class LockError(Exception):
    """Base of all lock errors; never raised itself.

    Args:
        message: What failed and why, without context or advice.
        action: What the reader of the line can do about it.
        **context: Named values (`lock=`, `holder=`, ...), appended to the line.
    """

    def __init__(self, message: str, *, action: str | None = None, **context: object) -> None:
        super().__init__(message)
        self.message = message
        self.action = action
        self.context: dict[str, str] = {name: str(value) for name, value in context.items()}

    def __str__(self) -> str:
        parts = [_one_line(self.message)]
        if self.context:
            parts.append(", ".join(f"{k}={_one_line(v)}" for k, v in self.context.items()))
        if self.action:
            parts.append(_one_line(self.action))
        return "; ".join(parts)

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.message, self.action, self.context))


def _one_line(text: str) -> str:
    """Fit for one line of any terminal, in any encoding: records hold what others wrote."""
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
    cls: type[LockError], message: str, action: str | None, context: dict[str, str]
) -> LockError:
    return cls(message, action=action, **context)


class LeaseUnavailableError(LockError):
    """The lock was not free in time."""

    @property
    def holder(self) -> str:
        """Who has it, or who is next in the queue: task, host and process."""
        return self.context.get("holder", "")


class LeaseLostError(LockError):
    """The lease is not ours any more, or can no longer be shown to be."""


class LockUnavailableError(LockError):
    """The lock's store did not answer, or answered with an error. A write may have landed."""


class UnsafeStoreError(LockError):
    """The store grants a conditional write whose condition is false."""


class InvalidLockError(LockError, ValueError):
    """The call cannot be right, whatever the state of the lock."""


class CorruptLockError(LockError):
    """A lock record that cannot be read; it is left as it is."""
