"""Problem: a call without its data, the key of choices, measurements and records."""

from __future__ import annotations

import contextlib
import functools
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nxcore.spec.device import Device, describe
from nxcore.spec.pointwise import Pointwise
from nxcore.spec.precision import Precision
from nxcore.spec.process import preserved
from nxcore.spec.spec import Cost, OpSpec


@dataclass(frozen=True, slots=True)
class TensorMeta:
    """A tensor without its data; attributes and methods are named as torch names them.

    Attributes
    ----------
    shape : tuple of int
    strides : tuple of int
        In elements.
    dtype : torch.dtype
    device : torch.device

    Examples
    --------
    >>> meta = TensorMeta.of(torch.ones(2, 3))
    >>> print(meta)
    float32[2, 3]
    >>> meta.nbytes
    24
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, tensor: Tensor | TensorMeta) -> TensorMeta:
        """Describe a tensor; a description is returned as it is."""
        if isinstance(tensor, TensorMeta):
            return tensor
        return cls(tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device)

    @classmethod
    def row_major(cls, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> TensorMeta:
        """Describe a new tensor of torch's default layout."""
        return cls(shape, _row_major(shape), dtype, device)

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self.numel() * self.dtype.itemsize

    def stride(self) -> tuple[int, ...]:
        """Return the strides, in elements."""
        return self.strides

    def numel(self) -> int:
        """Return the number of elements."""
        return math.prod(self.shape)

    def element_size(self) -> int:
        """Return the bytes of one element."""
        return self.dtype.itemsize

    def is_contiguous(self) -> bool:
        """Return whether elements lie in memory in row-major order without gaps."""
        return self.numel() == 0 or self.strides_of_extent == _row_major(self.extent)

    @property
    def extent(self) -> tuple[int, ...]:
        """The shape without the dimensions of size 1, whose strides have no effect."""
        return tuple(n for n in self.shape if n != 1)

    @property
    def strides_of_extent(self) -> tuple[int, ...]:
        """The strides that belong to ``extent``."""
        return tuple(s for n, s in zip(self.shape, self.strides, strict=True) if n != 1)

    def is_dense(self) -> bool:
        """Return whether elements fill their memory without gap or overlap, in any order of dimensions."""
        expected = 1
        if not self.numel():
            return True
        for stride, size in sorted(zip(self.strides_of_extent, self.extent, strict=True)):
            if stride != expected:
                return False
            expected *= size
        return True

    def empty(self) -> Tensor:
        """Return an uninitialised tensor of this shape, strides, dtype and device."""
        return torch.empty_strided(self.shape, self.strides, dtype=self.dtype, device=self.device)

    def __str__(self) -> str:
        kind = str(self.dtype).removeprefix("torch.")
        layout = "" if self.is_contiguous() else f" strides {self.strides}"
        return f"{kind}{list(self.shape)}{layout}"


def _row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides = [1]
    for size in reversed(shape[1:]):
        strides.append(strides[-1] * max(size, 1))
    return tuple(reversed(strides)) if shape else ()


