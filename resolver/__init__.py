"""From staged equality deletes to published deletion vectors, through a primary-key index."""

from __future__ import annotations

from resolver.job import resolve
from resolver.report import ResolveReport
from resolver.secondary import IndexBuild, build_index

__all__ = ["IndexBuild", "ResolveReport", "build_index", "resolve"]
