"""Rows by key: where they are (an index, or a pruned scan), and reading just them."""