@dataclass(frozen=True, eq=False)
class Problem:
    """One call without its data.

    It holds no pointers: a kernel that needs aligned data checks that at launch.

    Attributes
    ----------
    spec : OpSpec
        The operator.
    args : tuple
        The arguments in the order of the signature: ``TensorMeta`` for a tensor, a tuple of them for
        a sequence, the number's type for a ``scalar`` or a number given as an ``operand``.
    needs_grad : bool
        Some argument needs a gradient.
    aliased : bool
        ``out`` is one of the inputs.

    Examples
    --------
    >>> problem = Problem.of(nxcore.ops.sum.spec, (torch.ones(2, 3), 1, False))
    >>> print(problem)
    sum(x=float32[2, 3], dim=1, keepdim=False) on cpu
    >>> print(problem.outputs)
    float32[2]
    """

    spec: OpSpec
    args: tuple[Any, ...]
    needs_grad: bool = False
    aliased: bool = False

    @classmethod
    def of(
        cls, spec: OpSpec, args: tuple[Any, ...], *, needs_grad: bool = False, aliased: bool = False
    ) -> Problem:
        """Describe a call of ``spec`` with ``args``, all positional."""
        described = (_describe(p.kind, a) for p, a in zip(spec.params, args, strict=True))
        return cls(spec, tuple(described), needs_grad, aliased)

    @functools.cached_property
    def key(self) -> tuple[Any, ...]:
        """The values that two equal problems share."""
        return (self.spec.name, self.args, self.needs_grad, self.aliased)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Problem) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __getitem__(self, name: str) -> Any:
        """Return the described argument of that name."""
        for param, value in zip(self.spec.params, self.args, strict=True):
            if param.name == name:
                return value
        raise KeyError(f"{self.spec.name} has no parameter {name!r}")

    @property
    def op(self) -> str:
        """The operator's name."""
        return self.spec.name

    @functools.cached_property
    def tensors(self) -> tuple[TensorMeta, ...]:
        """Every tensor argument, sequences flattened, in the order of the signature."""
        return tuple(_leaves(self.args))

    @functools.cached_property
    def device(self) -> torch.device:
        """The device of the call: the accelerator if any tensor is on one."""
        devices = [t.device for t in self.tensors]
        return next((d for d in devices if d.type != "cpu"), devices[0])

    @functools.cached_property
    def machine(self) -> Device:
        """The facts of the device, read once, before a kernel is loaded.

        Measurements are stored under them, and loading a toolkit may change some, such as the number of
        threads.
        """
        return describe(self.device)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the first tensor; of the first of values where conditions or indices precede it."""
        given = [t.dtype for t in self.tensors if t.dtype is not torch.bool] or [self.tensors[0].dtype]
        return next((d for d in given if d.is_floating_point), given[0])

    @property
    def precision(self) -> Precision:
        """The coarsest precision class that a float32 call allows."""
        return self.spec.precision(self.args)

    @functools.cached_property
    def view(self) -> bool:
        """Whether the reference returns views, so that there is nothing to run."""
        return self.spec.view(*self.args)

    @functools.cached_property
    def idle(self) -> str:
        """Why there is nothing to compute; empty if there is something. Checked before any kernel.

        A tensor has no elements, ``output_mask`` requests no gradient, or the operator gives a reason.
        """
        for param, value in zip(self.spec.params, self.args, strict=True):
            for meta in _leaves(value):
                if not meta.numel():
                    return f"nothing to compute: {param.name} has shape {meta.shape}"
        masked = any(p.name == "output_mask" for p in self.spec.params)
        # A mask that requests all is no question for torch, which may import its compiler to answer it.
        if masked and not all(self["output_mask"] or ()) and not any(_leaves(self.outputs)):
            return "nothing to compute: output_mask requests no gradient"
        return self.spec.idle(self)

    @functools.cached_property
    def parts(self) -> tuple[Problem | None, ...]:
        """The problems of the operators that it is made of: see ``OpSpec.parts``."""
        return self.spec.parts.split(self) if self.spec.parts else ()

    @property
    def cost(self) -> Cost:
        """The least data that the call must move and compute, for any values of its numbers."""
        return self.spec.cost(*(1 if isinstance(a, type) else a for a in self.args))

    @property
    def writes(self) -> bool:
        """Whether the caller gave an ``out``."""
        return any(
            p.kind == "out" and a is not None for p, a in zip(self.spec.params, self.args, strict=True)
        )

    @functools.cached_property
    def outputs(self) -> Any:
        """The reference's results as ``TensorMeta``, in the reference's structure.

        From the spec, or from running the reference on meta tensors: shape, dtype and strides are torch's.
        Numbers are 2: multiplied by 1, a reference may return a view.
        """
        return self.outputs_by(2)

    def outputs_by(self, number: int) -> Any:
        """Return the reference's results where every scalar is ``number``."""
        given = [a for _, a in self._without_out()]
        described = self.spec.outputs(*given)
        # Only the order of strides decides how torch lays out a result, unless that may be a view.
        if described is None and not self.spec.views:
            described = self.spec.outputs(*map(_without_gaps, given))
        if described is not None:
            return described
        # With meta tensors torch may import its compiler, if it wasn't imported yet.
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.no_grad())
            if "torch._dynamo" not in sys.modules:
                stack.enter_context(preserved())
                stack.enter_context(Pointwise())  # type: ignore[no-untyped-call]  # torch has no types for it
            result = self.spec.reference(*(_as_meta(p.kind, a, number) for p, a in self._without_out()))
        return _relabel(result, self.device)

    def _without_out(self) -> Iterator[tuple[Any, Any]]:
        for param, value in zip(self.spec.params, self.args, strict=True):
            yield param, None if param.kind == "out" else value

    def to_dict(self) -> dict[str, Any]:
        """Return the problem as plain data."""
        return {"op": self.op, "needs_grad": self.needs_grad, "device": str(self.device)} | {
            p.name: plain(a) for p, a in zip(self.spec.params, self.args, strict=True)
        }

    def __str__(self) -> str:
        parts = (f"{p.name}={_brief(a)}" for p, a in zip(self.spec.params, self.args, strict=True))
        return f"{self.op}({', '.join(parts)}) on {self.device}"


