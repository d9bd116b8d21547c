"""One stream of change events into many tables."""
