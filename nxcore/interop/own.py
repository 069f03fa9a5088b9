"""Own: torch's own function that does all of what a reference does, for calls that torch serves.

The extension calls it as the caller wrote the call, so that such a call costs torch's own and a look-up. Its
first arguments by position are the operator's, and those that it takes by name have the operator's names and
defaults. A call in another form runs the reference, which does the same at the cost of a Python function.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from nxcore import ops
from nxcore.expression import reference
from nxcore.expression.promotion import follows_inputs
from nxcore.expression.tree import Expression
from nxcore.interop.internals import nn
from nxcore.spec.spec import OpSpec

SAME, TUPLE, DENSE = "std"
"""Forms of a result: torch's own; a tuple, in place of torch's class of tuples; or a tensor that is dense in
the memory format of the first argument, as by ``nxcore.spec.window.dense``."""


class Own(NamedTuple):
    """A function of torch, how many arguments it takes by position, and the names of those by name.

    ``form`` says what becomes of its result. If ``single``, it is for float32 alone, beside tensors of bool.
    """

    function: Callable[..., Any]
    most: int
    names: tuple[str, ...] = ()
    form: str = SAME
    single: bool = False


def _of_axes(function: Callable[..., Any], form: str = SAME) -> Own:
    return Own(function, 3, ("dim", "keepdim"), form)


@functools.cache
def _of_references() -> dict[Callable[..., Any], Own]:
    """Return torch's function of each operator of this package whose reference is one call."""
    window = ("kernel_size", "stride", "padding", "ceil_mode")
    found = {
        "add": Own(torch.add, 2, ("alpha",)),
        "all": _of_axes(torch.all),
        "amax": _of_axes(torch.amax),
        "amin": _of_axes(torch.amin),
        "any": _of_axes(torch.any),
        "argmax": _of_axes(torch.argmax),
        "argmin": _of_axes(torch.argmin),
        "avg_pool2d": Own(nn.avg_pool2d, 7, (*window, "count_include_pad", "divisor_override")),
        "conv2d": Own(torch.conv2d, 7, ("bias", "stride", "padding", "dilation", "groups"), DENSE),
        "global_avg_pool2d": Own(functools.partial(nn.adaptive_avg_pool2d, output_size=1), 1),
        "global_max_pool2d": Own(lambda x: nn.adaptive_max_pool2d(x, 1)[0], 1),
        "matmul": Own(torch.matmul, 2),  # in the class of precision that is in force
        "max": _of_axes(torch.max, TUPLE),
        "max_pool2d": Own(torch.max_pool2d, 4, window),
        "mean": _of_axes(torch.mean),
        "min": _of_axes(torch.min, TUPLE),
        "sum": _of_axes(torch.sum),
        "sum_to_size": Own(torch.Tensor.sum_to_size, 2),
        "sum_to_size_backward": Own(torch.Tensor.expand, 2),
    }
    return {spec.reference: found[spec.name] for spec in ops.nxcore_ops() if spec.name in found}


def _usual(op: str) -> tuple[tuple[str, float], ...]:
    """Return torch's numbers of a function, with their defaults; those that are given cost it 0.3 us."""
    usual = {"elu": {"alpha": 1.0}, "leaky_relu": {"negative_slope": 0.01}}
    usual["softplus"] = {"beta": 1.0, "threshold": 20.0}
    return tuple(usual.get(op, {}).items())


def own_of(spec: OpSpec) -> Own | None:
    """Return torch's own function for a spec; None where its reference is more than one call.

    An expression in float32 is what its text says, without the reference's tests of dtypes.

    >>> own_of(nxcore.ops.add.spec).function is torch.add
    True
    """
    if spec.expression is None:
        return _of_references().get(spec.reference)
    if not isinstance(spec.expression, Expression) or not follows_inputs(spec.expression):
        return None
    return _of_expression(spec.expression, sum(not p.keyword for p in spec.params))


def _of_expression(expression: Expression, most: int) -> Own:
    (root,), tensors = expression.roots, expression.tensors
    names = [*tensors, *(name for name, _ in expression.numbers)]
    template = reference.TEMPLATES.get(root.op, "")
    module, _, name = template.partition("(")[0].rpartition(".")
    called = f"{module}.{name}({', '.join(f'{{{i}}}' for i in range(len(names)))})"
    usual = expression.numbers == _usual(root.op)
    if usual and template == called and [arg.value for arg in root.args] == names:
        found = getattr({"torch": torch, "functional": nn}[module], name)
        return Own(found, most, tuple(names[len(tensors) :]))
    lines, (result,) = reference.body(expression)
    numbers = [f"{name}={reference.literal(default)}" for name, default in expression.numbers]
    text = [f"def own({', '.join([*tensors, *numbers])}):", *lines, f"    return {result}\n"]
    function = reference.function("own", "\n".join(text).replace("functional.", "_nn."), _nn=nn)
    return Own(function, most, tuple(names[len(tensors) :]), single=True)
