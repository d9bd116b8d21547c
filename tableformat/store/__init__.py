"""Object stores: the seam all file I/O goes through."""
