"""Writers of data files, delete files and deletion vectors; they return files, they never commit."""