def is_tensor(value: Any) -> bool:
    """Return whether ``value`` is a tensor or the description of one.

    >>> is_tensor(TensorMeta.of(torch.ones(2))), is_tensor(2.0)
    (True, False)
    """
    return isinstance(value, Tensor | TensorMeta)


def tensors_of(args: Sequence[Any]) -> list[Tensor]:
    """Return every tensor among ``args``, sequences flattened."""
    found: list[Tensor] = []
    for value in args:
        among = value if isinstance(value, tuple | list) else (value,)
        found.extend(v for v in among if isinstance(v, Tensor))
    return found


def _describe(kind: str, value: Any) -> Any:
    if is_tensor(value):
        return TensorMeta.of(value)
    if kind == "tensors":
        return tuple(TensorMeta.of(v) for v in value)
    if kind in ("scalar", "operand"):
        return type(value)
    return tuple(value) if isinstance(value, list) else value


def _leaves(value: Any) -> Iterator[TensorMeta]:
    if isinstance(value, TensorMeta):
        yield value
    elif isinstance(value, tuple):
        for item in value:
            yield from _leaves(item)


def _as_meta(kind: str, value: Any, number: int) -> Any:
    if isinstance(value, TensorMeta):
        return torch.empty_strided(value.shape, value.strides, dtype=value.dtype, device="meta")
    if isinstance(value, tuple) and value and isinstance(value[0], TensorMeta):
        return tuple(_as_meta(kind, v, number) for v in value)
    return value(number) if kind in ("scalar", "operand") and isinstance(value, type) else value


def _relabel(result: Any, device: torch.device) -> Any:
    if isinstance(result, Tensor):
        return TensorMeta(tuple(result.shape), result.stride(), result.dtype, device)
    if isinstance(result, tuple | list):
        return tuple(_relabel(r, device) for r in result)
    return result


def _without_gaps(value: Any) -> Any:
    """Return descriptions as of dense tensors with strides in the same order: a part of channels has gaps."""
    if isinstance(value, list | tuple):
        return type(value)(map(_without_gaps, value))
    if not isinstance(value, TensorMeta) or value.is_dense() or min(value.shape) == 1:
        return value
    if len({*value.strides} - {0}) < value.ndim:
        return value
    strides, step = [0] * value.ndim, 1
    for i in sorted(range(value.ndim), key=value.strides.__getitem__):
        strides[i], step = step, step * value.shape[i]
    return TensorMeta(value.shape, tuple(strides), value.dtype, value.device)


def plain(value: Any) -> Any:
    """Return a described argument as plain data, as files store it."""
    if isinstance(value, TensorMeta):
        return {
            "shape": list(value.shape),
            "strides": list(value.strides),
            "dtype": str(value.dtype).removeprefix("torch."),
        }
    if isinstance(value, tuple):
        return [plain(v) for v in value]
    if isinstance(value, type):
        return value.__name__
    return value if isinstance(value, int | float | str | None) else str(value)  # such as a memory format


def _brief(value: Any) -> str:
    if isinstance(value, tuple) and value and isinstance(value[0], TensorMeta):
        same = all(v == value[0] for v in value)
        return f"{len(value)} x {value[0]}" if same else f"[{', '.join(map(str, value))}]"
    return value.__name__ if isinstance(value, type) else str(value)


def leaves(result: Any) -> Iterator[Tensor]:
    """Yield the tensors of a nested tuple, None left out."""
    if isinstance(result, Tensor):
        yield result
    elif isinstance(result, tuple | list):
        for item in result:
            yield from leaves(item)
