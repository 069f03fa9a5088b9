"""Graphs that torch's dynamo traced, replayed as CUDA graphs. May import graphs, testing and below."""
