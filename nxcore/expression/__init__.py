"""Expressions: trees of pointwise functions, from which operators are made. May import store and below."""
