"""What changed between two snapshots: rows with a kind, computed from differences of files."""
