"""The way in: from a call's key to the kernel and its wrappers. May import choose and below."""
