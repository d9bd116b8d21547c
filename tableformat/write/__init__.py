"""Writers of data and delete files; they return files, they never commit."""
