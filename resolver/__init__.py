"""From staged equality deletes to published deletion vectors, through a primary-key index."""

from __future__ import annotations

from resolver.job import resolve
from resolver.report import ResolveReport

__all__ = ["ResolveReport", "resolve"]
