"""Change formats: events in, rows with a RowKind out."""
