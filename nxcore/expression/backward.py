"""The backward operator of an expression: the gradients of all its tensors, computed together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from nxcore.expression import reference
from nxcore.expression.derived import GRAD, RESULT, gradient, scale
from nxcore.expression.shapes import broadcast, elements, laid_out, require_numbers
from nxcore.expression.tree import Expression, Node
from nxcore.spec.checks import require_flags, require_shape, require_size, require_tensor
from nxcore.spec.gradient import Gradient
from nxcore.spec.problem import Problem, TensorMeta
from nxcore.spec.sample import ErrorCase, Sample, rand
from nxcore.spec.spec import Cost, OpSpec, Param

BARE = Node("input", (), GRAD)
"""The gradient of a tensor that is only added: the incoming one itself."""


@dataclass(frozen=True)
class Backward:
    """The gradients of an expression as one operator.

    Its arguments are the incoming gradient, the tensors whose values are needed, the shapes of the others,
    the numbers, and which gradients to compute.

    Attributes
    ----------
    name : str
        The operator's name.
    forward : Expression
    expression : Expression
        One result for each tensor that has a gradient.
    owners : tuple of int
        The tensor, by its place in the forward signature, of each result.
    """

    name: str
    forward: Expression
    expression: Expression
    owners: tuple[int, ...]

    @classmethod
    def of(cls, forward: Expression, name: str) -> Backward | None:
        """Return the backward operator of an expression; None where no tensor has a gradient."""
        found = [(i, root) for i, root in enumerate(gradient(forward, by_result=True)) if root is not None]
        if not found:
            return None
        owners, roots = zip(*found, strict=True)
        used = Expression((), (), roots).used
        saved = (name for name in (*forward.tensors, RESULT) if name in used)
        expression = Expression((GRAD, *saved), forward.numbers, roots)
        return cls(f"{name}_backward", forward, expression, owners)

    @property
    def key(self) -> str:
        """The digest of the trees."""
        return self.expression.key

    @property
    def saved(self) -> tuple[str, ...]:
        """The tensors whose values are needed, the forward operator's result among them."""
        return self.expression.tensors[1:]

    @property
    def by_result(self) -> bool:
        """Whether the forward operator's result is among them: then no other tensor is."""
        return RESULT in self.saved

    @property
    def sized(self) -> tuple[str, ...]:
        """The other tensors, of which only the shape is needed."""
        return tuple(name for name in self.forward.tensors if name not in self.saved)

    @cached_property
    def scales(self) -> Callable[..., tuple[Tensor, ...]]:
        """The scales of rounding errors of all results, in torch."""
        return reference.values(scale(self.expression))

    def args(self, grad: Any, mask: tuple[bool, ...], *arguments: Any) -> tuple[Any, ...]:
        """Return the arguments, from those of the forward operator."""
        names = [*self.forward.tensors, *(name for name, _ in self.forward.numbers), "out"]
        given = dict(zip(names + [RESULT] * self.by_result, arguments, strict=True))
        saved = (given[name] for name in self.saved)
        sizes = (tuple(given[name].shape) for name in self.sized)
        numbers = (given[name] for name, _ in self.forward.numbers)
        return grad, *saved, *sizes, *numbers, (*mask, False)[: len(self.forward.tensors)]

    @property
    def gradient(self) -> Gradient:
        """The forward operator's gradient."""
        saves = () if self.by_result else self.saved
        return Gradient(self.name, self.args, saves=saves, result=self.by_result)

    def spec(self, forward: OpSpec) -> OpSpec:
        """Return the operator's spec."""
        every = (True,) * len(self.forward.tensors)
        return OpSpec(
            name=self.name,
            params=(
                *(Param(name, "tensor") for name in self.expression.tensors),
                *(Param(f"{name}_size", "size") for name in self.sized),
                *(Param(name, "scalar", default) for name, default in self.forward.numbers),
                Param("output_mask", "static", every),
            ),
            reference=reference.function(self.name, self.source()),
            check=self.check,
            holds="alike",
            cost=self.cost,
            samples=tuple(self._samples(forward)),
            errors=self._errors(),
            magnitude=self.magnitude,
            terms=self.terms,
            outputs=self.outputs,
            view=self.view,
            idle=self.idle,
            expression=self,
        )

    def shapes(self, args: tuple[Any, ...]) -> dict[str, tuple[int, ...]]:
        """Return the shape of every tensor of the forward call, from the arguments."""
        count = len(self.expression.tensors)
        found = {n: tuple(t.shape) for n, t in zip(self.saved, args[1:count], strict=True)}
        sizes = args[count : count + len(self.sized)]
        return found | {n: tuple(size) for n, size in zip(self.sized, sizes, strict=True)}

    def wanted(self, args: tuple[Any, ...]) -> list[tuple[int, str, tuple[int, ...]]]:
        """Return the requested results: each one's number, tensor and shape."""
        shapes, mask = self.shapes(args), args[-1]
        named = ((i, self.forward.tensors[owner]) for i, owner in enumerate(self.owners) if mask[owner])
        return [(i, name, shapes[name]) for i, name in named]

    def copies(self, args: tuple[Any, ...], result: int, size: tuple[int, ...]) -> bool:
        """Return whether a result is the incoming gradient itself."""
        shape = tuple(args[0].shape)
        return self.expression.roots[result] == BARE and shape == size

    def check(self, *args: Any) -> None:
        """Raise unless the operator is defined for the arguments."""
        count = len(self.expression.tensors)
        for name, tensor in zip(self.expression.tensors, args[:count], strict=True):
            require_tensor(tensor, name, floating=name == GRAD)
        for name, size in zip(self.sized, args[count:], strict=False):
            require_size(size, f"{name}_size")
        shapes = self.shapes(args)
        described = {
            n: TensorMeta(s, (0,) * len(s), torch.float32, args[0].device) for n, s in shapes.items()
        }
        require_shape(args[0], broadcast(described), GRAD)
        require_numbers(self.forward, args[count + len(self.sized) : -1])
        require_flags(args[-1], len(self.forward.tensors), "output_mask")

    def dtype(self, args: tuple[Any, ...], name: str) -> torch.dtype:
        """Return the dtype of a tensor's gradient: its own where it is known, else the incoming one's."""
        tensors = dict(zip(self.expression.tensors, args, strict=False))
        found: torch.dtype = tensors[name].dtype if name in self.saved else tensors[GRAD].dtype
        return found

    def outputs(self, *args: Any) -> tuple[TensorMeta | None, ...] | None:
        """Describe the results, where these are plain without running torch."""
        found: list[TensorMeta | None] = [None] * len(self.forward.tensors)
        tensors = args[: len(self.expression.tensors)]
        common = laid_out(tensors, args[0].dtype)
        if common is None or any(t.device != args[0].device for t in tensors):
            return None
        for result, name, size in self.wanted(args):
            dtype = self.dtype(args, name)
            if size == tuple(args[0].shape) and len({t.shape for t in tensors}) == 1:
                meta = TensorMeta(size, common.strides, dtype, common.device)
            elif common.is_contiguous() and 1 not in size:
                meta = TensorMeta.row_major(size, dtype, common.device)
            else:
                return None
            found[self.owners[result]] = meta
        return tuple(found)

    def view(self, *args: Any) -> bool:
        """Return whether every requested gradient is the incoming one itself."""
        wanted = self.wanted(args)
        return bool(wanted) and all(
            self.copies(args, i, size) and self.dtype(args, name) == args[0].dtype for i, name, size in wanted
        )

    def idle(self, problem: Problem) -> str:
        """Return why there is nothing to compute."""
        return "nothing to compute: every requested gradient is the incoming one" if problem.view else ""

    def cost(self, *args: Any) -> Cost:
        """Count every tensor read once, the gradients written once."""
        tensors = args[: len(self.expression.tensors)]
        written = 0
        for result, name, size in self.wanted(args):
            if not self.copies(args, result, size):
                written += elements(size) * self.dtype(args, name).itemsize
        total = elements(args[0].shape)
        read = sum(t.nbytes for t in tensors) if written else 0
        return Cost(bytes=read + written, flops=total * self.expression.operations)

    def magnitude(self, *args: Any) -> tuple[Tensor | None, ...]:
        """Return the scales of rounding errors, added up as the gradients are."""
        count = len(self.expression.tensors)
        found: list[Tensor | None] = [None] * len(self.forward.tensors)
        scales = self.scales(*args[:count], *args[count + len(self.sized) : -1])
        for result, _, size in self.wanted(args):
            whole = scales[result].broadcast_to(args[0].shape)
            found[self.owners[result]] = whole.sum_to_size(size)
        return tuple(found)

    def terms(self, *args: Any) -> int:
        """Return how often the smallest tensor is repeated."""
        least = min((elements(size) for _, _, size in self.wanted(args)), default=1)
        return max(elements(args[0].shape) // max(least, 1), 1)

    def source(self) -> str:
        """Return the text of the reference."""
        tensors = self.expression.tensors
        mask = [f"output_mask[{i}]" for i in range(len(self.forward.tensors))]
        lines, results = reference.body(self.expression, "requested")
        numbers = [f"{n}: float = {reference.literal(default)}" for n, default in self.forward.numbers]
        every = ", ".join(["True"] * len(mask))
        given = [
            *(f"{name}: Tensor" for name in tensors),
            *(f"{name}_size: tuple[int, ...]" for name in self.sized),
            *numbers,
            f"output_mask: tuple[{', '.join(['bool'] * len(mask))}] = ({every},)",
        ]
        returned = ["None"] * len(mask)
        for owner, root, result in zip(self.owners, self.expression.roots, results, strict=True):
            name = self.forward.tensors[owner]
            size = f"{name}_size" if name in self.sized else f"{name}_given.shape"
            dtype = f"{GRAD}_given.dtype" if name in self.sized else f"{name}_given.dtype"
            value = f"{GRAD}_given" if root == BARE else result
            if root.kind == "number":
                value = f"torch.full_like({GRAD}, {result})"
            returned[owner] = f"summed({value}, {size}, {dtype}) if {mask[owner]} else None"
        plain = [name for name in tensors if name not in self.expression.masks]
        results_type = ", ".join(["Tensor | None"] * len(mask))
        doc = f"Return the gradients of ``{self.forward}``, one for each tensor."
        return "\n".join(
            [
                f"def {self.name}({', '.join(given)}) -> tuple[{results_type}]:",
                f"    {doc!r}",
                *(f"    {name}_given = {name}" for name in plain),
                f"    {', '.join(plain)}, = widened({', '.join(plain)})",
                f"    requested = ({', '.join(mask[owner] for owner in self.owners)},)",
                *lines,
                f"    return ({', '.join(returned)},)",
                "",
            ]
        )

    def _samples(self, forward: OpSpec) -> Any:
        """Yield the samples of the forward operator, with a gradient."""
        for sample in forward.samples:
            given = self._given(sample)
            if "out" in sample.kwargs or sample.name in ("channels_last", "transposed"):
                continue
            shape = broadcast({n: torch.empty(given[n].shape, device="meta") for n in self.forward.tensors})
            saved = (given[name] for name in self.saved)
            sizes = (given[name].shape for name in self.sized)
            args = (rand(*shape), *saved, *sizes)
            yield Sample(sample.name, args, sample.kwargs, sample.tags)
        if len(self.forward.tensors) > 1:
            only = (True, *(False,) * (len(self.forward.tensors) - 1))
            if 0 in self.owners:
                first = next(s for s in forward.samples if s.name == "last_block_partly_filled")
                given = self._given(first)
                args = (rand(1025), *(given[n] for n in self.saved), *(given[n].shape for n in self.sized))
                yield Sample("only_first", args, {"output_mask": only})

    def _given(self, sample: Sample) -> dict[str, Any]:
        """Return a sample's tensors by name; the result may have any values, those of the first tensor."""
        return dict(zip(self.forward.tensors, sample.args, strict=True)) | {RESULT: sample.args[0]}

    def _errors(self) -> tuple[ErrorCase, ...]:
        wrong = (rand(5), *(rand(4) for _ in self.saved), *((4,) for _ in self.sized))
        return (ErrorCase("grad_of_wrong_shape", wrong, match=r"grad must have the output's shape \(4,\)"),)
