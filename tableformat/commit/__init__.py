"""The commit engine: change sets, conflict rules, the retry loop."""
