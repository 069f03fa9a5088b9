"""Cell: one operator on one sample, in one dtype, on one device; and the filters that select cells."""

from __future__ import annotations

import itertools
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from nxcore.bench.sizes import SIZES, classes
from nxcore.errors import InvalidInputError, nearest
from nxcore.registry.registry import Registry
from nxcore.spec.sample import Sample
from nxcore.spec.spec import OpSpec


@dataclass(frozen=True)
class Cell:
    """One operator on one sample: all its kernels are measured in one race.

    Attributes
    ----------
    spec : OpSpec
    sample : Sample
    dtype : torch.dtype
    device : torch.device
    """

    spec: OpSpec
    sample: Sample
    dtype: torch.dtype
    device: torch.device

    @property
    def type(self) -> str:
        """Name of the dtype."""
        return str(self.dtype).removeprefix("torch.")

    @property
    def key(self) -> tuple[str, str, str]:
        """Operator, sample and dtype, which identify a cell on one device."""
        return self.spec.name, self.sample.name, self.type

    def __str__(self) -> str:
        return " ".join(self.key)

    def build(self) -> tuple[Any, ...]:
        """Return the arguments, all positional."""
        return self.sample.build(self.spec, self.device, self.dtype)


@dataclass(frozen=True)
class Wanted:
    """Filters of cells. An empty filter passes everything.

    Attributes
    ----------
    ops : sequence of str
        Operators.
    samples : sequence of str
        Samples by name, whatever their tags.
    sizes : sequence of str
        Size classes, of operators on arrays of one length. For others, and otherwise: a tag (``bench``,
        ``huge``), or a word in the name of a real workload (``small``).
    dtypes : sequence of str
        Element types.
    forward, backward : bool
        Only operators that are not, or are, the backward operator of another.
    """

    ops: tuple[str, ...] = ()
    samples: tuple[str, ...] = ()
    sizes: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    forward: bool = False
    backward: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return the filters as plain data."""
        return asdict(self)


@dataclass(frozen=True)
class _Known:
    """The names that filters may use."""

    samples: set[str] = field(default_factory=set)
    words: set[str] = field(default_factory=set)
    dtypes: set[str] = field(default_factory=set)


def cells(registry: Registry, device: torch.device, wanted: Wanted = Wanted()) -> list[Cell]:
    """Return the cells that pass the filters: samples tagged ``bench``, but huge ones only if named.

    Raises
    ------
    UnknownOperatorError, InvalidInputError
        If a filter has an unknown name. The message suggests the nearest.
    """
    specs = [registry.spec(name) for name in wanted.ops] or list(registry.ops.values())
    backward = {s.gradient.op for s in registry.ops.values() if s.gradient}
    if wanted.forward != wanted.backward:
        specs = [s for s in specs if (s.name in backward) == wanted.backward]
    _require_known(specs, wanted)
    return [
        cell
        for spec in specs
        for sample, dtype in itertools.product(_samples(spec, wanted), spec.dtypes)
        if _passes(cell := Cell(spec, sample, dtype, device), wanted)
    ]


def _samples(spec: OpSpec, wanted: Wanted) -> tuple[Sample, ...]:
    """Return an operator's samples; those of its size classes in place of its own, if any is wanted."""
    found = classes(spec, wanted.sizes)
    if not found:
        return spec.samples
    return *found, *(s for s in spec.samples if not {*s.name.split("_")} & SIZES.keys())


def _passes(cell: Cell, wanted: Wanted) -> bool:
    sample = cell.sample
    if wanted.dtypes and cell.type not in wanted.dtypes:
        return False
    if wanted.samples:
        return sample.name in wanted.samples
    if "bench" not in sample.tags:
        return False
    if wanted.sizes:
        return bool({*sample.tags, *sample.name.split("_")} & set(wanted.sizes)) or (
            sample.name in wanted.sizes
        )
    return "huge" not in sample.tags


def _require_known(specs: list[OpSpec], wanted: Wanted) -> None:
    known = _Known()
    for spec in specs:
        known.samples.update(s.name for s in spec.samples)
        known.words.update(SIZES if classes(spec, SIZES) else ())
        known.dtypes.update(str(d).removeprefix("torch.") for d in spec.dtypes)
        for s in spec.tagged("bench"):
            known.words.update((s.name, *s.name.split("_"), *s.tags))
    for argument, names, there in (
        ("sample", wanted.samples, known.samples),
        ("size", wanted.sizes, known.words),
        ("dtype", wanted.dtypes, known.dtypes),
    ):
        for name in names:
            if name not in there:
                raise InvalidInputError(
                    f"unknown {argument} {name!r}{nearest(name, there)}", argument=argument
                )
