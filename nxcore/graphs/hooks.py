"""Hooks that prevent a module's call from being captured or fused."""

from __future__ import annotations

import torch
from torch import nn

from nxcore.interop import internals


def hooked(*modules: nn.Module) -> bool:
    """Return whether any of ``modules`` has hooks, so that their calls must not be fused."""
    for m in modules:  # which takes half the time of a generator
        if m._forward_hooks or m._forward_pre_hooks or m._backward_hooks or m._backward_pre_hooks:
            return True
    return bool(nn.modules.module._has_any_global_hook())


def saving() -> bool:
    """Return whether there are hooks on what autograd saves, such as those of a checkpoint.

    A checkpoint compares the saved tensors of two computations, so the kernel must not change.
    """
    return not torch.compiler.is_compiling() and internals.saved_tensor_hooks() is not None
