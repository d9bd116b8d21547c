"""Texts that are no UTF-8: Python has such bytes of a command line as lone surrogates."""

from __future__ import annotations

from tableformat.errors import InvalidInputError


def is_unicode(text: str) -> bool:
    """Whether a text can be stored as UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def check_unicode(text: str, *, what: str) -> None:
    """Refuse a text that cannot be stored as UTF-8.

    Raises:
        InvalidInputError: It cannot; `what` it is goes into the message.
    """
    if not is_unicode(text):
        raise InvalidInputError(f"cannot read the {what}: it is not UTF-8", text=repr(text[:200]))
