"""Hooks: what keeps a module's call from being captured or fused."""

from __future__ import annotations

import torch
from torch import nn


def hooked(*modules: nn.Module) -> bool:
    """Return whether any of ``modules`` has hooks, so that their calls must not be fused."""
    return nn.modules.module._has_any_global_hook() or any(  # noqa: SLF001  torch has no other way to ask
        m._forward_hooks  # noqa: SLF001
        or m._forward_pre_hooks  # noqa: SLF001
        or m._backward_hooks  # noqa: SLF001
        or m._backward_pre_hooks  # noqa: SLF001
        for m in modules
    )


def saving() -> bool:
    """Return whether there are hooks on what autograd saves, such as those of a checkpoint.

    A checkpoint compares what the computation keeps the first time and the second: who serves mustn't change.
    """
    hooks = torch._C._autograd._top_saved_tensors_default_hooks  # noqa: SLF001  no public test
    return not torch.compiler.is_compiling() and hooks(True) is not None
