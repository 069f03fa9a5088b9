"""Calls and modules captured as CUDA graphs, and replayed. May import session and below."""
