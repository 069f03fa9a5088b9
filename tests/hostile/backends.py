"""A loopback backend, which is the reference in disguise, and twelve hostile ones, each wrong in its own way.

Each is data: how it turns an operator's reference into a kernel, the rule of the conformance kit that was
made for it, and a call that shows a user what is wrong. All but the one that only hangs do so for an
elementwise operator, a reduction and a weighted sum alike.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from nxcore.registry.registry import Registry
from nxcore.spec.kernel import Backend
from nxcore.spec.problem import leaves
from nxcore.spec.spec import OpSpec
from nxcore.trust.memory import each
from nxcore.trust.truth import without_out
from tests.null import fakes
from tests.null.fakes import SPECS

Call = Callable[..., Any]

OPS = ("add", "sum", "softmax_sum")
PLAIN = {"add": "last_block_partly_filled", "sum": "inner_axis", "softmax_sum": "last_block_partly_filled"}
PERMUTED = dict.fromkeys(OPS, "transposed")
NAN = {"add": "nan", "sum": "nan", "softmax_sum": "nan_in_candidates"}
MIXED_SIGNS = {"add": "alpha_dropped", "sum": "outer_axis", "softmax_sum": "last_block_partly_filled"}

HUNG = "NXCORE_TEST_HUNG"
"""Names a file that appears once a kernel hangs."""

LATE = 0.1
"""Seconds after its return at which a kernel's background thread writes the result."""


@dataclass(frozen=True)
class Hostile:
    """One way to be wrong.

    Attributes
    ----------
    disguise : callable
        From a reference, which takes no ``out``, to what computes in its place.
    rule : str
        The rule of the kit that refuses it.
    gate : str
        How the refusal of the gate begins that a user's first call meets; empty if only the kit can tell.
    shown : Mapping
        Operator -> the sample whose call it gets wrong.
    dtype : torch.dtype
        The element type that it claims.
    """

    disguise: Callable[[Call], Call]
    rule: str
    gate: str = "wrong on sample"
    shown: Mapping[str, str] = field(default_factory=lambda: MappingProxyType(PLAIN))
    dtype: torch.dtype = torch.float32

    def kernel(self, op: str) -> Call:
        """Return it as a kernel of ``op``."""
        return _with_out(SPECS[op], self.disguise(SPECS[op].reference))

    def backend(self, *ops: str) -> Backend:
        """Return it as a backend of these operators, a kernel each."""
        kernels = (fakes.kernel(op, self.kernel(op), dtypes=(self.dtype,)) for op in ops or OPS)
        return fakes.backend("hostile", *kernels)

    def arguments(self, op: str) -> tuple[Any, ...]:
        """Return the arguments of a call that it gets wrong; the same numbers at every call."""
        return fakes.build(op, self.shown[op], self.dtype)


def _with_out(spec: OpSpec, compute: Call) -> Call:
    """Return ``compute`` as a kernel that writes into ``out`` where one is given."""

    def call(*args: Any) -> Any:
        inputs = without_out(spec, args)
        result = compute(*inputs)
        out = next((a for a, i in zip(args, inputs, strict=True) if a is not i), None)
        return result if out is None else out.copy_(result)

    return call


def reading(change: Callable[[Tensor], Tensor]) -> Callable[[Call], Call]:
    """Compute from changed inputs, and lay the result out as if they weren't."""

    def disguise(reference: Call) -> Call:
        def compute(*args: Any) -> Any:
            return torch.empty_like(reference(*args)).copy_(reference(*each(args, change)))

        return compute

    return disguise


def giving(change: Callable[[Tensor], Tensor]) -> Callable[[Call], Call]:
    """Change the right result."""
    return lambda reference: lambda *args: change(reference(*args))


def mutating(reference: Call) -> Call:
    """Write into the first element of the first input."""

    def compute(*args: Any) -> Any:
        result = reference(*args)
        first = next(leaves(args))
        if first.numel():
            first.as_strided((1,), (1,)).fill_(7)
        return result

    return compute


def in_a_thread(reference: Call) -> Call:
    """Return before a thread has filled the output: what a side stream is on a CPU."""

    def compute(*args: Any) -> Any:
        right = reference(*args)
        result = torch.empty_like(right)
        threading.Timer(LATE, result.copy_, [right]).start()
        return result

    return compute


def on_a_side_stream(reference: Call) -> Call:
    """Leave the current stream, and nobody waits."""

    def compute(*args: Any) -> Any:
        with torch.cuda.stream(torch.cuda.Stream()):
            return reference(*args)

    return compute


def remembering(reference: Call) -> Call:
    """Answer from memory where the addresses are known."""
    known: dict[Any, Tensor] = {}

    def compute(*args: Any) -> Any:
        plain = [a for a in args if not list(leaves(a))]
        key = (repr(plain), *(_address(t) for t in leaves(args)))
        if key not in known:
            known[key] = reference(*args)
        return known[key].clone()

    return compute


