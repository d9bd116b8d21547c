"""Pure data of the Iceberg v3 spec that PyIceberg does not model: files, entries, names, rules."""
