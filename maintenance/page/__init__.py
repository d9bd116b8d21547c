"""The HTML report of a table: one file, no external resources."""
