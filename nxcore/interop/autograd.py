"""Forward and backward operators joined as one autograd function."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from nxcore.errors import FOREIGN
from nxcore.interop import autocast, internals
from nxcore.interop.held import Held
from nxcore.interop.internals import functorch
from nxcore.interop.marks import Mark, equal, number
from nxcore.spec.gradient import Gradient
from nxcore.spec.problem import TensorMeta
from nxcore.spec.spec import OpSpec

WORTH_CHECKING = 2**20
"""The least bytes of a tensor whose gradient costs more than the check whether it is needed."""

QUESTIONS = 2
"""The most leaves to check in a backward pass: a positive check raises an exception, which takes 30 us.

After so many needed ones, all others are assumed to be needed too.
"""

_LEAF: type = type(torch.autograd.graph.get_gradient_edge(torch.zeros((), requires_grad=True)).node)
_leaves = (-1, 0)  # the id of a backward pass, and the number of its leaves found to be needed


class Differentiable:
    """A planned forward call and the operator that differentiates it.

    All that follows from the problem is computed here, so that a call does little more than torch's own
    autograd functions.

    Parameters
    ----------
    spec : OpSpec
        The operator.
    described : tuple
        The arguments, as in ``Problem.args``.
    gradient : Gradient
        The operator that differentiates it, and its arguments.
    forward : callable
        The planned kernel; takes the operator's arguments, all positional. If the gradient names another
        forward operator, it returns a tuple: the result, and what to save for the backward pass.
    backward : callable
        The backward operator; takes its arguments, all positional.
    reference : callable
        The backward operator's reference: used for second derivatives.
    held : Held, optional
        What torch's own autograd saves of such calls. Of another saved tensor a copy is saved if the backward
        operator reads it, and else the tensor without a watch for writes. All are held by default.
    """

    def __init__(
        self,
        spec: OpSpec,
        described: tuple[Any, ...],
        gradient: Gradient,
        forward: Callable[..., Any],
        backward: Callable[..., Any],
        reference: Callable[..., Any],
        held: Held | None = None,
    ) -> None:
        self.described, self.gradient, self.forward = described, gradient, forward
        self.backward, self.reference = backward, reference
        self._places: list[tuple[int, bool]] = []  # of tensor arguments: index, and whether a sequence
        self._numbers: list[int] = []  # indices of numbers, which may change from call to call
        self._saved: list[tuple[int, int]] = []  # of saved arguments: index, and number of tensors
        self._kept: list[int] = []  # indices of saved tensors, among all tensors
        names: list[str] = []  # the parameter of each tensor
        for i, (param, value) in enumerate(zip(spec.params, described, strict=True)):
            many = param.kind == "tensors" and isinstance(value, tuple)
            if not many and not isinstance(value, TensorMeta):
                if param.kind in ("scalar", "operand"):
                    self._numbers.append(i)
                continue
            self._places.append((i, many))
            size = len(value) if many else 1
            if param.name in gradient.saves:
                self._saved.append((i, size if many else 0))
                self._kept.extend(range(len(names), len(names) + size))
            names += [param.name] * size
        count = len(names)
        self._copied, self._unread = (
            ([], []) if held is None else held.apart(names, self._kept, gradient.reads)
        )
        self._outputs = held.unheld_results() if held and gradient.keeps else []
        self._all = self._kept == list(range(count)) and not (self._copied or self._unread)
        total = sum(meta.nbytes for meta in self._described())
        known = isinstance(total, int)  # comparing a compiler's symbol would add a guard
        self.checks = count > 1 and known and total >= count * WORTH_CHECKING

    def _described(self) -> Iterator[TensorMeta]:
        for i, many in self._places:
            yield from self.described[i] if many else (self.described[i],)

    def __call__(self, *args: Any) -> Any:
        """Run the forward kernel and save the tensors for the backward pass."""
        flat: list[Tensor] = []
        for i, many in self._places:
            if many:
                flat.extend(args[i])
            else:
                flat.append(args[i])
        return _apply(self, args, *flat)  # type: ignore[no-untyped-call]  # torch has no types for it

    def kept(
        self, ctx: Any, args: tuple[Any, ...], flat: tuple[Tensor, ...], extra: Sequence[Tensor]
    ) -> None:
        """Save what the backward pass needs.

        It sets attributes of ``ctx`` directly, as each method of ``ctx`` would add a Python frame to every
        call.
        """
        ctx.call, ctx.materialize_grads = self, False
        if self._numbers:
            ctx.numbers = [args[i] for i in self._numbers]
        if self._copied or self._unread:
            flat = self._guarded(list(flat))
        if self._all:
            ctx.to_save = (*flat, *extra) if extra else flat
        elif self._kept or extra:
            ctx.to_save = (*[flat[i] for i in self._kept], *extra)

    def outputs(self, result: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Return what is saved of the results of an operator that keeps all but the first."""
        if not self._outputs:
            return tuple(result[1:])
        return tuple(t.clone() if i in self._outputs else t for i, t in enumerate(result) if i)

    def _guarded(self, flat: list[Tensor]) -> tuple[Tensor, ...]:
        """Return what is saved in place of tensors that a program may write to."""
        with torch.enable_grad():  # a second derivative goes through a copy
            for i in self._copied:
                flat[i] = flat[i].clone()
        for i in self._unread:
            flat[i] = flat[i].data
        return tuple(flat)

    def arguments(
        self, grad: Tensor, mask: tuple[bool, ...], saved: Sequence[Tensor], numbers: Sequence[Any]
    ) -> tuple[Any, ...]:
        """Return the backward operator's arguments; see ``gradients``."""
        args = list(self.described)
        for i, value in zip(self._numbers, numbers, strict=True):
            args[i] = value
        rest = iter(saved)
        for i, count in self._saved:
            args[i] = tuple(next(rest) for _ in range(count)) if count else next(rest)
        return self.gradient.args(grad, mask, *args, *rest)

    def order(
        self, grad: Tensor, mask: tuple[bool, ...], saved: Sequence[Tensor], numbers: Sequence[Any]
    ) -> tuple[tuple[Any, ...], tuple[Any, ...]] | None:
        """Return where the backward operator's arguments come from, in every backward pass with this mask.

        Returns
        -------
        (tuple, tuple) or None
            Of each argument its number, or those of what is in a tuple; and the constants among the
            arguments. ``grad``, ``saved``, ``numbers`` and the constants are numbered in this order. None
            where the arguments depend on more than the problem: then ``arguments`` returns them.
        """
        pool = [grad, *saved, *numbers]
        marks: list[Any] = [Mark(i) for i in range(len(pool))]
        constants: list[Any] = []
        try:
            given = self.arguments(marks[0], mask, marks[1 : 1 + len(saved)], marks[1 + len(saved) :])
            form = tuple([number(value, len(pool), constants) for value in given])
            pool += constants
            picked = [tuple([pool[i] for i in n]) if isinstance(n, tuple) else pool[n] for n in form]
        except FOREIGN:  # the function reads what a mark stands for, or puts it deeper
            return None
        real = self.arguments(grad, mask, saved, numbers)
        same = [equal(a, b) for a, b in zip(real, picked, strict=True)]
        return (form, tuple(constants)) if all(same) else None

    def gradients(
        self,
        grad: Tensor,
        mask: tuple[bool, ...],
        saved: Sequence[Tensor],
        numbers: Sequence[Any],
        compiler: Any = None,
    ) -> list[Tensor | None]:
        """Return the gradients of the tensors of a call; see ``gradients``.

        With ``compiler``, which is what traces a pass of ``torch._dynamo.compiled_autograd``, they are
        stand-ins for what its graph computes, as ``grad`` and ``saved`` are. Dynamo breaks the graph around
        the backward operator, whose kernel runs.
        """
        if compiler is None:
            return gradients(self, grad, mask, saved, numbers)

        def join_backward(grad: Tensor | None, *saved: Tensor) -> list[Tensor | None]:
            return [None] * len(mask) if grad is None else gradients(self, grad, mask, saved, numbers)

        outside = torch.compiler.disable(join_backward, reason="nxcore runs a kernel of its own")
        found = compiler.proxy_call(outside, (grad, *saved), [None] * len(mask))
        return [one if needed else None for one, needed in zip(found, mask, strict=True)]

    def compiled(self, extension: Any) -> Callable[..., Any]:
        """Return a callable like this one, whose node of autograd is that of the extension."""
        if type(self).__call__ is not Differentiable.__call__:
            return self
        inner, keeps = bool(self.gradient.forward), self.gradient.keeps
        places, numbers = tuple(self._places), tuple(self._numbers)
        kept = tuple((i, "c" if i in self._copied else "u" if i in self._unread else "h") for i in self._kept)
        made: Callable[..., Any] = extension.Join(
            self,
            self.forward,
            self.backward,
            places,
            numbers,
            kept,
            inner,
            keeps,
            self.gradient.result,
            self._outputs,
            self.checks,
            len(self.described),
        )
        return made


