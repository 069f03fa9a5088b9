"""Calls: from a call's key to the plan and its wrappers. May import choose and below."""
