"""A call of an expression's operator as one elementwise kernel: what a backend's planner needs to know.

A planner prints and compiles ``Elementwise.expression``; ``planned`` makes the call around it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nxcore.errors import present
from nxcore.expression.backward import Backward
from nxcore.expression.derived import simple
from nxcore.expression.tree import Expression, Node
from nxcore.spec.kernel import YES, Code, Verdict, no
from nxcore.spec.layout import broadcast_strides, collapse, overlaps
from nxcore.spec.needs import either, merged
from nxcore.spec.problem import Problem, TensorMeta

Run = Callable[[Sequence[Tensor], Sequence[float]], None]
"""Takes the results, then the inputs, and the numbers; writes the results."""


@dataclass(frozen=True)
class Elementwise:
    """One call as an elementwise kernel.

    Attributes
    ----------
    expression : Expression
        What is computed, in terms of the functions that every printer knows. A constant result is a node of
        kind ``number``.
    results : tuple of TensorMeta
        What the kernel writes, one for each tree, of the shape of the call.
    inputs : tuple of TensorMeta
        What it reads, one for each of the expression's tensors.
    places : tuple of int
        Where each input is among the call's arguments.
    numbers : tuple of int
        Where each of the expression's numbers is.
    finish : tuple of (int, TensorMeta or None)
        For each tree, the result of the call that it is; described where it must be added up, None if not.

    Examples
    --------
    >>> spec = nxcore.pointwise("x + y").spec
    >>> found = Elementwise.of(Problem.of(spec, (torch.ones(2, 3), torch.ones(3), None)))
    >>> [str(meta) for meta in found.inputs], found.dims[0]
    (['float32[2, 3]', 'float32[3]'], (2, 3))
    """

    expression: Expression
    results: tuple[TensorMeta, ...]
    inputs: tuple[TensorMeta, ...]
    places: tuple[int, ...]
    numbers: tuple[int, ...]
    finish: tuple[tuple[int, TensorMeta | None], ...]

    @classmethod
    def of(cls, problem: Problem) -> Elementwise:
        """Describe a call."""
        found = problem.spec.expression
        if isinstance(found, Backward):
            return cls._of_gradients(found, problem)
        target = problem["out"] or problem.outputs
        return cls._made(simple(found), (target,), ((0, None),), problem)

    @classmethod
    def _of_gradients(cls, found: Backward, problem: Problem) -> Elementwise:
        shape = problem.args[0].shape
        roots: list[Node] = []
        results: list[TensorMeta] = []
        finish: list[tuple[int, TensorMeta | None]] = []
        for number, _, size in found.wanted(problem.args):
            owner = found.owners[number]
            meta: TensorMeta = problem.outputs[owner]
            if found.copies(problem.args, number, size) and meta.dtype == problem.args[0].dtype:
                continue
            roots.append(found.expression.roots[number])
            if size == shape:
                results.append(meta)
                finish.append((owner, None))
            else:  # added up in float32, so that it is rounded once
                results.append(TensorMeta.row_major(shape, torch.float32, meta.device))
                finish.append((owner, meta))
        given = found.expression
        whole = Expression(given.tensors, given.numbers, tuple(roots))
        return cls._made(simple(whole), tuple(results), tuple(finish), problem)

    @classmethod
    def _made(
        cls,
        whole: Expression,
        results: tuple[TensorMeta, ...],
        finish: tuple[tuple[int, TensorMeta | None], ...],
        problem: Problem,
    ) -> Elementwise:
        """Leave out the tensors and numbers that the requested results don't need."""
        used = whole.used
        tensors = tuple(name for name in whole.tensors if name in used)
        numbers = tuple((name, default) for name, default in whole.numbers if name in used)
        order = {param.name: i for i, param in enumerate(problem.spec.params)}
        places = tuple(order[name] for name in tensors)
        return cls(
            Expression(tensors, numbers, whole.roots),
            results,
            tuple(problem.args[place] for place in places),
            places,
            tuple(order[name] for name, _ in numbers),
            finish,
        )

    @property
    def tensors(self) -> tuple[TensorMeta, ...]:
        """The results, then the inputs."""
        return (*self.results, *self.inputs)

    @property
    def elements(self) -> int:
        """The number of elements of a result."""
        return self.results[0].numel()

    @property
    def strides(self) -> tuple[tuple[int, ...], ...]:
        """The strides of all tensors in the shape of the call, 0 where one is repeated."""
        return tuple(broadcast_strides(meta, self.results[0].shape) for meta in self.tensors)

    @property
    def dims(self) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
        """Sizes and strides of all tensors in the fewest dimensions, outermost first."""
        return collapse(self.results[0].shape, *self.strides)


