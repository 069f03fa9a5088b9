"""What an operator is, as data: its parameters, reference, checks, cost, samples and error cases."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

import torch
from torch import Tensor

from nxcore.spec.sample import ErrorCase, Sample


class _Required:
    """The default of a parameter that has none."""

    def __repr__(self) -> str:
        return "<required>"


REQUIRED = _Required()


@dataclass(frozen=True)
class Drawn:
    """The default of a random tensor: torch draws it where the caller gives none, before any look-up.

    An operator with such a parameter takes a ``generator`` besides; to kernels the tensor is an argument.

    Attributes
    ----------
    draw : callable
        ``draw(first, generator)`` returns the tensor, by the operator's first argument; None where that is
        nothing to draw for, as the operator's check will tell.
    """

    draw: Callable[[Any, torch.Generator | None], Tensor | None]

    def __repr__(self) -> str:
        return "<drawn>"


FLOATS = (torch.float32, torch.float16, torch.bfloat16)


Kind = Literal["tensor", "tensors", "operand", "scalar", "static", "size", "out"]


Cast = Literal["same", "lower", "float32"]

SAME: Mapping[str, Cast] = MappingProxyType({"cpu": "same", "cuda": "same"})
LOWER: Mapping[str, Cast] = MappingProxyType({"cpu": "lower", "cuda": "lower"})


@dataclass(frozen=True, slots=True)
class Param:
    """One parameter of an operator.

    Attributes
    ----------
    name : str
        As the caller writes it.
    kind : str
        ``tensor``; ``tensors`` (a sequence of tensors, or one stacked tensor); ``operand`` (a tensor
        or a number); ``scalar`` (a number that may change from call to call: kernels read it at run
        time); ``static`` (a hashable value that kernels may specialise on; lists become tuples);
        ``size`` (likewise, and a shape: what was measured at one tells of others); ``out`` (a tensor to
        write into, or None).
    default : Any
        The default, ``REQUIRED``, or ``Drawn`` for a tensor that is random.
    keyword : bool
        Only by keyword.
    """

    name: str
    kind: Kind
    default: Any = REQUIRED
    keyword: bool = False


@dataclass(frozen=True, slots=True)
class Cost:
    """The least a call must move and compute: each input read once, each output written once.

    Attributes
    ----------
    bytes : int
        Bytes read plus bytes written.
    flops : int
        Floating-point operations.
    """

    bytes: int
    flops: int


@dataclass(frozen=True, slots=True)
class Gradient:
    """The operator that computes the gradient of another.

    Attributes
    ----------
    op : str
        The backward operator's name.
    args : callable
        ``args(grad, mask, *arguments) -> tuple``: the backward operator's arguments, from the
        incoming gradient, which tensors need one (a tuple of bool, sequences flattened), and the
        forward arguments. A tensor that is not in ``saves`` comes as its ``TensorMeta``.
    saves : tuple of str
        The parameters kept for the backward pass.
    forward : str
        The operator that runs in place of this one where a gradient is needed: it takes the first of
        the same arguments and returns a tuple, of the result and of what to keep for the backward pass,
        which ``args`` is given after the forward arguments. Empty where nothing more is kept.
    keeps : bool
        The operator's own result is a tuple, whose first tensor alone has a gradient: the others are kept for
        the backward pass, and ``args`` is given them after the forward arguments.
    covers : callable
        ``covers(*arguments) -> bool``: whether ``op`` is the gradient of this call; torch alone if not.
    """

    op: str
    args: Callable[..., tuple[Any, ...]]
    saves: tuple[str, ...] = ()
    forward: str = ""
    keeps: bool = False
    covers: Callable[..., bool] = lambda *_: True


@dataclass(frozen=True, slots=True)
class Way:
    """A way to divide a call into independent ones, whose results side by side are the call's.

    Attributes
    ----------
    tensors : tuple of (int or None)
        The dimension along which each tensor is cut, sequences flattened; None for one that every part
        takes whole, and whose gradient is the sum of theirs.
    result : int or None
        The dimension along which the results lie side by side; None: nothing is divided.
    """

    tensors: tuple[int | None, ...]
    result: int | None


@dataclass(frozen=True, slots=True)
class Parts:
    """The calls of other operators that a call is: a backend that has kernels for all of them has it too.

    Attributes
    ----------
    ops : tuple of str
        The operators, in the order in which they run.
    split : callable
        ``split(problem) -> tuple``: the problem of each, None for one that needn't run.
    join : callable
        ``join(problem, *calls) -> callable``: the call, from what was planned for each, None for None.
    dtypes : tuple of torch.dtype
        For which one's result may be the next one's argument.
    """

    ops: tuple[str, ...]
    split: Callable[[Any], tuple[Any, ...]]
    join: Callable[..., Callable[..., Any]]
    dtypes: tuple[torch.dtype, ...] = (torch.float32,)


@dataclass(frozen=True)
class OpSpec:
    """One operator as data.

    Attributes
    ----------
    name : str
        The operator's name: the address of its file, kernels, tests and benchmark.
    params : tuple of Param
        The signature.
    reference : callable
        The operator in torch, accumulating in float32 or wider: float64 in gives the truth.
    check : callable
        Raises ``InvalidInputError``; runs once, before any backend is asked.
    cost : callable
        ``cost(*arguments) -> Cost``; reads shapes and dtypes only, so ``TensorMeta`` will do.
    samples : tuple of Sample
        What tests, the run-time gate and benchmarks call it with.
    errors : tuple of ErrorCase
        What it must refuse.
    magnitude : callable
        The operator on absolute values: the scale of rounding errors, output by output.
    terms : callable
        How many terms are added up for one output.
    dtypes : tuple of torch.dtype
        What kernels may be written for.
    exact : bool
        Compared bit for bit.
    idioms : Mapping of str to callable
        Other ways to write it in torch; the fastest of them and the reference is the baseline.
    yardsticks : Mapping of str to callable
        What torch's users run where torch has another operator for the same purpose: timed as torch's best,
        never called to serve.
    gradient : Gradient, optional
        How it is differentiated; None raises on double backward.
    view : callable
        ``view(*arguments) -> bool``: the reference returns views of its arguments, scaled at most, so
        there is nothing that a kernel could do faster.
    outputs : callable
        ``outputs(*arguments)``: what the reference returns, as ``TensorMeta`` in its structure, where the
        described arguments tell; None asks torch's meta device, whose first elementwise operation costs a
        second of a process's start: it imports torch's compiler.
    idle : callable
        ``idle(problem) -> str``: why there is nothing to compute, beside what ``Problem.idle`` tells itself.
    parts : Parts, optional
        Of which other operators it is made, where it is.
    sketches : callable
        ``sketches(*arguments) -> Mapping``: name -> sketch of each tensor whose values are not free, such as
        indices, from the described arguments. All others may hold any numbers.
    ways : callable
        ``ways(*arguments)``: the ways to divide a call, a ``Way`` each; by them DTensors are shared out.
    autocast : Mapping of str to str
        What ``torch.autocast`` does to floating arguments on a type of device: ``same`` (nothing), ``lower``
        (casts them to its dtype) or ``float32`` (computes in float32). Where none is named, the reference
        serves calls under autocast.
    """

    name: str
    params: tuple[Param, ...]
    reference: Callable[..., Any]
    check: Callable[..., None]
    cost: Callable[..., Cost]
    samples: tuple[Sample, ...]
    errors: tuple[ErrorCase, ...]
    magnitude: Callable[..., Any]
    terms: Callable[..., int]
    dtypes: tuple[torch.dtype, ...] = FLOATS
    exact: bool = False
    idioms: Mapping[str, Callable[..., Any]] = field(default_factory=lambda: MappingProxyType({}))
    yardsticks: Mapping[str, Callable[..., Any]] = field(default_factory=lambda: MappingProxyType({}))
    gradient: Gradient | None = None
    view: Callable[..., bool] = lambda *_: False
    outputs: Callable[..., Any] = lambda *_: None
    idle: Callable[[Any], str] = lambda _: ""
    parts: Parts | None = None
    sketches: Callable[..., Mapping[str, Any]] = lambda *_: MappingProxyType({})
    ways: Callable[..., tuple[Way, ...]] = lambda *_: ()
    autocast: Mapping[str, Cast] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def summary(self) -> str:
        """The first line of the reference's docstring."""
        return (self.reference.__doc__ or "").strip().splitlines()[0]

    def bind(self, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Return ``args`` and ``kwargs`` as one positional tuple with defaults filled in."""
        bound = list(args)
        for param in self.params[len(args) :]:
            if param.name in kwargs:
                bound.append(kwargs.pop(param.name))
            elif param.default is REQUIRED:
                raise TypeError(f"{self.name}() misses its argument {param.name!r}")
            elif isinstance(param.default, Drawn):
                bound.append(param.default.draw(bound[0], None))
            else:
                bound.append(param.default)
        if kwargs or len(args) > len(self.params):
            raise TypeError(f"{self.name}() got unexpected arguments: {sorted(kwargs) or args}")
        return tuple(bound)

    def tagged(self, tag: str) -> tuple[Sample, ...]:
        """Return the samples that carry ``tag``."""
        return tuple(s for s in self.samples if tag in s.tags)
