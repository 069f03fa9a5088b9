"""Activations of torch, computed by the operator of the same name where a kernel is faster."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, nn

from nxcore import session
from nxcore.call.operator import Operator
from nxcore.nn.served import Served, with_rest

FEWEST = 1 << 18
"""The fewest elements for an operator: below, its call costs the host what a kernel may save."""


@functools.cache
def operator(name: str) -> Operator:
    """Return the operator, looked up once; it is made when it is first needed."""
    return session.default().op(name)


class Activation(Served):
    """A module whose ``forward`` is one function of each element."""

    @staticmethod
    def refusal(module: Any) -> str:
        """Return why torch's own ``forward`` must run for ``module``; empty if the operator can."""
        # An attribute that a module lacks costs a microsecond: torch looks for it in every other place first.
        return "it writes into its input" if vars(module).get("inplace") else ""

    def activated(self, name: str, input: Any, *numbers: float) -> Any:
        """Return the operator's result; None if torch's ``forward`` must run."""
        if torch.compiler.is_compiling():  # a compiler fuses it with what surrounds it
            return None
        if self.refusal(self) or not isinstance(input, Tensor) or input.numel() < FEWEST:
            self.left()
            return None
        return self.by_kernel(operator(name), input, *numbers, None)


@with_rest
class ELU(nn.ELU, Activation):
    """``torch.nn.ELU``, computed by the operator ``elu`` for 262,144 elements and more.

    >>> nxcore.nn.ELU()(torch.tensor([-1.0, 2.0]))
    tensor([-0.6321,  2.0000])
    """

    def forward(self, input: Tensor) -> Tensor:
        """Return the function of each element."""
        found: Tensor | None = self.activated("elu", input, self.alpha)
        return super().forward(input) if found is None else found


@with_rest
class GELU(nn.GELU, Activation):
    """``torch.nn.GELU``, computed by the operator ``gelu`` or ``gelu_tanh`` for 262,144 elements and more.

    >>> nxcore.nn.GELU()(torch.tensor([-1.0, 2.0]))
    tensor([-0.1587,  1.9545])
    """

    def forward(self, input: Tensor) -> Tensor:
        """Return the function of each element."""
        name = "gelu_tanh" if self.approximate == "tanh" else "gelu"
        found: Tensor | None = self.activated(name, input)
        return super().forward(input) if found is None else found


@with_rest
class Mish(nn.Mish, Activation):
    """``torch.nn.Mish``, computed by the operator ``mish`` for 262,144 elements and more.

    >>> nxcore.nn.Mish()(torch.tensor([-1.0, 2.0]))
    tensor([-0.3034,  1.9440])
    """

    def forward(self, input: Tensor) -> Tensor:
        """Return the function of each element."""
        found: Tensor | None = self.activated("mish", input)
        return super().forward(input) if found is None else found


@with_rest
class SiLU(nn.SiLU, Activation):
    """``torch.nn.SiLU``, computed by the operator ``silu`` for 262,144 elements and more.

    >>> nxcore.nn.SiLU()(torch.tensor([-1.0, 2.0]))
    tensor([-0.2689,  1.7616])
    """

    def forward(self, input: Tensor) -> Tensor:
        """Return the function of each element."""
        found: Tensor | None = self.activated("silu", input)
        return super().forward(input) if found is None else found
