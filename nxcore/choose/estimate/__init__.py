"""Choices for sizes that were never measured. May import choose.recall and below."""