def planned(problem: Problem, compiled: Callable[[Elementwise], Run]) -> Callable[..., Any]:
    """Return the call for a problem, around the kernel that ``compiled`` makes of it.

    Parameters
    ----------
    problem : Problem
    compiled : callable
        ``compiled(elementwise) -> run``; ``run(tensors, numbers)`` writes the results, which come first.

    Examples
    --------
    >>> x, y = torch.ones(2), torch.ones(2)
    >>> problem = Problem.of(nxcore.pointwise("x + y").spec, (x, y, None))
    >>> call = planned(problem, lambda found: lambda tensors, numbers: torch.add(x, y, out=tensors[0]))
    >>> call(x, y, None)
    tensor([2., 2.])
    """
    found = Elementwise.of(problem)
    run = compiled(found) if found.results else None
    if isinstance(problem.spec.expression, Backward):
        return _gradients(problem, found, run)
    kernel, fresh = present(run, "run"), problem.outputs
    places, numbers = found.places, found.numbers
    if places == tuple(range(len(places))):
        count = len(places)

        def call(*args: Any) -> Tensor:
            out: Tensor = fresh.empty() if args[-1] is None else args[-1]
            kernel((out, *args[:count]), args[count:-1])
            return out

        return call

    def call_some(*args: Any) -> Tensor:
        out: Tensor = fresh.empty() if args[-1] is None else args[-1]
        kernel((out, *(args[i] for i in places)), [args[i] for i in numbers])
        return out

    return call_some


def _gradients(problem: Problem, found: Elementwise, run: Run | None) -> Callable[..., Any]:
    backward: Backward = problem.spec.expression
    count = len(problem.outputs)
    made = {owner for owner, _ in found.finish}
    bare = [backward.owners[i] for i, _, _ in backward.wanted(problem.args) if backward.owners[i] not in made]
    results, finish = found.results, found.finish
    places, numbers = found.places, found.numbers

    def call(*args: Any) -> tuple[Tensor | None, ...]:
        returned: list[Tensor | None] = [None] * count
        if run is not None:
            written = [meta.empty() for meta in results]
            run((*written, *(args[i] for i in places)), [args[i] for i in numbers])
            for (owner, meta), whole in zip(finish, written, strict=True):
                total = whole if meta is None else whole.sum_to_size(meta.shape).to(meta.dtype)
                returned[owner] = total
        for owner in bare:
            returned[owner] = args[0]
        return tuple(returned)

    return call


def fits(dtypes: Sequence[torch.dtype], rank: int) -> Callable[[Problem], Verdict]:
    """Return the need that an elementwise kernel's results have one of ``dtypes``, and few dimensions.

    >>> need = fits((torch.float32,), 3)
    >>> need(Problem.of(nxcore.pointwise("x + y").spec, (torch.ones(2), torch.ones(2), None))).ok
    True
    """

    def need(problem: Problem) -> Verdict:
        found = Elementwise.of(problem)
        for out in found.results:
            if out.dtype not in dtypes:
                return no(f"needs a result of {either(dtypes)}, got {either([out.dtype])}", code=Code.DTYPE)
            if overlaps(out):
                why = f"needs results without elements that share memory, got strides {out.strides}"
                return no(why, code=Code.LAYOUT)
        return merged(found.dims[0], rank) if found.results else YES

    return need
