"""Choices for sizes that were never measured. May import choose.ahead and below."""
