"""Recordings and profiles: the problems of calls and their times. May import registry and below."""
