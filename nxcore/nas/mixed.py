"""Mixed operations: all operations of a search space on one edge, blended by architecture weights."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from nxcore.errors import InvalidInputError
from nxcore.nas.operations import OPS, PRIMITIVES
from nxcore.nas.rule import Mode, Rule, as_rule, read


class Blend(nn.Module):
    """The weighted sum of the operations of one edge. Module names are those of the paper's code.

    Parameters
    ----------
    C : int
        Channels of input and output.
    stride : int
        1, or 2 on the edges that leave a reduction cell's inputs.
    primitives : sequence of str
        Names in ``OPS``.

    Raises
    ------
    InvalidInputError
        If a primitive is unknown.
    """

    def __init__(self, C: int, stride: int, primitives: Sequence[str] = PRIMITIVES) -> None:
        super().__init__()
        self._ops = nn.ModuleList(_operation(name, C, stride) for name in primitives)

    def forward(self, x: Tensor, weights: Tensor, active: Sequence[int] | None = None) -> Tensor:
        """Return the sum of all operations, or of the active ones; ``weights`` has one for each operation."""
        run = range(len(self._ops)) if active is None else active
        summed: Any = sum(weights[i] * self._ops[i](x) for i in run)
        return summed  # type: ignore[no-any-return]  # at least one runs


class MixedOp(Blend):
    """Blend the operations of one edge: sum_i w_i op_i(x), w = softmax(logits).

    Parameters
    ----------
    C : int
        Channels of input and output.
    stride : int
        1, or 2 on the edges that leave a reduction cell's inputs.
    primitives : sequence of str
        Names in ``OPS``; the paper's eight by default.
    mode : {"exact", "threshold", "top_k", "sampled", "argmax"} or Rule
        ``exact`` is the paper's; the others approximate it, with the bias that ``nxcore.nas.Rule``
        describes. A ``Rule`` carries the options of its mode.
    k : int
        The number of operations in mode ``top_k``, where the mode is a name.

    Raises
    ------
    InvalidInputError
        If a primitive or the mode is unknown, or k is not from 1 to the number of operations.

    References
    ----------
    Liu, Simonyan, Yang 2019, arXiv:1806.09055, eq. 2.

    Examples
    --------
    >>> mixed = nas.MixedOp(4, 1, ["none", "skip_connect"])
    >>> mixed(torch.ones(1, 4, 2, 2), torch.zeros(2)).unique()
    tensor([0.5000])
    """

    def __init__(
        self,
        C: int,
        stride: int,
        primitives: Sequence[str] = PRIMITIVES,
        mode: Mode | Rule = "exact",
        k: int = 2,
    ) -> None:
        super().__init__(C, stride, primitives)
        self.rule, self.primitives = as_rule(mode, k), tuple(primitives)
        if self.rule.mode == "top_k" and self.rule.k > len(primitives):
            raise InvalidInputError(f"k must be 1 to {len(primitives)}, got {self.rule.k}", argument="k")

    @property
    def mode(self) -> Mode:
        """The rule's mode."""
        return self.rule.mode

    @property
    def candidates(self) -> tuple[nn.Module, ...]:
        """The operations, in the order of their weights."""
        return tuple(self._ops)

    def forward(  # type: ignore[override]  # it takes logits too
        self,
        x: Tensor,
        logits: Tensor | None = None,
        *,
        weights: Tensor | None = None,
        active: Sequence[int] | None = None,
    ) -> Tensor:
        """Return the blend.

        Parameters
        ----------
        x : Tensor
            Shape (N, C, H, W).
        logits : Tensor, optional
            Shape (operations,): before softmax.
        weights : Tensor, optional
            Shape (operations,): the factors after softmax. Exactly one of the two is given.
        active : sequence of int, optional
            The operations that run in modes other than ``exact``. Without it, ``top_k``, ``argmax`` and
            ``sampled`` wait for the device; ``threshold``, and ``sampled`` with weights, run all operations.

        Returns
        -------
        Tensor
            Shape (N, C, H', W').

        Raises
        ------
        InvalidInputError
            If neither or both of ``logits`` and ``weights`` are given, if their shape is wrong, or if
            ``active`` comes with logits in mode ``sampled``, which draws.
        """
        given = _factors(logits, weights, len(self._ops))
        if self.rule.mode == "exact":
            return super().forward(x, torch.softmax(given, 0) if weights is None else given)
        return super().forward(x, *self._chosen(given, is_logits=weights is None, active=active))

    def _chosen(
        self, given: Tensor, *, is_logits: bool, active: Sequence[int] | None
    ) -> tuple[Tensor, Sequence[int] | None]:
        """Return the factors of all operations, and the operations that run; None for all."""
        rule = self.rule
        if is_logits and active is None:
            plan = rule.plan(given[None], self.primitives)
            return plan.weights[0], plan.active[0]
        if is_logits:
            if rule.mode == "sampled":
                raise InvalidInputError(
                    "active needs weights in mode 'sampled', which draws for logits",
                    argument="active",
                )
            kept = torch.zeros_like(given, dtype=torch.bool)
            for i in active or ():
                kept[i] = True
            given = rule.factors(given, kept)
        if active is None and rule.mode not in ("threshold", "sampled"):
            active = read(rule.keep(given[None], self.primitives))[0]
        if rule.mode == "argmax":
            given = torch.ones_like(given)  # the strongest as it is
        return given, active

    def extra_repr(self) -> str:
        """Return the mode and its option."""
        option = {"top_k": f", k={self.rule.k}", "sampled": f", estimator={self.rule.estimator!r}"}
        return f"mode={self.rule.mode!r}" + option.get(self.rule.mode, "")


def _factors(logits: Tensor | None, weights: Tensor | None, count: int) -> Tensor:
    """Return the one that is given; raise unless exactly one is, of the shape (count,)."""
    given = logits if weights is None else weights
    if given is None or (logits is not None and weights is not None):
        raise InvalidInputError(
            "exactly one of logits (before softmax) and weights (after it) must be given, got "
            f"{'neither' if given is None else 'both'}",
            argument="logits",
        )
    if tuple(given.shape) != (count,):
        name = "logits" if weights is None else "weights"
        raise InvalidInputError(
            f"{name} must be ({count},), one for each operation, got {tuple(given.shape)}",
            argument=name,
        )
    return given


def _operation(name: str, C: int, stride: int) -> nn.Module:
    if name not in OPS:
        raise InvalidInputError(
            f"primitives must be among {', '.join(OPS)}, got {name!r}", argument="primitives"
        )
    op = OPS[name](C, stride, False)
    return nn.Sequential(op, nn.BatchNorm2d(C, affine=False)) if "pool" in name else op
