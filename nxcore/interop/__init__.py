"""What torch sees of an operator: autograd, autocast, its library, DTensors. May import ops and below."""
