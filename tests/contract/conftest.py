"""Fixtures of several suites here."""

from __future__ import annotations

from tests.support.catalog_backends import backend

__all__ = ["backend"]
