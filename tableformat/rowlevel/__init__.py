"""Row-level DELETE, UPDATE and MERGE: from a statement to one validated commit."""
