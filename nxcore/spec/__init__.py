"""Operators, calls, kernels and devices as data. May import settings and below."""
