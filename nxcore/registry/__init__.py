"""Operators and backends by name, found through entry points. May import interop and below."""
