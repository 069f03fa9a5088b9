"""Launch: a kernel bound to its grid and its constants, so that nothing is left to decide in a call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from nxcore.plugin import host
from nxcore_triton.binaries import attach
from nxcore_triton.tile import INTERPRETED

ALIGNED = 16  # bytes: what Triton compiles for where every pointer allows it


class Launch:
    """A Triton kernel, its grid and its constants.

    Triton's own ``kernel[grid](...)`` works out at every call which compiled version fits. Here all but
    the pointers' alignment is fixed, so the version for aligned pointers is kept and launched directly;
    other pointers take Triton's own way. Either reads torch's current stream at the launch.

    Parameters
    ----------
    kernel : JITFunction
        Its parameters: what a call passes, then the constexpr ones.
    **constants : Any
        The kernel's constexpr parameters.
    """

    def __new__(cls, *_: Any, **__: Any) -> Self:
        """Return a launch, or in a block that only compiles what compiles in its place."""
        instead = host()  # another class of launches
        made: Any = super().__new__(instead if isinstance(instead, type) else cls)
        return made

    def __init__(
        self, kernel: Any, grid: Sequence[int], device: torch.device, warps: int = 4, **constants: Any
    ) -> None:
        attach(kernel)
        self.kernel = kernel
        self.grid = (*grid, 1, 1)[:3]
        self.warps = warps
        self.constants = constants
        self.values = tuple(constants[name] for name in kernel.arg_names if name in constants)
        self.elsewhere = device if device.type == "cuda" and torch.cuda.device_count() > 1 else None
        self.aligned: Callable[..., None] | None = None

    def __call__(self, tensors: Sequence[Tensor], *args: Any) -> None:
        """Launch with ``args``; ``tensors`` are all tensors among them."""
        if self.elsewhere is not None:
            with torch.cuda.device(self.elsewhere):
                self._go(tensors, args)
        elif INTERPRETED:
            with np.errstate(all="ignore"):  # as on a GPU, inf - inf is NaN and no warning
                self._go(tensors, args)
        else:
            self._go(tensors, args)

    def _go(self, tensors: Sequence[Tensor], args: tuple[Any, ...]) -> None:
        bits = 0
        for tensor in tensors:
            bits |= tensor.data_ptr()
        if bits % ALIGNED:
            self.kernel[self.grid](*args, **self.constants, num_warps=self.warps)
        elif self.aligned is not None:
            self.aligned(*args, *self.values)
        else:
            compiled = self.kernel[self.grid](*args, **self.constants, num_warps=self.warps)
            # The interpreter compiles nothing; AMD's compiled version also depends on the storage's size.
            if compiled is not None and torch.version.hip is None:
                self.aligned = compiled[self.grid]
