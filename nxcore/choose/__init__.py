"""From a problem to the kernel that serves it. May import observe, trust and below."""
