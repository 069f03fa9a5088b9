"""Samples: described arguments of calls, and calls that must raise."""

from __future__ import annotations

import functools
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

DEGENERATE = frozenset({"edge", "degenerate"})
"""Tags of a sample whose result is empty, constant, or too small to distinguish from 0."""


Layout = Literal["contiguous", "transposed", "channels_last", "sliced", "strided", "expanded", "repeated"]


Values = Literal["normal", "nan", "lone_nan", "inf", "denormal", "zeros", "sparse", "holes", "cancelling"]

EXACT = "exact"
"""The tag of a sample whose result is the same number in any order of its sums: nothing is rounded."""


RARE = 1 / 256
"""The share of the elements that ``sparse`` keeps, and that ``holes`` clears."""


APART = 2039
"""The distance of the elements that ``lone_nan`` replaces: windows must see others too."""


@dataclass(frozen=True, slots=True)
class Sketch:
    """A description of a tensor, made by ``rand`` and built later.

    >>> Sketch((2, 3), layout="transposed").build("cpu", torch.float32, seed=0).stride()
    (1, 2)
    """

    shape: tuple[int, ...]
    layout: Layout = "contiguous"
    low: float | None = None
    high: float | None = None
    values: Values = "normal"
    dtype: torch.dtype | None = None
    device: str | None = None

    @property
    def plain(self) -> bool:
        """Whether its values are normal and its layout is row-major."""
        return self.layout == "contiguous" and self.values == "normal"

    def build(self, device: torch.device | str, dtype: torch.dtype, seed: int) -> Tensor:
        """Build the tensor. The same sketch, dtype and seed give the same values on every device."""
        dtype = self.dtype or dtype
        if torch.device(device).type == "meta" and not self.device:  # a meta tensor has no values
            return _lay_out(torch.empty(self.shape, dtype=dtype, device=device), self.layout)
        generator = torch.Generator().manual_seed(seed)
        if self.low is not None and self.high is not None:
            data = torch.rand(self.shape, generator=generator, dtype=torch.float64, device="cpu")
            data = data * (self.high - self.low) + self.low
            if dtype is torch.bool:  # all but 0 would be True
                data.floor_()
        else:
            data = torch.randn(self.shape, generator=generator, dtype=torch.float64, device="cpu")
        if self.values == "zeros":
            data.zero_()
        elif self.values == "denormal":
            data *= torch.finfo(torch.float32).tiny / 8
        elif self.values in ("sparse", "holes"):
            rare = torch.rand(self.shape, generator=generator, dtype=torch.float64, device="cpu") < RARE
            data.masked_fill_(rare if self.values == "holes" else ~rare, 0)
        elif self.values in ("nan", "lone_nan", "inf"):
            odd = torch.inf if self.values == "inf" else torch.nan
            some = data.view(-1)[:: APART if self.values == "lone_nan" else 7]
            some.copy_(torch.copysign(torch.full_like(some, odd), some))
        elif self.values == "cancelling":
            data = (8 * data).round()
            data[:, 0] = (2.0**23 + 1e6 + 1e6 * data[:, 0].abs() / 8).round() + 1 - data[:, 0] % 2
            data[:, 1] -= data[:, 0]
        return _lay_out(data.to(dtype).to(self.device or device), self.layout)


def _lay_out(data: Tensor, layout: Layout) -> Tensor:
    """Return ``data`` with the strides and the storage offset that ``layout`` names."""
    if layout == "transposed":
        return data.permute(*reversed(range(data.ndim))).contiguous().permute(*reversed(range(data.ndim)))
    if layout == "channels_last":
        return data.contiguous(memory_format=torch.channels_last)
    if layout == "sliced":  # an odd storage offset: aligned for no vector load
        return torch.cat([data.new_zeros(1), data.flatten()])[1:].view(data.shape)
    if layout == "strided":
        return torch.stack([data, torch.full_like(data, 3)], dim=-1)[..., 0]
    if layout == "expanded":  # stride 0 along the first dimension
        return data[:1].expand(data.shape)
    if layout == "repeated":  # stride 0 along all dimensions, as in the gradient of a sum
        return data.flatten()[:1].view((1,) * data.ndim).expand(data.shape)
    return data


