"""From an expression to an operator: its spec, all of which follows from the tree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from nxcore.errors import InvalidInputError
from nxcore.expression import reference
from nxcore.expression.backward import Backward
from nxcore.expression.derived import scale
from nxcore.expression.promotion import follows_inputs, promoter
from nxcore.expression.samples import errors, samples
from nxcore.expression.shapes import broadcast, elements, laid_out, require_numbers
from nxcore.expression.tree import Expression
from nxcore.spec.checks import require_tensor
from nxcore.spec.problem import TensorMeta
from nxcore.spec.spec import SAME, Cost, OpSpec, Param, Way


def named(expression: Expression, name: str = "pointwise") -> str:
    """Return the name of an expression's operator: another for every other expression.

    >>> named(nxcore.pointwise("x + 1").spec.expression, "shifted")[:8]
    'shifted_'
    """
    return f"{name}_{expression.key[:12]}"


def specs(expression: Expression, name: str, doc: str = "", *, keyword: bool = True) -> tuple[OpSpec, ...]:
    """Return the specs of an expression's operator and, where it has a gradient, of its backward operator.

    Parameters
    ----------
    expression : Expression
        Of one result.
    name : str
        The operator's name.
    doc : str
        Its docstring; by default, one is made of the tree.
    keyword : bool
        Whether numbers are given by name alone.

    Returns
    -------
    tuple of OpSpec
    """
    backward = Backward.of(expression, name)
    made = Forward(expression).spec(name, doc, backward, keyword=keyword)
    return (made, backward.spec(made)) if backward else (made,)


class Forward:
    """The functions of a spec that is made of an expression.

    Parameters
    ----------
    expression : Expression
    """

    def __init__(self, expression: Expression) -> None:
        self.expression = expression
        self.count = len(expression.tensors)
        self.masks = expression.masks
        self.promoted = promoter(expression)
        self.scales = reference.values(scale(expression))

    def spec(self, name: str, doc: str, backward: Backward | None, *, keyword: bool) -> OpSpec:
        """Return the spec."""
        expression = self.expression
        numbers = (Param(n, "scalar", default, keyword=keyword) for n, default in expression.numbers)
        return OpSpec(
            name=name,
            params=(
                *(Param(tensor, "tensor") for tensor in expression.tensors),
                *numbers,
                Param("out", "out", None, keyword=True),
            ),
            reference=self.reference(name, doc),
            check=self.check,
            holds="alike",
            cost=self.cost,
            samples=samples(expression),
            errors=errors(expression),
            magnitude=self.magnitude,
            terms=lambda *_: 1,
            gradient=backward.gradient if backward else None,
            outputs=self.outputs,
            ways=self.ways,
            autocast=SAME,
            expression=expression,
        )

    def reference(self, name: str, doc: str) -> Callable[..., Any]:
        """Return the expression in torch; ``reference.source`` is its text."""
        text = source(self.expression, name, doc)
        return reference.function(name, text, promoted=self.promoted)

    def check(self, *args: Any) -> None:
        """Raise unless the operator is defined for the arguments."""
        given = dict(zip(self.expression.tensors, args, strict=False))
        for name, tensor in given.items():
            require_tensor(tensor, name, floating=False)
            if (tensor.dtype is torch.bool) != (name in self.masks) or tensor.dtype.is_complex:
                wanted = "dtype bool, since it is a condition" if name in self.masks else "a real dtype"
                raise InvalidInputError(f"{name} must have {wanted}, got {tensor.dtype}", argument=name)
        device = _device(given.values())
        for name, tensor in given.items():
            if tensor.device != device and not (tensor.device.type == "cpu" and tensor.ndim == 0):
                raise InvalidInputError(f"{name} must be on {device}, got {tensor.device}", argument=name)
        shape = broadcast(given)
        require_numbers(self.expression, args[self.count : -1])
        if args[-1] is not None:
            self._check_out(args[-1], tuple(given.values()), shape, device)

    def _check_out(
        self, out: Any, tensors: tuple[Any, ...], shape: tuple[int, ...], device: torch.device
    ) -> None:
        require_tensor(out, "out", floating=False)
        dtype = self.dtype(tensors)
        if out.is_inference() and not torch.is_inference_mode_enabled():
            why = "out must not be an inference tensor outside torch.inference_mode()"
            raise InvalidInputError(why, argument="out")
        if tuple(out.shape) != shape:
            raise InvalidInputError(f"out must have shape {shape}, got {tuple(out.shape)}", argument="out")
        if not torch.can_cast(dtype, out.dtype):
            why = f"out must have a dtype that {dtype} casts to, got {out.dtype}"
            raise InvalidInputError(why, argument="out")
        if out.device != device:
            raise InvalidInputError(f"out must be on {device}, got {out.device}", argument="out")
        if torch.is_grad_enabled() and any(t.requires_grad for t in (*tensors, out)):
            raise InvalidInputError("out can't be differentiated; leave it out or use torch.no_grad()")

    def dtype(self, tensors: tuple[Any, ...]) -> torch.dtype:
        """Return the result's dtype."""
        return self.promoted(*(fact for t in tensors for fact in (t.dtype, t.ndim)))

    def outputs(self, *args: Any) -> TensorMeta | None:
        """Describe the result, where that is plain without running torch."""
        tensors = args[: self.count]
        if any(t.device != tensors[0].device for t in tensors):
            return None
        return laid_out(tensors, self.dtype(tensors))

    def cost(self, *args: Any) -> Cost:
        """Count every tensor read once, the result written once."""
        tensors, out = args[: self.count], args[-1]
        total = elements(broadcast(dict(zip(self.expression.tensors, tensors, strict=True))))
        size = (self.dtype(tensors) if out is None else out.dtype).itemsize
        read = sum(t.nbytes for t in tensors)
        return Cost(bytes=read + total * size, flops=total * self.expression.operations)

    def magnitude(self, *args: Any) -> Tensor:
        """Return the scale of rounding errors, followed through the tree."""
        found: Tensor = self.scales(*args[:-1])[0]
        return found

    def ways(self, *args: Any) -> tuple[Way, ...]:
        """Divide along any dimension of the result; all parts take a tensor broadcast along it whole."""
        tensors = args[: self.count]
        if args[-1] is not None:
            return ()
        shape = broadcast(dict(zip(self.expression.tensors, tensors, strict=True)))

        def cut(t: Any, size: int, d: int) -> int | None:
            return t.ndim + d if t.ndim + d >= 0 and t.shape[d] == size else None

        from_right = ((size, d - len(shape)) for d, size in enumerate(shape) if size != 1)
        return tuple(Way(tuple(cut(t, n, d) for t in tensors), len(shape) + d) for n, d in from_right)


