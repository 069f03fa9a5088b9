"""Rule: selects the operations that run on each edge, and their factors, for all edges at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from nxcore import session
from nxcore.errors import InvalidInputError

Mode = Literal["exact", "threshold", "top_k", "sampled", "argmax"]
Estimator = Literal["gdas", "proxyless"]


class Selection(NamedTuple):
    """The operations that run on each edge.

    Attributes
    ----------
    weights : Tensor
        Shape (edges, operations): the factors; only those of active operations are used.
    active : tuple of tuple of int
        The operations that run, one tuple for each edge; on the host.
    kept : Tensor
        The same as booleans of the shape of ``weights``; on the device.
    """

    weights: Tensor
    active: tuple[tuple[int, ...], ...]
    kept: Tensor

    def rows(self, which: slice) -> Selection:
        """Return the selection of some of the edges."""
        return Selection(self.weights[which], self.active[which], self.kept[which])


@dataclass(frozen=True, eq=False)
class Rule:
    """How a mixed operation blends; p is the softmax of an edge's logits, o_i the output of operation i.

    Parameters
    ----------
    mode : {"exact", "threshold", "top_k", "sampled", "argmax"}
        ``exact``: sum_i p_i o_i, as in the paper. The other modes have a bias:

        ``threshold``: the same sum without the operations that are off. An operation is off once p_i falls
        below ``low``, until it rises above ``high``; the strongest always runs. Bias: the output lacks the
        terms p_i o_i that are off, so the loss jumps at a decision. The gradient of a logit that is off lacks
        its own term p_i <g, o_i> and keeps that of the normaliser, so the operation can come back.

        ``top_k``: only the k strongest, with the softmax over those. Bias: the output is scaled by
        1 / sum of their p, and the other logits get no gradient, so dropped operations do not come back by
        themselves. With k = 1 the output is p_i o_i, since a softmax over one value has no gradient.

        ``sampled``: operations drawn for each call, by ``estimator``.

        ``argmax``: the strongest operation except ``none``, unweighted, for inference. Bias: the output's
        scale.
    k : int
        The number of operations in mode ``top_k``.
    low, high : float
        Mode ``threshold``: the weights below which an operation is switched off, and above which on again.
    estimator : {"gdas", "proxyless"}
        The drawn operation's output is not weighted, so the gradients of the operations' weights are those of
        a network of drawn operations, not of the blend. Below, g is the gradient of a loss that is linear in
        the output; another loss adds the bias of evaluating g at the drawn output.

        ``gdas`` (Dong, Yang 2019, arXiv:1910.04465): one operation runs, drawn with Gumbel noise. Its factor
        is 1, with the gradient of its entry in softmax((logits + noise) / tau): straight-through, to all
        logits. E[output] is that of ``exact``. Bias: at no tau is the gradient that of the expected loss; it
        vanishes with 1 / tau, and its variance grows as tau falls.

        ``proxyless`` (Cai, Zhu, Han 2019, arXiv:1812.00332): two operations are drawn without replacement,
        then one of them by the softmax over the two. Both run; the factor of the drawn one is 1, that of the
        other 0, with the gradient of that softmax. Bias: the expectation scales each pair's term
        p_i p_j (<g, o_i> - <g, o_j>) of the exact gradient by P(pair) / (p_i + p_j)^2, which is
        n / (2 (n - 1)) for n equal weights and 1 for two operations. The output's operation follows p only
        for equal p or two operations. The paper's rescaling after the optimizer's step is omitted. Where
        logits need no gradient, one operation runs, drawn with p, as in the paper's steps for the weights.
    tau : float or Tensor
        The temperature of ``gdas``, above 0. A 0-d tensor may change between calls.
    generator : torch.Generator, optional
        The generator of the draws, on the logits' device. Ranks that train one network need equal ones, to
        run the same operations.

    Raises
    ------
    InvalidInputError
        If ``mode`` or ``estimator`` is unknown, ``k`` is below 1, ``tau`` is a number not above 0, or
        0 <= low <= high <= 1 does not hold.

    Examples
    --------
    >>> nas.Rule("top_k", k=1).keep(torch.tensor([0.0, 2.0, 1.0]), ["a", "b", "c"])
    tensor([False,  True, False])
    """

    mode: Mode = "exact"
    k: int = 2
    low: float = 0.01
    high: float = 0.02
    estimator: Estimator = "gdas"
    tau: float | Tensor = 1.0
    generator: torch.Generator | None = None

    def __post_init__(self) -> None:
        for name, known in (("mode", get_args(Mode)), ("estimator", get_args(Estimator))):
            if (got := getattr(self, name)) not in known:
                raise InvalidInputError(
                    f"{name} must be one of {', '.join(known)}, got {got!r}", argument=name
                )
        if self.k < 1:
            raise InvalidInputError(f"k must be at least 1, got {self.k}", argument="k")
        if not 0 <= self.low <= self.high <= 1:
            raise InvalidInputError(
                f"low and high must satisfy 0 <= low <= high <= 1, got {self.low} and {self.high}",
                argument="low",
            )
        above_zero(self.tau)

    @property
    def decides(self) -> bool:
        """Whether the selection can be decided once for many calls."""
        return self.mode in ("threshold", "top_k", "argmax")

    def keep(self, logits: Tensor, primitives: Sequence[str], before: Tensor | None = None) -> Tensor:
        """Return which operations run by ``threshold``, ``top_k`` or ``argmax``.

        Parameters
        ----------
        logits : Tensor
            Shape (..., operations).
        primitives : sequence of str
            The operations' names.
        before : Tensor, optional
            The last result, for mode ``threshold``; without it, all operations ran.

        Returns
        -------
        Tensor
            Booleans of the shape of ``logits``, on its device.
        """
        scores = logits.detach()
        if self.mode == "threshold":
            p = torch.softmax(scores, -1)
            kept = p >= self.low
            kept = kept if before is None else torch.where(before, kept, p >= self.high)
            return kept | _places(p.argmax(-1, keepdim=True), scores)
        if self.mode == "top_k":
            return _places(scores.argsort(stable=True, dim=-1, descending=True)[..., : self.k], scores)
        if "none" in primitives:
            scores = scores.clone()
            scores[..., primitives.index("none")] = -torch.inf
        return _places(scores.argmax(-1, keepdim=True), scores)

    def factors(self, logits: Tensor, kept: Tensor) -> Tensor:
        """Return the factors of the kept operations; both tensors of shape (..., operations)."""
        if self.mode == "argmax":
            return kept.to(logits.dtype)
        if self.mode == "top_k" and self.k > 1:
            logits = logits.masked_fill(~kept, -torch.inf)
        return torch.softmax(logits, -1)

    def draw(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Return factors and running operations, drawn by the estimator, in the shape of ``logits``."""
        if self.estimator == "gdas":
            drawn = session.default().op("gumbel_softmax")(logits, self.tau, True, generator=self.generator)
            return drawn, _places(drawn.argmax(-1, keepdim=True), logits)
        noisy = perturbed(logits, self.generator)
        if not (logits.requires_grad and torch.is_grad_enabled()):
            kept = _places(noisy.argmax(-1, keepdim=True), logits)
            return kept.to(logits.dtype), kept
        pair = noisy.detach().topk(min(2, logits.shape[-1]), -1).indices
        p = torch.softmax(logits.gather(-1, pair), -1)
        uniform = torch.rand(p[..., :1].shape, generator=self.generator, dtype=p.dtype, device=p.device)
        gates = straight_through(p, (uniform >= p[..., :1]).long())
        return torch.zeros_like(logits).scatter(-1, pair, gates), _places(pair, logits)

    def plan(self, logits: Tensor, primitives: Sequence[str]) -> Selection:
        """Return the selection without an earlier decision, for logits of shape (edges, operations).

        The modes ``sampled``, ``top_k`` and ``argmax`` wait for the device, once for all edges.
        """
        if self.mode == "sampled":
            weights, kept = self.draw(logits)
            return Selection(weights, read(kept), kept)
        if self.mode in ("exact", "threshold"):
            edges, operations = logits.shape
            every = (tuple(range(operations)),) * edges
            return Selection(torch.softmax(logits, -1), every, torch.ones_like(logits, dtype=torch.bool))
        kept = self.keep(logits, primitives)
        return Selection(self.factors(logits, kept), read(kept), kept)


