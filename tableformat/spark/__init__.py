"""Spark: session set-up, distributed readers and writers, `format("icefold")`."""

from __future__ import annotations

from tableformat.spark.data_source import register

__all__ = ["register"]
