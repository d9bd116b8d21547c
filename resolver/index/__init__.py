"""The primary-key index: which rows of the target have a key."""
