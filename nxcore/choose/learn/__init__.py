"""Choices learnt from real calls, beside the program. May import choose.recall and below."""
