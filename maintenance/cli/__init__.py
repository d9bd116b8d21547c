"""The `icefold` command: one file per command group."""