class _Join(torch.autograd.Function):
    """The autograd function; ``flat`` repeats the tensors of ``args``, so that autograd sees them."""

    @staticmethod
    def forward(ctx: Any, call: Differentiable, args: tuple[Any, ...], *flat: Tensor) -> Any:
        result, extra = call.forward(*args), tuple[Tensor, ...]()
        if call.gradient.forward:
            result, extra = result[0], result[1:]
        elif call.gradient.keeps:
            ctx.non_differentiable = tuple(result[1:])
            extra = call.outputs(result)
        elif call.gradient.result:
            extra = (result,)
        call.kept(ctx, args, flat, extra)
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
        mask = ctx.needs_input_grad[2:]
        if grad is None:
            return (None, None, *(None for _ in mask))
        call: Differentiable = ctx.call
        if call.checks and sum(mask) > 1:
            mask = tuple(map(_wanted, mask, ctx.next_functions))
        numbers = getattr(ctx, "numbers", ())
        return (None, None, *gradients(call, grad, mask, ctx.saved_tensors, numbers))[: 2 + len(mask)]


def gradients(
    call: Differentiable,
    grad: Tensor,
    mask: tuple[bool, ...],
    saved: Sequence[Tensor],
    numbers: Sequence[Any],
) -> list[Tensor | None]:
    """Return the gradients of the tensors of a call, from that of its result.

    ``mask`` says which need one; ``saved`` and ``numbers`` are the tensors and numbers that the call kept.
    """
    if functorch.is_legacy_batchedtensor(grad) and (rows := _rows(grad)) is not None:
        return _by_rows(call, rows, mask, saved, numbers)
    arguments = call.arguments(grad, mask, saved, numbers)
    # Grad mode is on here only with create_graph=True: the reference consists of torch's own
    # differentiable operators, a kernel doesn't.
    batched = internals.batched(grad)
    results = _run(call.reference if batched else None, call, arguments)
    if not batched and type(grad) is Tensor:  # others have no data pointer
        results = [_itself(r, grad) for r in results]
    return results


