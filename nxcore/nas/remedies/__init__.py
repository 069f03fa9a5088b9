"""Remedies against the collapse of a search to skip connections: one file each, with its source."""