def as_rule(mode: Mode | Rule, k: int = 2) -> Rule:
    """Return a rule for the name of a mode, or the rule itself."""
    return mode if isinstance(mode, Rule) else Rule(mode, k)


def read(kept: Tensor) -> tuple[tuple[int, ...], ...]:
    """Return the indices of true values in each row of (edges, operations); reads the device once."""
    return tuple(tuple(i for i, on in enumerate(row) if on) for row in kept.tolist())


def perturbed(logits: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Return the logits plus Gumbel noise, in float32 or wider."""
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    # -log of an exponential variate is a Gumbel variate; it takes no logarithm of a value rounded to 0.
    return wide - torch.empty_like(wide).exponential_(generator=generator).log()


def straight_through(soft: Tensor, index: Tensor) -> Tensor:
    """Return 1 at ``index`` of the last axis and 0 elsewhere, with the gradient of ``soft``."""
    return torch.zeros_like(soft).scatter(-1, index, 1.0) + (soft - soft.detach())


def above_zero(tau: float | Tensor) -> None:
    """Raise if the temperature is a number not above 0; a tensor is not read."""
    if not isinstance(tau, Tensor) and not tau > 0:
        raise InvalidInputError(f"tau must be above 0, got {tau}", argument="tau")


def _places(index: Tensor, like: Tensor) -> Tensor:
    return torch.zeros_like(like, dtype=torch.bool).scatter(-1, index, True)
