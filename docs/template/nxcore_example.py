"""NumPy kernels for nxcore; importing this module doesn't import NumPy."""

from collections.abc import Callable, Iterable
from importlib.metadata import version

import torch
from torch import Tensor

from nxcore.plugin import YES, Backend, Check, Kernel, Problem, TensorMeta, Verdict, hookimpl, no


def probe() -> Verdict:
    """Answer for the machine, once a session."""
    found = version("numpy")
    return YES if int(found.split(".")[0]) >= 2 else no(f"needs numpy >= 2, found {found}")


def accepts(problem: Problem) -> Verdict:
    """Answer for a call: facts, no data."""
    for meta in problem.tensors:
        if meta.device.type != "cpu" or meta.dtype is not torch.float32:
            return no(f"needs float32 on the CPU, got {meta.dtype} on {meta.device}")
    return YES


def accepts_add(problem: Problem) -> Verdict:
    """Take a tensor for ``y``, not a number."""
    if not isinstance(problem["y"], TensorMeta):
        return no(f"needs a tensor for y, got a number ({problem['y'].__name__})")
    return accepts(problem)


def plan_add(problem: Problem) -> Callable[..., Tensor]:
    """Decide what can be decided before the call; what is returned runs at every call."""
    import numpy as np

    fresh = problem.outputs  # torch's shape, strides and dtype

    def call(x: Tensor, y: Tensor, alpha: float, out: Tensor | None) -> Tensor:  # all arguments, in order
        result = fresh.empty() if out is None else out
        a, b, c = (t.detach().numpy() for t in (x, y, result))
        with np.errstate(all="ignore"):
            np.add(a, b if alpha == 1 else alpha * b, out=c)
        return result

    return call


@hookimpl
def nxcore_backend() -> Backend:
    """Return the backend: its name, its probe, its kernels."""
    kernels = [
        Kernel("add", "nxcore_example:plan_add", accepts_add),
    ]
    return Backend("example", probe, kernels, api=1)


@hookimpl
def nxcore_doctor() -> Iterable[Check]:
    """Yield lines for ``nxcore doctor``."""
    yield Check("numpy", bool(probe()), version("numpy"), fix="pip install 'numpy>=2'")
