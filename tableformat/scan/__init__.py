"""Scan planning and reading."""
