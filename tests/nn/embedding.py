"""An embedding that takes images: their values are rounded to indices."""

from torch import nn


def indexed(module: nn.Module) -> nn.Module:
    """Give an embedding of five rows indices in place of what it is given."""
    module.register_forward_pre_hook(lambda _, given: (given[0].abs().long().clamp(max=4),))
    return module
