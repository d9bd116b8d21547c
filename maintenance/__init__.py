"""Everything that runs on a schedule, the status view and the command line."""
