"""Catalogs: where a table's current metadata is looked up and swapped."""
