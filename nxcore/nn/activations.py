"""Activations of torch, computed by the operator of the same name where a kernel is faster."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from nxcore import session
from nxcore.call.operator import Operator
from nxcore.errors import InvalidInputError
from nxcore.nn.exchange import AWAKE, kind, kinds
from nxcore.nn.served import LEFT, Served, left, look, with_rest
from nxcore.program.passes.operators import FEWEST

NOT_WON = "torch's is bound by memory, and no kernel is on record as faster"

FUNCTIONS: dict[type[nn.Module], tuple[str, tuple[str, ...]]] = {}
"""Torch's module, and ours -> the operator, and the attributes that are its numbers."""

is_compiling = torch.compiler.is_dynamo_compiling  # looked up once, not in every call


@functools.cache
def operator(name: str) -> Operator:
    """Return the operator, looked up once; it is made when it is first needed."""
    return session.default().op(name)


def won(name: str) -> bool:
    """Return whether a kernel of an operator is on record as faster than torch."""
    return session.default().chooser.recorded.won(name)


class Activation(Served):
    """A module whose ``forward`` is one function of each element."""

    @staticmethod
    def refusal(module: Any) -> str:
        """Return why torch's own ``forward`` must run for ``module``; empty if the operator can."""
        # An attribute that a module lacks costs a microsecond: torch looks for it in every other place first.
        return "it writes into its input" if vars(module).get("inplace") else ""


Class = TypeVar("Class", bound=type[Activation])


def computed_by(name: str, *numbers: str, tanh: str = "") -> Callable[[Class], Class]:
    """Let an operator compute a class's ``forward``.

    Parameters
    ----------
    name : str
        The operator.
    *numbers : str
        The attributes that are its numbers.
    tanh : str
        The operator where the attribute ``approximate`` is ``"tanh"``.
    """

    def decorated(cls: Class) -> Class:
        torchs: Any = cls.__bases__[0]
        theirs: Callable[[Any, Tensor], Tensor] = torchs.forward
        only = numbers[0] if len(numbers) == 1 else ""

        # ``served.by_kernel`` is written out: a call of another function takes a tenth of an operator's.
        def forward(self: Any, input: Tensor) -> Tensor:
            """Return the function of each element."""
            if is_compiling():  # a compiler fuses it with what surrounds it
                return theirs(self, input)
            own = self.__dict__
            if LEFT not in own:  # it was made under this name, and not looked at so far
                look(self)
                own.setdefault(LEFT, 0)  # of a subclass of the user's too, which never rests
                if kind(self) in AWAKE:
                    return theirs(self, input)
            if input.__class__ is not Tensor and (
                not isinstance(input, Tensor) or torch.compiler.is_compiling()  # whose tensors are subclasses
            ):
                return theirs(self, input)
            if input.numel() < FEWEST or own.get("inplace"):
                left(self)
                return theirs(self, input)
            called = operator(tanh if tanh and own["approximate"] == "tanh" else name)
            found: Tensor | None
            try:
                # None and one are written out: a call that unpacks its arguments takes longer.
                if not numbers:
                    found = called.by_kernel(input, None)
                elif only:
                    found = called.by_kernel(input, own.get(only), None)
                else:
                    found = called.by_kernel(input, *map(own.get, numbers), None)
            except InvalidInputError:
                left(self)
                return theirs(self, input)
            if found is None:
                left(self, (called, (input, *map(own.get, numbers), None)))
                return theirs(self, input)
            if own.get(LEFT):
                own[LEFT] = 0
            return found

        cls.forward = forward
        with_rest(cls)
        FUNCTIONS.update(dict.fromkeys(kinds(cls), (name, numbers)))
        return cls

    return decorated


@computed_by("elu", "alpha")
class ELU(nn.ELU, Activation):
    """``torch.nn.ELU``, computed by the operator ``elu`` for 262,144 elements and more.

    >>> nxcore.nn.ELU()(torch.tensor([-1.0, 2.0]))
    tensor([-0.6321,  2.0000])
    """


