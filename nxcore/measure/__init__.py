"""Callables to timings, timings to a decision, and a device at its best. May import context and below."""
