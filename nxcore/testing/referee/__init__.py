"""The referee: ``verify`` judges a function of tensors, without a plugin or a registry."""
