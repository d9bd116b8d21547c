"""Spark: session set-up, distributed readers and writers."""
