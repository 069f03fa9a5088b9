"""Operators in torch: autograd, autocast, torch's library, DTensors. May import ops and below."""