@computed_by("gelu", tanh="gelu_tanh")
class GELU(nn.GELU, Activation):
    """``torch.nn.GELU``, computed by the operator ``gelu`` or ``gelu_tanh`` for 262,144 elements and more.

    >>> nxcore.nn.GELU()(torch.tensor([-1.0, 2.0]))
    tensor([-0.1587,  1.9545])
    """


@computed_by("hardsigmoid")
class Hardsigmoid(nn.Hardsigmoid, Activation):
    """``torch.nn.Hardsigmoid``, computed by the operator ``hardsigmoid`` for 262,144 elements and more.

    >>> nxcore.nn.Hardsigmoid()(torch.tensor([-1.5, 3.0]))
    tensor([0.2500, 1.0000])
    """


@computed_by("hardswish")
class Hardswish(nn.Hardswish, Activation):
    """``torch.nn.Hardswish``, computed by the operator ``hardswish`` for 262,144 elements and more.

    >>> nxcore.nn.Hardswish()(torch.tensor([-1.5, 3.0]))
    tensor([-0.3750,  3.0000])
    """


@computed_by("leaky_relu", "negative_slope")
class LeakyReLU(nn.LeakyReLU, Activation):
    """``torch.nn.LeakyReLU``, computed by the operator ``leaky_relu`` for 262,144 elements and more.

    >>> nxcore.nn.LeakyReLU(0.5)(torch.tensor([-1.0, 2.0]))
    tensor([-0.5000,  2.0000])
    """


@computed_by("mish")
class Mish(nn.Mish, Activation):
    """``torch.nn.Mish``, computed by the operator ``mish`` for 262,144 elements and more.

    >>> nxcore.nn.Mish()(torch.tensor([-1.0, 2.0]))
    tensor([-0.3034,  1.9440])
    """


@computed_by("relu")
class ReLU(nn.ReLU, Activation):
    """``torch.nn.ReLU``, computed by the operator ``relu`` where a kernel is on record as faster.

    Torch's own moves no byte more than a kernel must. So nothing is learnt about it in a program's calls.

    >>> nxcore.nn.ReLU()(torch.tensor([-1.0, 2.0]))
    tensor([0., 2.])
    """

    @staticmethod
    def refusal(module: Any) -> str:
        """Return why torch's own ``forward`` must run for ``module``; empty if the operator can."""
        if why := Activation.refusal(module):
            return why
        return "" if won("relu") else NOT_WON


@computed_by("sigmoid")
class Sigmoid(nn.Sigmoid, Activation):
    """``torch.nn.Sigmoid``, computed by the operator ``sigmoid`` for 262,144 elements and more.

    >>> nxcore.nn.Sigmoid()(torch.tensor([-1.0, 2.0]))
    tensor([0.2689, 0.8808])
    """


@computed_by("silu")
class SiLU(nn.SiLU, Activation):
    """``torch.nn.SiLU``, computed by the operator ``silu`` for 262,144 elements and more.

    >>> nxcore.nn.SiLU()(torch.tensor([-1.0, 2.0]))
    tensor([-0.2689,  1.7616])
    """


@computed_by("softplus", "beta", "threshold")
class Softplus(nn.Softplus, Activation):
    """``torch.nn.Softplus``, computed by the operator ``softplus`` for 262,144 elements and more.

    >>> nxcore.nn.Softplus(beta=2)(torch.tensor([-1.0, 2.0]))
    tensor([0.0635, 2.0091])
    """


@computed_by("tanh")
class Tanh(nn.Tanh, Activation):
    """``torch.nn.Tanh``, computed by the operator ``tanh`` for 262,144 elements and more.

    >>> nxcore.nn.Tanh()(torch.tensor([-1.0, 2.0]))
    tensor([-0.7616,  0.9640])
    """