_apply = super(
    torch.autograd.Function, _Join
).apply  # skips torch's check for torch.func, which is in the key


def _wanted(needed: bool, edge: tuple[Any, int]) -> bool:
    """Return whether this backward pass needs an input's gradient; ``torch.autograd.grad`` names inputs."""
    global _leaves  # noqa: PLW0603  a race of two passes costs one more check
    node = edge[0]
    if not needed or node is None:
        return needed
    leaf, task = type(node) is _LEAF, internals.backward_pass()
    if leaf and _leaves == (task, QUESTIONS):
        return True
    try:
        return internals.will_run(node)
    except (RuntimeError, AttributeError):  # torch raises this for a needed leaf
        if leaf:
            _leaves = (task, _leaves[1] + 1 if _leaves[0] == task else 1)
        return True


def _run(
    instead: Callable[..., Any] | None, call: Differentiable, arguments: tuple[Any, ...]
) -> list[Tensor | None]:
    """Return the gradients, or ``instead``; by the reference if they will be differentiated."""
    if torch.is_grad_enabled() or instead:
        return flatten((instead or call.reference)(*arguments))
    if internals.any_autocast():  # autocast applies to the forward pass only
        with autocast.disabled():
            return flatten(call.backward(*arguments))
    return flatten(call.backward(*arguments))


OUTERMOST = 1
"""The level of a vmap that isn't nested; autograd's threads don't know the nesting."""


def _rows(grad: Tensor) -> Tensor | None:
    """Return a batch of gradients as one ordinary tensor; None for nested vmaps."""
    rows: Tensor = internals.without_batch(grad, OUTERMOST, 1, 0)  # as torch's own map does
    return None if functorch.is_legacy_batchedtensor(rows) else rows


def _by_rows(
    call: Differentiable,
    rows: Tensor,
    mask: tuple[bool, ...],
    saved: Sequence[Tensor],
    numbers: Sequence[Any],
) -> list[Tensor | None]:
    """Return the gradients of each row of a batch, batched again for autograd's own vmap.

    ``is_grads_batched=True`` gives tensors without memory, for which torch has few rules. Each row is an
    ordinary tensor. torch's own fallback does the same for operators without a rule.
    """
    with internals.outside_of_batches():
        each = (call.arguments(row, mask, saved, numbers) for row in rows.unbind(0))
        found = [_run(None, call, arguments) for arguments in each]
    return [
        None if r[0] is None else internals.with_batch(torch.stack(r), 0, OUTERMOST)
        for r in zip(*found, strict=True)
    ]


def _itself(result: Tensor | None, grad: Tensor) -> Tensor | None:
    """Return ``grad`` for a view of all of it.

    A view with no other reference becomes a leaf's ``.grad`` without a copy: two leaves would share memory.
    """
    if result is None or result is grad or result.shape != grad.shape or result.stride() != grad.stride():
        return result
    same = result.data_ptr() == grad.data_ptr() and result.dtype == grad.dtype and result.numel()
    return grad if same else result


def flatten(result: Any) -> list[Tensor | None]:
    """Return every tensor of a nested result in order, and None for missing ones."""
    if isinstance(result, tuple | list):
        return [leaf for item in result for leaf in flatten(item)]
    return [result]