def _device(tensors: Any) -> torch.device:
    devices: list[torch.device] = [t.device for t in tensors]
    return next((d for d in devices if d.type != "cpu"), devices[0])


def source(expression: Expression, name: str, doc: str = "") -> str:
    """Return the text of the reference: torch's own functions, in float32 for half types."""
    tensors, masks = expression.tensors, expression.masks
    plain = [t for t in tensors if t not in masks]
    numbers = [f"{n}: float = {reference.literal(default)}" for n, default in expression.numbers]
    given = [f"{t}: Tensor" for t in tensors]
    facts = ", ".join(f"{t}.dtype, {t}.ndim" for t in tensors)
    lines, (result,) = reference.body(expression)
    if follows_inputs(expression):
        known = [
            f"    dtype = {plain[0]}.dtype",
            f"    if {' or '.join(f'{t}.dtype is not torch.float32' for t in plain)}:",
            f"        dtype = promoted({facts})",
        ]
    else:
        known = ["    if True:", f"        dtype = promoted({facts})"]
    widen = [f"        {', '.join(plain)}, = widened({', '.join(plain)})"] if plain else []
    # Torch rounds a single function's result once by itself; under autocast it may leave it in float32.
    alone = expression.operations == 1 and follows_inputs(expression)
    return "\n".join(
        [
            f"def {name}({', '.join([*given, *numbers])}, out: Tensor | None = None) -> Tensor:",
            f"    {documented(expression, doc)!r}",
            *known,
            *([] if alone else widen),
            *lines,
            "    if out is None:" if alone else f"    if out is None and {result}.dtype is dtype:",
            f"        return {result}",
            f"    return stored({result}, dtype, out)",
            "",
        ]
    )


def documented(expression: Expression, doc: str = "", torchs: str = "") -> str:
    """Return the docstring of an expression's operator, which may be the same as something of torch's."""
    if doc:
        return doc
    tensors = "".join(f"{name} : Tensor\n" for name in expression.tensors)
    numbers = "".join(f"{name} : number, default {default}\n" for name, default in expression.numbers)
    same = f" The same as\n``{torchs}``." if torchs else ""
    return (
        f"Return ``{expression}``, broadcast and promoted as torch does.{same}\n\n"
        f"Half types are computed in float32, and rounded once.\n\n"
        f"Parameters\n----------\n{tensors}{numbers}out : Tensor, optional\n"
        f"    The tensor to write and return.\n\n"
        f"Returns\n-------\nTensor\n"
    )
