"""Activations and gates: torch's functions as expressions, with torch's names of arguments.

Each is a line here, and nothing else: an operator is made of it when it is first requested.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from nxcore.expression.grammar import parsed
from nxcore.expression.operator import documented, specs
from nxcore.expression.tree import Expression
from nxcore.spec.spec import SAME, Cast, OpSpec, Selector


@dataclass(frozen=True)
class Activation:
    """One function of torch, or a gate.

    Attributes
    ----------
    text : str
        Its expression.
    torchs : str
        What it is in torch, for its docstring.
    numbers : Mapping
        The names and defaults of its numbers, which may be given by position.
    autocast : Mapping
        What ``torch.autocast`` does to it; see ``OpSpec``.
    selector : Selector, optional
        Torch's argument that names another of these.
    """

    text: str
    torchs: str
    numbers: Mapping[str, int | float] = field(default_factory=dict)
    autocast: Mapping[str, Cast] = field(default_factory=lambda: SAME)
    selector: Selector | None = None

    @property
    def expression(self) -> Expression:
        """The tree.

        >>> str(ACTIVATIONS["silu_mul"].expression)
        'silu(x) * y'
        """
        return parsed(self.text, self.numbers)

    def specs(self, name: str) -> tuple[OpSpec, ...]:
        """Return the specs of the operator, and of its backward operator."""
        doc = documented(self.expression, torchs=self.torchs)
        forward, *backward = specs(self.expression, name, doc, keyword=False)
        return replace(forward, autocast=self.autocast, selector=self.selector), *backward


def _function(name: str, autocast: Mapping[str, Cast] = SAME, **numbers: float) -> Activation:
    given = ", ".join(["x", *numbers])
    return Activation(f"{name}({given})", f"torch.nn.functional.{name}", numbers, autocast)


APPROXIMATE = Selector("approximate", {"none": "gelu", "tanh": "gelu_tanh"})

ACTIVATIONS = {
    "relu": _function("relu"),
    "leaky_relu": _function("leaky_relu", negative_slope=0.01),
    "elu": _function("elu", alpha=1.0),
    "gelu": replace(_function("gelu"), selector=APPROXIMATE),
    "gelu_tanh": Activation("gelu_tanh(x)", 'torch.nn.functional.gelu(x, approximate="tanh")'),
    "silu": _function("silu"),
    "mish": _function("mish"),
    "hardswish": _function("hardswish"),
    "hardsigmoid": _function("hardsigmoid"),
    "sigmoid": Activation("sigmoid(x)", "torch.sigmoid"),
    "tanh": Activation("tanh(x)", "torch.tanh"),
    "softplus": _function("softplus", {"cpu": "same", "cuda": "float32"}, beta=1.0, threshold=20.0),
    "silu_mul": Activation("silu(x) * y", "torch.nn.functional.silu(x) * y"),
    "gelu_mul": Activation("gelu(x) * y", "torch.nn.functional.gelu(x) * y"),
}
"""Every activation and gate by its operator's name."""
