"""Kernels held to the float64 reference; those that failed, in quarantine. May import registry and below."""