def _address(tensor: Tensor) -> tuple[int, ...]:
    return (tensor.data_ptr(), *tensor.shape, *tensor.stride())


def accumulating_in_16_bits(reference: Call) -> Call:
    """Round after every term."""

    def add(x: Any, y: Any, alpha: Any, out: Any) -> Any:
        return x + y * alpha

    def total(x: Any, dim: Any, keepdim: Any) -> Any:
        result = reference(x, dim, keepdim)
        axes = range(x.ndim) if dim is None or dim == () else [dim] if isinstance(dim, int) else dim
        kept = [i for i in range(x.ndim) if i not in {a % x.ndim for a in axes}]
        rows = x.permute(*kept, *(i for i in range(x.ndim) if i not in kept)).reshape(result.numel(), -1)
        sums = rows.new_zeros(result.numel())
        for chunk in rows.split(max(1, rows.shape[1] // 256), dim=1):
            sums = sums + chunk.sum(1)  # a sum of few, then one more rounding
        return torch.empty_like(result).copy_(sums.view(result.shape))

    def blend(xs: Any, logits: Any) -> Any:
        weights = torch.softmax(logits, 0).to(xs[0].dtype)
        result = torch.zeros_like(reference(xs, logits))
        for x, weight in zip(xs, weights, strict=True):
            result += x * weight
        return result

    return {"add": add, "sum": total, "softmax_sum": blend}[_name(reference)]


def _name(reference: Call) -> str:
    return next(name for name, spec in SPECS.items() if spec.reference is reference)


def in_tf32(tensor: Tensor) -> Tensor:
    """Leave 10 of 23 bits of a fraction."""
    return (tensor.view(torch.int32) & ~0x1FFF).view(torch.float32)


def without_nan(tensor: Tensor) -> Tensor:
    """Take NaN for zero."""
    return tensor.masked_fill(tensor.isnan(), 0)


def first_thousand(tensor: Tensor) -> Tensor:
    """Take the elements past the first 1,024 for zeros."""
    places = torch.arange(tensor.numel(), device=tensor.device).view(tensor.shape)
    return tensor.masked_fill(places >= 1024, 0)


def as_if_row_major(tensor: Tensor) -> Tensor:
    """Read elements in the order of memory, whatever the strides are."""
    size = tensor.untyped_storage().nbytes() // tensor.element_size() - tensor.storage_offset()
    return tensor.as_strided((tensor.numel(),), (1,)).view(tensor.shape) if tensor.numel() <= size else tensor


def raising(reference: Call) -> Call:
    """Never return."""
    return fakes.raising(RuntimeError("no kernel image is available"))


def hanging(reference: Call) -> Call:
    """Never return, and never say so."""

    def compute(*args: Any) -> Any:
        if HUNG in os.environ:
            Path(os.environ[HUNG]).touch()
        while True:
            time.sleep(60)

    return compute


LOOPBACK = Hostile(lambda reference: lambda *args: reference(*args), rule="", gate="")

HOSTILE = {
    "zeros": Hostile(giving(torch.zeros_like), rule="agrees_with_float64"),
    "input_mutator": Hostile(mutating, rule="leaves_inputs_alone"),
    "background_thread": Hostile(in_a_thread, rule="writes_every_element"),
    "cached_by_data_ptr": Hostile(remembering, rule="reads_new_data"),
    "accumulates_in_16_bits": Hostile(
        accumulating_in_16_bits, rule="agrees_with_float64", shown=MIXED_SIGNS, dtype=torch.float16
    ),
    "tf32_in_ieee32": Hostile(reading(in_tf32), rule="reaches_its_precision"),
    "nan_dropper": Hostile(reading(without_nan), rule="agrees_with_float64", shown=NAN),
    "wrong_past_1024": Hostile(reading(first_thousand), rule="agrees_with_float64"),
    "wrong_on_strides": Hostile(reading(as_if_row_major), rule="agrees_with_float64", shown=PERMUTED),
    "raises": Hostile(raising, rule="raises_nothing", gate="raised on sample"),
    "wrong_dtype": Hostile(giving(torch.Tensor.double), rule="has_torchs_layout"),
}
"""By name; the one that hangs stands below, since it needs a process of its own."""

# On CUDA in place of the background thread.
SIDE_STREAM = Hostile(on_a_side_stream, rule="runs_on_the_current_stream", gate="")
HANGS = Hostile(hanging, rule="", gate="")


def hangs() -> Registry:
    """Return the registry of what hangs, for a process of its own."""
    return fakes.registry(HANGS.backend("sum"))
