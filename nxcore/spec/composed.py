"""Kernels composed of one backend's kernels for the parts of an operator."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from nxcore.errors import present
from nxcore.spec.kernel import YES, Kernel, Verdict
from nxcore.spec.precision import CLASSES
from nxcore.spec.problem import Problem
from nxcore.spec.process import imported
from nxcore.spec.spec import OpSpec


@dataclass(frozen=True)
class Composed(Kernel):
    """A kernel made of one backend's kernels for the parts of an operator.

    Attributes
    ----------
    halves : tuple of Kernel
        One for each part.
    """

    halves: tuple[Kernel, ...] = ()

    @property
    def plan(self) -> Callable[[Problem], Callable[..., Any]]:
        """The planner: plans each part that must run, and joins the calls."""
        return self._plan

    def _plan(self, problem: Problem) -> Callable[..., Any]:
        pairs = zip(self.halves, problem.parts, strict=True)
        calls = (None if part is None else half.plan(part) for half, part in pairs)
        return present(problem.spec.parts, "parts").join(problem, *calls)


def composed(kernels: Iterable[Kernel], specs: Iterable[OpSpec]) -> tuple[Kernel, ...]:
    """Compose kernels from a backend's own, for operators of parts that it has no kernel for.

    Examples
    --------
    >>> half = kernels("mine", {"sep_conv2d": accept_all, "batch_norm": accept_all})
    >>> [made.op for made in composed(half, [nxcore.ops.sep_conv2d_batch_norm.spec])]
    ['sep_conv2d_batch_norm']
    """
    own = {(kernel.op, kernel.variant): kernel for kernel in kernels}
    made: list[Kernel] = []
    for spec in specs:
        for variant in dict.fromkeys(variant for _, variant in own) if spec.parts else ():
            halves = [own.get((op, variant)) for op in spec.parts.ops] if spec.parts else []
            found = tuple(half for half in halves if half)
            if (spec.name, variant) not in own and len(found) == len(halves):
                made.append(_compose(spec, found))
    return tuple(made)


def taken_apart(kernel: Kernel, problem: Problem) -> Iterator[tuple[Kernel, Problem]]:
    """Yield a kernel and its problem; of a composed one those of its parts."""
    if not isinstance(kernel, Composed):
        yield kernel, problem
        return
    for half, part in zip(kernel.halves, problem.parts, strict=True):
        if part is not None:
            yield from taken_apart(half, part)


def proofs_for(kernel: Kernel, problem: Problem) -> Iterator[tuple[Kernel, Problem, str]]:
    """Yield a kernel, or a part of one, and its samples for calls like a problem alone: ``own, NAMES``."""
    for own, part in taken_apart(kernel, problem):
        if own.verified_for and (names := imported(own.verified_for)(part)):
            yield own, part, ", ".join(("own", *names))


def _compose(spec: OpSpec, halves: tuple[Kernel, ...]) -> Kernel:
    def accepts(problem: Problem) -> Verdict:
        answers = (h.takes(part) for h, part in zip(halves, problem.parts, strict=True) if part is not None)
        return next((answer for answer in answers if not answer), YES)

    first = halves[0]
    # The coarsest of its parts' classes.
    precision = max((half.precision for half in halves), key=CLASSES.index)
    common = (d for d in spec.parts.dtypes if all(d in h.dtypes for h in halves)) if spec.parts else ()
    return Composed(
        spec.name,
        first.target,
        accepts,
        first.probe,
        first.variant,
        tuple(common),
        precision,
        deterministic=all(half.deterministic for half in halves),
        graph_safe=all(half.graph_safe for half in halves),
        announces=all(half.announces for half in halves),
        verified_on=tuple(s.name for s in spec.samples if any(s.name in h.verified_on for h in halves)),
        halves=halves,
    )
