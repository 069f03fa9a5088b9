"""What a kernel needs of a call: predicates with one text each, put together as its ``accepts``."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from nxcore.spec.kernel import YES, Code, Verdict, no
from nxcore.spec.layout import Rows, alike, broadcast_strides, collapse, overlaps
from nxcore.spec.problem import Problem, TensorMeta
from nxcore.spec.reduction import Reduction
from nxcore.spec.spec import FLOATS

Need = Callable[[Problem], Verdict]

INTEGERS = (torch.uint8, torch.int32)
"""The dtypes of offsets and other small integers."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a kernel's tensors lie.

    Attributes
    ----------
    kind : str
        The type of device.
    condition : str
        Why there, where it is a simulator that runs the kernel: " under TRITON_INTERPRET=1".
    """

    kind: str
    condition: str = ""


def needs(
    *more: Need,
    device: Callable[[], Place] | None = None,
    dtypes: tuple[torch.dtype, ...] = FLOATS,
    integers: tuple[str, ...] = (),
    cpu_numbers: bool = False,
    tensors: bool = False,
    alike_numbers: bool = False,
    one_gradient: bool = False,
    rows: float | None = None,
    channels: int | None = None,
    sums: int | None = None,
    rank: int | None = None,
    distinct: bool = False,
    dense: bool = False,
) -> Need:
    """Return an ``accepts`` that refuses what the first unmet need says.

    Parameters
    ----------
    *more : callable
        Needs of this kernel alone, asked last.
    device : callable, optional
        ``device() -> Place``: where all tensors lie, on one device. Without it, anywhere.
    dtypes : tuple of torch.dtype
        Of all tensors but those that are ``integers``.
    integers : tuple of str
        The parameters that hold uint8 or int32.
    cpu_numbers : bool
        A tensor of no dimensions may lie on the CPU.
    tensors : bool
        Operands are tensors, no numbers.
    alike_numbers : bool
        A tensor operand of no dimensions is of the other's dtype.
    one_gradient : bool
        No other gradient than the first is asked for.
    rows : float, optional
        The most entries of a row; rows lie evenly in memory (see ``Rows``).
    channels : int, optional
        The most dimensions beside the channels of images, after merging. Channels aren't innermost, and
        their factors have no gaps.
    sums : int, optional
        The most dimensions that stay, and that are summed, after merging (see ``Reduction``).
    rank : int, optional
        The most dimensions after merging that operands which broadcast have together with the result.
    distinct : bool
        No two elements of a result share memory.
    dense : bool
        All tensors and results lie in memory alike, without gaps.

    Returns
    -------
    callable
        ``accepts(problem) -> Verdict``.
    """
    asked: list[Need] = [functools.partial(_device, device, cpu_numbers)] if device else []
    asked.append(functools.partial(_dtypes, dtypes, integers, cpu_numbers))
    flags = ((tensors, _tensors), (alike_numbers, _alike_numbers), (one_gradient, _one_gradient))
    asked += [need for flag, need in (*flags, (distinct or rank is not None, _distinct)) if flag]
    if rows is not None:
        asked.append(functools.partial(_rows, rows))
    if channels is not None:
        asked.append(functools.partial(_channels, channels))
    if sums is not None:
        asked.append(functools.partial(_sums, sums))
    if dense:
        asked.append(_dense)
    if rank is not None:
        asked += [functools.partial(_result, dtypes), functools.partial(_rank, rank)]
    return functools.partial(_every, (*asked, *more))


def at_most(most: int, what: str, count: Callable[[Problem], int]) -> Need:
    """Return the need that a call has at most so many of something."""

    def need(problem: Problem) -> Verdict:
        found = count(problem)
        return YES if found <= most else no(f"takes at most {most} {what}, got {found}", code=Code.SIZE)

    return need


def _every(asked: Iterable[Need], problem: Problem) -> Verdict:
    return next((found for need in asked if not (found := need(problem))), YES)


def _named(problem: Problem, cpu_numbers: bool) -> Iterator[tuple[str, TensorMeta]]:
    """Yield each tensor with its parameter's name, numbers that lie on the CPU left out if told so."""
    far = cpu_numbers and problem.device.type != "cpu"
    for param, value in zip(problem.spec.params, problem.args, strict=True):
        for meta in value if isinstance(value, tuple) else (value,):
            if isinstance(meta, TensorMeta) and not (far and meta.ndim == 0 and meta.device.type == "cpu"):
                yield param.name, meta


def _device(place: Callable[[], Place], cpu_numbers: bool, problem: Problem) -> Verdict:
    found = place()
    metas = [meta for _, meta in _named(problem, cpu_numbers)]
    for meta in metas:
        if meta.device.type != found.kind:
            wanted = f"{found.kind.upper()} tensors{found.condition}"
            return no(f"needs {wanted}, got {meta.device}", code=Code.DEVICE)
    if len(devices := {meta.device for meta in metas}) > 1:
        several = ", ".join(sorted(map(str, devices)))
        return no(f"needs tensors of one device, got {several}", code=Code.DEVICE)
    return YES


