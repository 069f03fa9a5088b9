"""Measurements on disk: documents, wisdom, locks, recorded problems. May import measure and below."""
