"""Plans whose launches are noted as well as made, so that they can be repeated without the interpreter."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from nxcore.plugin import Kernel, Launched, Problem, hosted, note
from nxcore_triton.launch import Launch

WARP = 32
FORMATS = dict(
    zip(("i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64", "fp32", "fp64"), "bhiqBHIQfd", strict=True)
)
"""Triton's types of numbers, as the struct module writes them."""

PLAIN = {
    "num_ctas": 1,
    "global_scratch_size": 0,
    "profile_scratch_size": 0,
    "launch_cooperative_grid": False,
    "launch_pdl": False,
}
"""A compiled kernel's properties where it launches like any other."""


def replay(kernel: Kernel, problem: Problem, *tile: Any) -> Callable[..., Any]:
    """Return the plan of a problem with launches that are noted; see ``Kernel.replay``."""
    with hosted(Noted):
        found: Callable[..., Any] = kernel.planner(problem, *tile)
    return found


class Noted(Launch):
    """A launch that is made by Triton's own way, which loads the kernel, and noted."""

    def _go(self, tensors: Sequence[Tensor], args: tuple[Any, ...]) -> None:  # noqa: ARG002  as of any launch
        compiled = self.kernel[self.grid](*args, **self.constants, num_warps=self.warps)
        note(launched(compiled, self.grid, (*args, *self.values)))


def launched(compiled: Any, grid: Sequence[int], values: Sequence[Any]) -> Launched:
    """Return a launch as Triton's own launcher makes it: a parameter for each value that isn't a constant.

    Parameters
    ----------
    compiled : CompiledKernel
        Loaded.
    values : sequence
        Of all of the kernel's parameters.

    Raises
    ------
    ValueError
        If it needs more than the driver's plain launch.
    """
    about = compiled.metadata
    odd = [name for name, usual in PLAIN.items() if getattr(about, name, usual) != usual]
    if torch.version.hip is not None or odd:
        raise ValueError(f"a launch with {', '.join(odd) or 'ROCm'}")
    block, parameters, pointers = bytearray(), [], []
    for kind, value in flat(tuple(compiled.src.signature.values()), values):
        parameters.append(len(block))
        if kind.startswith("*"):
            if value is not None:
                pointers.append((len(block), value.data_ptr()))
            block += bytes(8)
        else:
            block += struct.pack(f"<{FORMATS[kind]}", value).ljust(8, b"\0")
    for _ in ("global", "profile"):  # scratch memory, which it doesn't use
        parameters.append(len(block))
        block += bytes(8)
    shape = (*grid, WARP * about.num_warps, 1, 1, about.shared)
    return Launched(compiled.function, 0, shape, bytes(block), tuple(parameters), tuple(pointers))


def flat(kind: Any, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the type and the value of each parameter: tuples are their items, constants are none."""
    if isinstance(kind, tuple):
        for k, v in zip(kind, value, strict=True):
            yield from flat(k, v)
    elif kind != "constexpr":
        yield kind, value
