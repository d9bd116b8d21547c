"""A table's metadata as Arrow tables, with the column names of Iceberg's metadata tables."""
