"""Choices learnt from real calls, beside the program. May import choose.ahead and below."""
