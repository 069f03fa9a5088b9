"""What calls met and what they took: recordings and profiles. May import registry and below."""
