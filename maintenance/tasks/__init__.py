"""Maintenance tasks: one function, one options class and one report each; see `base`."""
