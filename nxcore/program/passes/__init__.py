"""Passes: each rewrites a graph of torch's functions. May import graphs and below, and each other."""
