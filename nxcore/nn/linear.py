"""Linear: torch's own layer, by a kernel of ``matmul`` where that gains more than adding the bias takes.

Torch adds the bias within its product. A kernel doesn't: ``add`` does, in a launch of its own, which the
race of the product doesn't count. So the figures of both are compared, and the layer rests where they don't
pay.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from nxcore import session
from nxcore.call.gradient_route import gain_us
from nxcore.call.unusual import PLAIN
from nxcore.choose.explanation import Explanation
from nxcore.context import PREFERENCE, Preference
from nxcore.measure.timing import duration
from nxcore.nn.served import AFTER, SERVED, Served, by_kernel, left, rest, with_rest

DEVICES = frozenset({"cuda"})
"""Where kernels may win: on a CPU, torch calls its vendor's library."""

HOST_US, SUM_US = 5.5, 2.5
"""The host's time for a call of the layer, and for the operator that adds its bias, which no race counts.

Beyond that of the bare kernels, on one core of an AMD EPYC with torch 2.13, without the compiled call path:
1.9 and 7.4 us without a bias, 3.7 and 11.3 us with one, medians of 30 turns of 2,000 calls, twice.
"""

REQUESTED = ("pinned", "preferred", "locked")
"""Rules of choices that hold whatever was measured."""

_add = session.default().op("add")
_matmul = session.default().op("matmul")


@with_rest
class Linear(nn.Linear, Served):
    """``torch.nn.Linear``; the operator ``matmul`` computes the product, ``add`` adds the bias.

    Torch's own ``forward`` runs on a CPU, in other dtypes than float32, in a compiler's graph, and where the
    kernels of both don't pay.

    >>> nxcore.nn.Linear(3, 2).reason
    'on a CPU torch computes products by its own library'
    """

    @staticmethod
    def refusal(module: Any) -> str:
        """Return why torch's own ``forward`` must run for ``module``; empty if the operator can."""
        weight = module._parameters.get("weight")  # noqa: SLF001  an attribute may be what a hook computed
        if type(weight) is not nn.Parameter:
            return "its weight is no plain parameter"
        if (kind := weight.device.type) not in DEVICES:
            where = "a CPU" if kind == "cpu" else f"the device {kind!r}"
            return f"on {where} torch computes products by its own library"
        return "" if weight.dtype is torch.float32 else f"torch computes products of {weight.dtype}"

    def forward(self, input: Tensor) -> Any:
        """Return ``input @ weight.T + bias``."""
        # Parametrizations may change whenever a weight is read, and a compiler fuses the sum.
        if self._modules or torch.compiler.is_compiling():
            return nn.Linear.forward(self, input)
        bias = self.bias
        if (
            type(input) not in PLAIN
            or (bias is not None and bias.dtype is not input.dtype)
            or Linear.refusal(self)
        ):
            left(self)
            return nn.Linear.forward(self, input)
        given = (input, self.weight.mT, None)
        out: Any = by_kernel(self, _matmul, *given)
        if out is None:
            return nn.Linear.forward(self, input)
        served = vars(self)[SERVED] = vars(self).get(SERVED, 0) + 1
        if served >= AFTER and not served & (served - 1):  # ever more rarely
            _look(self, given, out)
        # Under autocast, the result may have another dtype than the arguments.
        return out if bias is None else _add(out, bias.to(out.dtype))


def _look(layer: Linear, given: tuple[Any, ...], out: Tensor) -> None:
    """Let the layer rest if calls like this one don't pay."""
    if PREFERENCE.get() != Preference():
        return  # which ends with its block
    found = session.default()
    product = found.explain("matmul", *given[:2], decide=False)
    bias = None if layer.bias is None else found.explain("add", out, layer.bias.to(out.dtype), decide=False)
    if why := shortfall(product, bias):
        rest(layer, why)


def shortfall(product: Explanation, bias: Explanation | None) -> str:
    """Return why a kernel's product and a sum don't pay; empty where they do, or nothing is decided yet."""
    rules = {found.decision.rule for found in (product, bias) if found}
    if "exploring" in rules or product.decision.rule in REQUESTED:
        return ""
    host = HOST_US if bias is None else HOST_US + SUM_US
    gain, cost = _gain_us(product, host), 0.0 if bias is None else _cost_us(bias)
    if cost is None:
        return "it rests: no figures say what adding the bias takes"
    if gain > cost:
        return ""
    sums = "" if bias is None else f"adding the bias takes {duration(cost)}, "
    saves = duration(max(gain + host, 0.0))
    return f"it rests: the kernel's product saves {saves}, {sums}the layer's call {duration(host)}"


def _gain_us(found: Explanation, host: float) -> float:
    """Return what a product saves beyond the host's time; with its gradient, if that was measured."""
    if found.pair is None:
        choice = session.default().chooser.known(found.problem)
        return 0.0 if choice is None else gain_us(choice, host)
    timed = {c.label: c.timing.median_us for c in found.pair.candidates if c.timing}
    if found.pair.chosen not in timed or "torch" not in timed:
        return 0.0
    return timed["torch"] - timed[found.pair.chosen] - host


def _cost_us(found: Explanation) -> float | None:
    """Return what a call takes by the kernel that serves it; None if it wasn't timed."""
    timed = {c.label: c.timing.median_us for c in found.decision.candidates if c.timing}
    return timed.get(found.decision.chosen)
