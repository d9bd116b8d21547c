"""What is computed at the first look at an attribute, and kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Self, TypeVar, overload

T = TypeVar("T")


class cached_property(Generic[T]):  # noqa: N801 - reads as functools' does
    """As `functools.cached_property` since Python 3.12: without a lock.

    Python 3.11's holds one lock for all instances while any of them computes: reads of files that
    have nothing in common wait for each other, or for ever. Threads that look at the same time may
    compute twice here; the first value is kept, for all.
    """

    def __init__(self, compute: Callable[..., T]) -> None:
        """Wrap a method without arguments of a class whose instances have a `__dict__`."""
        self._compute = compute
        self._name = compute.__name__
        self.__doc__ = compute.__doc__

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: type) -> T: ...
    def __get__(self, instance: object | None, owner: type) -> Self | T:
        """The value; not called again, since an instance's own attributes come first."""
        if instance is None:
            return self
        value: T = instance.__dict__.setdefault(self._name, self._compute(instance))
        return value