def _dtypes(
    dtypes: tuple[torch.dtype, ...], integers: tuple[str, ...], cpu_numbers: bool, problem: Problem
) -> Verdict:
    for name, meta in _named(problem, cpu_numbers):
        wanted = INTEGERS if name in integers else dtypes
        if meta.dtype not in wanted:
            of = f" {name}" if name in integers else ""
            return no(f"needs {either(wanted)}{of}, got {either([meta.dtype])}", code=Code.DTYPE)
    return YES


def either(dtypes: Iterable[torch.dtype]) -> str:
    """Return dtypes as text: ``float32, float16 or bfloat16``."""
    *others, last = (str(d).removeprefix("torch.") for d in dtypes)
    return f"{', '.join(others)} or {last}" if others else last


def _tensors(problem: Problem) -> Verdict:
    for param, value in zip(problem.spec.params, problem.args, strict=True):
        if param.kind == "operand" and isinstance(value, type):
            why = f"needs a tensor for {param.name}, got a number ({value.__name__})"
            return no(why, code=Code.ARGUMENT)
    return YES


def _operands(problem: Problem) -> list[TensorMeta]:
    return [a for p, a in zip(problem.spec.params, problem.args, strict=True) if _operand(p.kind, a)]


def _operand(kind: str, value: Any) -> bool:
    return kind in ("tensor", "operand") and isinstance(value, TensorMeta)


def _alike_numbers(problem: Problem) -> Verdict:
    operands = _operands(problem)
    if any(m.ndim == 0 for m in operands) and len({m.dtype for m in operands}) > 1:
        came = " and ".join(either([m.dtype]) for m in operands)
        return no(f"needs a 0-d operand of the other's dtype, got {came}", code=Code.DTYPE)
    return YES


def _one_gradient(problem: Problem) -> Verdict:
    named = {p.name: a for p, a in zip(problem.spec.params, problem.args, strict=True)}
    if any((named.get("output_mask") or ())[1:]):
        why = "computes the first gradient alone, and output_mask asks for more"
        return no(why, code=Code.ARGUMENT)
    return YES


def _results(problem: Problem) -> list[TensorMeta]:
    """Return what is written: the caller's ``out``, or the outputs that are asked for."""
    if problem.writes:
        return [problem["out"]]
    outputs = problem.outputs if isinstance(problem.outputs, tuple) else (problem.outputs,)
    return [meta for meta in outputs if isinstance(meta, TensorMeta)]


def _distinct(problem: Problem) -> Verdict:
    for out in _results(problem):
        if overlaps(out):
            why = f"needs results whose elements don't share memory, got strides {out.strides}"
            return no(why, code=Code.LAYOUT)
    return YES


def _dense(problem: Problem) -> Verdict:
    metas = [*_operands(problem), *_results(problem)]
    if alike(*metas):
        return YES
    layouts = ", ".join(sorted({str(m.strides) for m in metas}))
    return no(f"needs one dense memory layout of all tensors, got strides {layouts}", code=Code.LAYOUT)


def _result(dtypes: tuple[torch.dtype, ...], problem: Problem) -> Verdict:
    for out in _results(problem):
        if out.dtype not in dtypes:
            return no(f"needs a result of {either(dtypes)}, got {either([out.dtype])}", code=Code.DTYPE)
    return YES


def _rank(most: int, problem: Problem) -> Verdict:
    out = _results(problem)[0]
    strides = (broadcast_strides(m, out.shape) for m in _operands(problem))
    sizes, _ = collapse(out.shape, out.strides, *strides)
    return merged(sizes, most)


def merged(sizes: tuple[int, ...], most: int) -> Verdict:
    """Answer whether these dimensions, which are merged already, are few enough."""
    if len(sizes) <= most:
        return YES
    return no(f"takes at most {most} dimensions after merging, got {len(sizes)}: {sizes}", code=Code.SIZE)


def _sums(most: int, problem: Problem) -> Verdict:
    for found in Reduction.of_call(problem):
        kept, reduced = len(found.kept), len(found.reduced)
        if max(kept, reduced) > most:
            wanted = f"takes at most {most} kept and {most} summed dimensions after merging"
            return no(f"{wanted}, got {kept} and {reduced}", code=Code.SIZE)
    return YES


def _rows(longest: float, problem: Problem) -> Verdict:
    if (found := Rows.of(problem)) is None:
        why = "needs rows that lie at one step from each other in every tensor"
        return no(why, code=Code.LAYOUT)
    if found.length > longest:
        return no(f"takes rows of at most {longest} entries, got {found.length}", code=Code.SIZE)
    return YES


def _channels(most: int, problem: Problem) -> Verdict:
    named = dict(_named(problem, cpu_numbers=False))
    images = {name: named.pop(name) for name in ("x", "grad") if name in named}
    for image, meta in images.items():
        if meta.shape[1] > 1 and meta.strides[1] == 1:
            why = f"needs each channel's elements side by side, and {image} has strides {meta.strides}"
            return no(why, code=Code.LAYOUT)
    for name, meta in named.items():
        if not meta.is_contiguous():
            return no(f"needs {name} without gaps, got strides {meta.strides}", code=Code.LAYOUT)
    shape, *_ = (meta.shape for meta in images.values())
    rest = [(m.strides[0], *m.strides[2:]) for m in images.values()]
    return merged(collapse((shape[0], *shape[2:]), *rest)[0], most)
