"""Waits: how often a function would have the host wait for a device, counted on the CPU."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class Waits(TorchDispatchMode):
    """Count the operators that wait for the device."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        named = ("_local_scalar_dense", "nonzero", "is_nonzero", "equal", "masked_select", "index.Tensor")
        self.count += any(str(func).startswith(f"aten.{name}") for name in named)
        return func(*args, **(kwargs or {}))


def waits(monkeypatch, function):
    """Return how often ``function`` reads numbers; on the CPU, ``tolist`` and ``cpu`` reach no dispatcher."""
    with monkeypatch.context() as patch, Waits() as mode:
        for name in ("tolist", "cpu", "numpy"):
            method = getattr(torch.Tensor, name)

            def counted(self, *args, _method=method):
                mode.count += 1
                return _method(self, *args)

            patch.setattr(torch.Tensor, name, counted)
        function()
    return mode.count