def rand(
    *shape: int,
    layout: Layout = "contiguous",
    low: float | None = None,
    high: float | None = None,
    values: Values = "normal",
    dtype: torch.dtype | None = None,
    device: str | None = None,
) -> Sketch:
    """Describe a tensor of random numbers.

    Parameters
    ----------
    *shape : int
        Its shape.
    layout : str
        ``contiguous``, ``transposed`` (strides reversed), ``channels_last``, ``sliced`` (odd storage
        offset), ``strided`` (every second element), ``expanded`` (first dimension of stride 0) or
        ``repeated`` (one element everywhere).
    low, high : float, optional
        Uniform in [low, high); without them, normal with mean 0 and variance 1.
    values : str
        ``nan`` and ``inf`` put that value at every seventh element, ``lone_nan`` at one of 2,039;
        ``denormal`` scales below float32's smallest normal number; ``zeros`` is all zeros; ``sparse`` has few
        other numbers, ``holes`` few zeros; ``cancelling`` has integers, in the second dimension first two of
        24 bits whose sum is small.
    dtype, device : optional
        Fixed, in place of those that the sample is built with.

    Examples
    --------
    >>> rand(2, 3, low=0.0, high=1.0).build("cpu", torch.float64, seed=0).shape
    torch.Size([2, 3])
    """
    return Sketch(tuple(shape), layout, low, high, values, dtype, device)


class Signature(Protocol):
    """An object that binds arguments, such as an ``OpSpec``."""

    def bind(self, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Return the arguments as one positional tuple with defaults filled in."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Described arguments of one call, named after the bug that it catches.

    Attributes
    ----------
    name : str
        The bug.
    args : tuple
        Positional arguments: sketches (or objects with the same ``build``), tuples of them, plain values.
    kwargs : Mapping
        Keyword arguments, described in the same way.
    tags : frozenset of str
        ``smoke`` (the run-time gate, milliseconds), ``edge``, ``bench`` (real workloads), ``huge``,
        ``degenerate`` (cannot distinguish a right kernel from a wrong one, see ``DEGENERATE``), ``exact``
        (no order of its sums rounds, so the result must be equal bit for bit).

    Examples
    --------
    >>> sample = Sample("one_row", (rand(1, 4),), {"dim": 1})
    >>> [getattr(value, "shape", value) for value in sample.build(nxcore.ops.sum.spec, "cpu", torch.float32)]
    [torch.Size([1, 4]), 1, False]
    """

    name: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    tags: frozenset[str] = frozenset({"edge"})

    def build(self, spec: Signature, device: torch.device | str, dtype: torch.dtype) -> tuple[Any, ...]:
        """Return the arguments of ``spec``, all positional, with defaults filled in."""
        make = functools.partial(_build, device=torch.device(device), dtype=dtype)
        args = [make(a, seed=zlib.crc32(f"{self.name}/{i}".encode())) for i, a in enumerate(self.args)]
        kwargs = {k: make(a, seed=zlib.crc32(f"{self.name}/{k}".encode())) for k, a in self.kwargs.items()}
        return spec.bind(*args, **kwargs)

    @property
    def sketches(self) -> tuple[Sketch, ...]:
        """Its tensor descriptions, sequences flattened; objects of other types are left out."""
        return tuple(_sketches((*self.args, *self.kwargs.values())))

    def shaped(self, shape: tuple[int, ...]) -> Sample:
        """Return the sample with ``shape`` in place of its first tensor's, wherever that shape occurs."""
        follow = functools.partial(_follow, was=self.sketches[0].shape, shape=shape)
        kwargs = {name: follow(value) for name, value in self.kwargs.items()}
        return Sample(self.name, tuple(map(follow, self.args)), kwargs, self.tags)


def _sketches(value: Any) -> Iterator[Sketch]:
    if isinstance(value, Sketch):
        yield value
    elif isinstance(value, tuple):
        for item in value:
            yield from _sketches(item)


def _follow(value: Any, was: tuple[int, ...], shape: tuple[int, ...]) -> Any:
    if isinstance(value, Sketch):
        return replace(value, shape=shape) if value.shape == was else value
    if isinstance(value, tuple):
        return shape if value == was else tuple(_follow(v, was, shape) for v in value)
    return value


def _build(value: Any, *, device: torch.device, dtype: torch.dtype, seed: int) -> Any:
    if hasattr(value, "build"):  # a Sketch, or an operator's own type
        return value.build(device, dtype, seed)
    if isinstance(value, tuple):
        return tuple(_build(v, device=device, dtype=dtype, seed=seed + i) for i, v in enumerate(value))
    return value


@dataclass(frozen=True, slots=True)
class ErrorCase:
    """A call that must raise the same message on every backend.

    Attributes
    ----------
    name : str
        The mistake.
    args, kwargs
        As in ``Sample``.
    match : str
        A regular expression that the message must contain.

    Examples
    --------
    >>> case = ErrorCase("axis_too_large", (rand(2, 3), 2), match="dim must be in")
    >>> case.build(nxcore.ops.sum.spec)[1:]
    (2, False)
    """

    name: str
    args: tuple[Any, ...]
    match: str
    kwargs: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))

    def build(self, spec: Signature) -> tuple[Any, ...]:
        """Return the arguments on the CPU in float32, unless a sketch fixes device or dtype."""
        return Sample(self.name, self.args, self.kwargs).build(spec, "cpu", torch.float32)
