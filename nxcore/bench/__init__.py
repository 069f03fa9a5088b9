"""Benchmarks: cells, races of kernels, records. May import distributed, offline and below.

This module imports nothing, because pytest loads ``plugin`` in every session.
"""
