"""Comparisons: cells, the race of all who take part, records. May import distributed, offline and below.

Nothing is imported here: ``plugin`` is loaded in every session of pytest.
"""
