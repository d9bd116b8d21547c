"""SQL expressions: parsed, bound to columns, and what this process evaluates itself."""
