"""Operators as data: parameters, reference, checks, cost, samples and error cases."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

import torch
from torch import Tensor

from nxcore.errors import InvalidInputError
from nxcore.spec.gradient import Gradient
from nxcore.spec.precision import Precision, class_of
from nxcore.spec.sample import ErrorCase, Sample


class _Required:
    """The default of a parameter that has none."""

    def __repr__(self) -> str:
        return "<required>"


REQUIRED = _Required()


@dataclass(frozen=True)
class Drawn:
    """The default of a random tensor: torch draws it where the caller gives none, before any look-up.

    An operator with this default also takes a ``generator``. Kernels receive the tensor as an argument.

    Attributes
    ----------
    draw : callable
        ``draw(first, generator)`` returns the tensor for the operator's first argument; None where that
        argument is invalid, for which the operator's check then raises.

    Examples
    --------
    >>> Drawn(lambda first, generator: torch.zeros_like(first))
    <drawn>
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
        ``size`` (static, and a shape: measurements at two sizes may decide others); ``out`` (a tensor to
        write into, or None).
    default : Any
        The default, ``REQUIRED``, or ``Drawn`` for a tensor that is random.
    keyword : bool
        Whether it is passed only by keyword.
    read : callable, optional
        ``read(first)``: the value in place of None, for the operator's first argument. It is read before any
        look-up, from a setting of torch's for example, which is so part of the key.

    Examples
    --------
    >>> Param("dim", "static", default=None).keyword
    False
    """

    name: str
    kind: Kind
    default: Any = REQUIRED
    keyword: bool = False
    read: Callable[[Any], Any] | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Cost:
    """The least data that a call must move and compute: inputs are read once, outputs written once.

    Attributes
    ----------
    bytes : int
        Bytes read plus bytes written.
    flops : int
        Floating-point operations.

    Examples
    --------
    >>> nxcore.ops.sum.spec.cost(torch.ones(2, 8), 1, False)
    Cost(bytes=72, flops=16)
    """

    bytes: int
    flops: int


@dataclass(frozen=True, slots=True)
class Way:
    """A way to divide a call into independent calls, whose concatenated results are the call's result.

    Attributes
    ----------
    tensors : tuple of (int or None)
        The dimension along which each tensor is cut, sequences flattened; None for a tensor that every part
        takes whole, whose gradient is the sum of the parts' gradients.
    result : int or None
        The dimension along which the results are concatenated; None if nothing is divided.
    audits : bool
        Whether audits alone divide by it: torch's own rules shard its DTensors.
    joins : str
        How the parts' results make up the call's where they aren't concatenated: by their ``sum``, ``mean``,
        ``max`` or ``min``; empty if they don't.
    results : tuple of (int or None)
        For audits, in place of ``result``, a dimension for each result; None for a sum of the parts' own.

    Examples
    --------
    >>> nxcore.ops.global_avg_pool2d.spec.ways(torch.ones(2, 3, 4, 4))
    (Way(tensors=(0,), result=0), Way(tensors=(1,), result=1))
    """

    tensors: tuple[int | None, ...]
    result: int | None
    audits: bool = field(default=False, repr=False)
    joins: str = field(default="", repr=False)
    results: tuple[int | None, ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class Parts:
    """The operators that an operator is made of: a backend with kernels for all of them provides it too.

    Attributes
    ----------
    ops : tuple of str
        The operators, in the order in which they run.
    split : callable
        ``split(problem) -> tuple``: the problem of each, None for one that need not run.
    join : callable
        ``join(problem, *calls) -> callable``: the call, from the plan of each; None for a part without one.
    dtypes : tuple of torch.dtype
        The dtypes for which one part's result can be the next part's argument.

    Examples
    --------
    >>> nxcore.ops.sep_conv2d_batch_norm.spec.parts.ops
    ('sep_conv2d', 'batch_norm')
    """

    ops: tuple[str, ...]
    split: Callable[[Any], tuple[Any, ...]]
    join: Callable[..., Callable[..., Any]]
    dtypes: tuple[torch.dtype, ...] = (torch.float32,)


@dataclass(frozen=True, slots=True)
class Selector:
    """An argument whose values name operators: a call with another value is a call of another operator.

    Attributes
    ----------
    name : str
        The argument, given by keyword.
    operators : Mapping of str to str
        Value -> operator; the first is the default, and names the operator that has the selector.

    Examples
    --------
    >>> nxcore.ops.gelu.spec.selector.operator("tanh")
    'gelu_tanh'
    """

    name: str
    operators: Mapping[str, str]

    @property
    def default(self) -> str:
        """The value of a call without the argument."""
        return next(iter(self.operators))

    def operator(self, value: Any) -> str:
        """Return the name of the operator that a value names.

        Raises
        ------
        InvalidInputError
            If it names none.
        """
        if not isinstance(value, str) or value not in self.operators:
            known = " or ".join(map(repr, self.operators))
            raise InvalidInputError(f"{self.name} must be {known}, got {value!r}", argument=self.name)
        return self.operators[value]


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
        The operator in torch, accumulating in float32 or wider. In float64 it defines the right result.
    check : callable
        Raises ``InvalidInputError``, before any backend is tried. It reads no data, and of a number its class
        and whether it fits 64 bits.
    holds : str
        The sizes for which a check that passed holds: the ``same``; ``alike`` ones, where it compares sizes
        with each other, 0 and 1 alone; or those of ``larger`` images, the last two of the first tensor.
    cost : callable
        ``cost(*arguments) -> Cost``; reads only shapes and dtypes, so arguments may be ``TensorMeta``.
    samples : tuple of Sample
        Arguments for tests, the gate and benchmarks.
    errors : tuple of ErrorCase
        Calls that must raise.
    magnitude : callable
        The operator on absolute values: the scale of rounding errors for each output.
    terms : callable
        The number of terms that are added up for one output.
    dtypes : tuple of torch.dtype
        The dtypes that kernels may support.
    exact : bool
        Whether results are compared bit for bit.
    rounds : bool
        Whether factors of its products may be rounded to the 16 bits of its arguments, as torch rounds them.
    idioms : Mapping of str to callable
        Other ways to write it in torch; the fastest of them and the reference is the baseline.
    yardsticks : Mapping of str to callable
        Torch's other operators for the same purpose: timed for comparison, never called in place of a call.
    gradient : Gradient, optional
        The backward operator; None raises on double backward.
    view : callable
        ``view(*arguments) -> bool``: whether the reference returns views of its arguments, possibly scaled,
        so that no kernel can be faster.
    outputs : callable
        ``outputs(*arguments)``: the reference's results as ``TensorMeta``, from described arguments. Where it
        returns None, the reference runs on the meta device, whose first elementwise operation takes a
        second, since it imports torch's compiler.
    idle : callable
        ``idle(problem) -> str``: why there is nothing to compute, beyond what ``Problem.idle`` finds.
    parts : Parts, optional
        The operators that it is made of; None if it is not.
    sketches : callable
        ``sketches(*arguments) -> Mapping``: name -> sketch of each tensor whose values are constrained, such
        as indices, from the described arguments. Other tensors may hold any values.
    ways : callable
        ``ways(*arguments)``: the ways to divide a call: audits take rows, and DTensors are sharded.
    settled : callable
        ``settled(*arguments)``: the same call, which ways divide, with what all results share computed.
    whole : str
        Why no part of a call can be checked alone: audits compare the whole with torch's own result.
    autocast : Mapping of str to str
        Device type -> what ``torch.autocast`` does to floating arguments: ``same`` (nothing), ``lower``
        (casts them to its dtype) or ``float32`` (computes in float32). For other device types, the reference
        runs under autocast.
    selector : Selector, optional
        An argument in addition to ``params``, which kernels don't see.
    expression : optional
        The trees that it computes, of an operator that was made of an expression; it has a ``key``.

    Examples
    --------
    >>> spec = nxcore.ops.weighted_sum.spec
    >>> [param.name for param in spec.params]
    ['xs', 'weights']
    >>> spec.summary
    'Blend ``xs`` with ``weights``, accumulating in float32 or wider.'
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
    rounds: bool = False
    holds: Literal["same", "alike", "larger"] = "same"
    idioms: Mapping[str, Callable[..., Any]] = field(default_factory=lambda: MappingProxyType({}))
    yardsticks: Mapping[str, Callable[..., Any]] = field(default_factory=lambda: MappingProxyType({}))
    gradient: Gradient | None = None
    view: Callable[..., bool] = lambda *_: False
    outputs: Callable[..., Any] = lambda *_: None
    idle: Callable[[Any], str] = lambda _: ""
    parts: Parts | None = None
    sketches: Callable[..., Mapping[str, Any]] = lambda *_: MappingProxyType({})
    ways: Callable[..., tuple[Way, ...]] = lambda *_: ()
    settled: Callable[..., tuple[Any, ...]] = lambda *args: args
    whole: str = ""
    autocast: Mapping[str, Cast] = field(default_factory=lambda: MappingProxyType({}))
    selector: Selector | None = None
    expression: Any = None

    @property
    def views(self) -> bool:
        """Whether a result may share memory with an argument."""
        return self.view is not OpSpec.__dataclass_fields__["view"].default

    @property
    def summary(self) -> str:
        """The first sentence of the reference's docstring."""
        first = (self.reference.__doc__ or "").strip().partition("\n\n")[0]
        return re.split(r"(?<=\.)\s", " ".join(first.split()))[0]

    @property
    def signature(self) -> str:
        """The parameters as a caller writes them, with their defaults."""
        written: list[str] = []
        for param in self.params:
            if param.keyword and "*" not in written:
                written.append("*")
            written.append(param.name if param.default is REQUIRED else f"{param.name}={param.default!r}")
        if any(isinstance(param.default, Drawn) for param in self.params):
            written += ["*"] * ("*" not in written) + ["generator=None"]
        if self.selector:
            written += ["*"] * ("*" not in written) + [f"{self.selector.name}={self.selector.default!r}"]
        return f"({', '.join(written)})"

    def named(self, kwargs: dict[str, Any]) -> str:
        """Return the name of the operator that serves a call; what names it is taken out of ``kwargs``."""
        if self.selector is None or self.selector.name not in kwargs:
            return self.name
        return self.selector.operator(kwargs.pop(self.selector.name))

    def bind(self, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Return ``args`` and ``kwargs`` as one positional tuple with defaults filled in."""
        bound = list(args)
        for param in self.params[len(args) :]:
            if param.name in kwargs:
                bound.append(kwargs.pop(param.name))
            elif param.default is REQUIRED:
                raise TypeError(f"{self.name}() is missing its argument {param.name!r}")
            elif isinstance(param.default, Drawn):
                bound.append(param.default.draw(bound[0], None))
            else:
                bound.append(param.default)
        if kwargs or len(args) > len(self.params):
            raise TypeError(f"{self.name}() got unexpected arguments: {sorted(kwargs) or args}")
        pairs = zip(self.params, bound, strict=True)
        return tuple(p.read(bound[0]) if p.read and value is None else value for p, value in pairs)

    def precision(self, args: Sequence[Any]) -> Precision:
        """Return the coarsest precision class that a float32 call allows: its argument ``precision``."""
        named = (value for p, value in zip(self.params, args, strict=True) if p.name == "precision")
        return class_of(next(named, None))

    def tagged(self, tag: str) -> tuple[Sample, ...]:
        """Return the samples that carry ``tag``."""
        return tuple(s for s in self.samples if tag in s.tags)
