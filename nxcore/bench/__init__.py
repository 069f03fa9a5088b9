"""Comparisons: cells to measure, the race of all who take part, rows, records and what they say.

Nothing is imported here: ``plugin`` is loaded in every session of pytest.
"""
