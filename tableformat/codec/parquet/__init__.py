"""Parquet: data and delete files, their statistics and checksums."""
