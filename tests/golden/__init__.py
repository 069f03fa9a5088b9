"""Golden files: what a change of the code must not move, or must say that it moved."""
