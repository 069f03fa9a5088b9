"""Needs of kernels: predicates with one message each, combined into an ``accepts``."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from nxcore.spec.kernel import YES, Code, Verdict, no
from nxcore.spec.layout import Rows, alike, broadcast_strides, collapse, overlaps
from nxcore.spec.problem import Problem, TensorMeta
from nxcore.spec.product import Product
from nxcore.spec.reduction import Reduction
from nxcore.spec.spec import FLOATS
from nxcore.spec.window import pair

Need = Callable[[Problem], Verdict]

LONGEST = 2**31 - 512
"""The most rows, columns or terms of a product: the last tile ends below 2^31."""

MOST = 65535
"""The most products of a call: blocks along one axis of a grid."""

PARTS = 16
"""The most parts of an image's gradient, each of which is a launch."""

INTEGERS = (torch.uint8, torch.int32)
"""The dtypes of offsets and other small integers."""


@dataclass(frozen=True, slots=True)
class Place:
    """The device that a kernel's tensors must be on.

    Attributes
    ----------
    kind : str
        The type of device.
    condition : str
        The reason, where a simulator runs the kernel: " under TRITON_INTERPRET=1".

    Examples
    --------
    >>> Place("cuda")
    Place(kind='cuda', condition='')
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
    products: int | None = None,
    rank: int | None = None,
    distinct: bool = False,
    dense: bool = False,
) -> Need:
    """Return an ``accepts`` that answers with the first need that a call does not meet.

    Parameters
    ----------
    *more : callable
        Needs of this kernel alone, checked last.
    device : callable, optional
        ``device() -> Place``: the kind of device that all tensors share. Without it, any device.
    dtypes : tuple of torch.dtype
        The dtypes of all tensors except ``integers``.
    integers : tuple of str
        The parameters that hold uint8 or int32.
    cpu_numbers : bool
        A tensor without dimensions may be on the CPU.
    tensors : bool
        Operands are tensors, not numbers.
    alike_numbers : bool
        A tensor operand without dimensions has the other's dtype.
    one_gradient : bool
        Only the first gradient is requested.
    rows : float, optional
        The largest number of entries in a row; the step between rows is constant (see ``Rows``).
    channels : int, optional
        The largest number of dimensions of images after merging, channels left out. Channels are not
        innermost, and tensors with one value for each channel are contiguous.
    sums : int, optional
        The largest number of kept dimensions, and of summed ones, after merging (see ``Reduction``).
    products : int, optional
        The largest number of dimensions that count products of matrices, after merging (see ``Product``);
        sizes and that count are those of a grid.
    rank : int, optional
        The largest number of dimensions that the broadcast operands and the result have after merging.
    distinct : bool
        No two elements of a result share memory.
    dense : bool
        All tensors and results share one dense memory layout.

    Returns
    -------
    callable
        ``accepts(problem) -> Verdict``.

    Examples
    --------
    >>> accepts = needs(dtypes=(torch.float32,), rows=1024)
    >>> accepts(Problem.of(nxcore.ops.entropy.spec, (torch.ones(2, 2000),))).reason
    'takes rows of at most 1024 entries, got 2000'
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
    if products is not None:
        asked.append(functools.partial(_products, products))
    if dense:
        asked.append(_dense)
    if rank is not None:
        asked += [functools.partial(_result, dtypes), functools.partial(_rank, rank)]
    return functools.partial(_every, (*asked, *more))


def at_most(most: int, what: str, count: Callable[[Problem], int]) -> Need:
    """Return the need that ``count(problem)`` is at most ``most``; ``what`` names the things counted.

    >>> need = at_most(8, "candidates", lambda problem: len(problem["xs"]))
    >>> need(Problem.of(nxcore.ops.softmax_sum.spec, ([torch.ones(2)] * 9, torch.ones(9)))).reason
    'takes at most 8 candidates, got 9'
    """

    def need(problem: Problem) -> Verdict:
        found = count(problem)
        return YES if found <= most else no(f"takes at most {most} {what}, got {found}", code=Code.SIZE)

    return need


def few_channels(most: int, taps: int) -> Need:
    """Return the need of a convolution of groups of few channels, in and out, by filters of few taps.

    Of its gradients, also that of a small stride: see ``turned_windows``.

    >>> need = few_channels(2, 9)
    >>> spec = nxcore.ops.conv2d.spec
    >>> need(Problem.of(spec, spec.bind(torch.ones(4, 3, 3), torch.ones(2, 4, 3, 3)))).reason
    'takes at most 2 channels of a group, got 4'
    """

    def made(problem: Problem) -> int:
        return int(problem["weight"].shape[0] // problem["groups"])

    return functools.partial(
        _every,
        (
            at_most(most, "channels of a group", lambda problem: problem["weight"].shape[1]),
            at_most(most, "channels out of a group", made),
            at_most(taps, "taps of a filter", lambda problem: math.prod(problem["weight"].shape[2:])),
            at_most(PARTS, "parts of an image's gradient, one for each phase of the stride", _parts),
        ),
    )


def _parts(problem: Problem) -> int:
    """Return in how many parts a convolution's image's gradient is made, 0 where none is needed."""
    if not isinstance(problem.outputs, tuple) or problem.outputs[0] is None:
        return 0
    strides = pair(problem["stride"], "stride")
    return math.prod(min(n, s) for n, s in zip(problem["x"].shape[-2:], strides, strict=True))


def _every(asked: Iterable[Need], problem: Problem) -> Verdict:
    return next((found for need in asked if not (found := need(problem))), YES)


def _named(problem: Problem, cpu_numbers: bool) -> Iterator[tuple[str, TensorMeta]]:
    """Yield each tensor with its parameter's name; ``cpu_numbers`` leaves out 0-d tensors on the CPU."""
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
    """Return dtypes as text: ``float32, float16 or bfloat16``.

    >>> either([torch.float32, torch.float16])
    'float32 or float16'
    """
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
        why = "computes only the first gradient, and output_mask requests more"
        return no(why, code=Code.ARGUMENT)
    return YES


def _results(problem: Problem) -> list[TensorMeta]:
    """Return the tensors that are written: the caller's ``out``, or the requested outputs."""
    if problem.writes:
        return [problem["out"]]
    outputs = problem.outputs if isinstance(problem.outputs, tuple) else (problem.outputs,)
    return [meta for meta in outputs if isinstance(meta, TensorMeta)]


def _distinct(problem: Problem) -> Verdict:
    for out in _results(problem):
        if overlaps(out):
            why = f"needs results without elements that share memory, got strides {out.strides}"
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
    """Return whether ``sizes``, already merged, has at most ``most`` dimensions.

    >>> merged((2, 3, 4), 2).reason
    'takes at most 2 dimensions after merging, got 3: (2, 3, 4)'
    """
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


def _products(most: int, problem: Problem) -> Verdict:
    found = Product.of(problem["a"], problem["b"], problem.outputs)
    sizes = (found.rows, found.columns, found.terms)
    if max(sizes) > LONGEST:
        return no(f"takes at most {LONGEST} rows, columns and terms, got {sizes}", code=Code.SIZE)
    if (count := math.prod(found.batch)) > MOST:
        return no(f"takes at most {MOST} products, got {count}", code=Code.SIZE)
    return merged(found.batch, most)


def _rows(longest: float, problem: Problem) -> Verdict:
    if (found := Rows.of(problem)) is None:
        why = "needs rows with a constant step in every tensor"
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
