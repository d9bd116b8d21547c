"""Row-level DELETE, UPDATE, MERGE and their scan context."""
