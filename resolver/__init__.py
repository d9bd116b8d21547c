"""From staged equality deletes to published deletion vectors, through a primary-key index."""

from __future__ import annotations

from resolver.group import resolve_group
from resolver.group_report import GroupReport
from resolver.job import resolve
from resolver.report import ResolveReport
from resolver.secondary import IndexBuild, build_index

__all__ = [
    "GroupReport",
    "IndexBuild",
    "ResolveReport",
    "build_index",
    "resolve",
    "resolve_group",
]
