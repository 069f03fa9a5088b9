"""MixedOp: all operations of a search space on one edge, blended by architecture weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from nxcore import session
from nxcore.errors import InvalidInputError
from nxcore.graphs.branches import branched
from nxcore.nas.blend import edge_of, joining, own_ends
from nxcore.nas.group import outputs as grouped
from nxcore.nas.node import summed
from nxcore.nas.operations import OPS, PRIMITIVES
from nxcore.nas.rule import Mode, Rule, as_rule, read
from nxcore.nn import BatchNorm2d, Part

PART = "_nxcore_part"
"""The attribute that holds the ``Part`` of a module."""


class MixedOp(nn.Module):
    """Blend the operations of one edge: sum_i w_i op_i(x), w = softmax(logits).

    On a CUDA device, with logits and in mode ``exact``, training replays two CUDA graphs after a dozen calls
    of a signature (``nxcore.nn.Part``). Within a ``Cell``, the whole cell is replayed.

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
    Liu, Simonyan, Yang 2019, arXiv:1806.09055, eq. 2. Module names are those of the paper's code.

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
        super().__init__()
        self.rule = as_rule(mode, k)
        if self.rule.mode == "top_k" and self.rule.k > len(primitives):
            raise InvalidInputError(f"k must be 1 to {len(primitives)}, got {self.rule.k}", argument="k")
        self.primitives = tuple(primitives)
        self._ops = nn.ModuleList(_candidate(name, C, stride) for name in primitives)
        setattr(self, PART, Part(_exact))

    @property
    def mode(self) -> Mode:
        """The rule's mode."""
        return self.rule.mode

    @property
    def candidates(self) -> tuple[nn.Module, ...]:
        """The operations, in the order of their weights."""
        return tuple(self._ops)

    def forward(
        self,
        x: Tensor,
        logits: Tensor | None = None,
        *,
        weights: Tensor | None = None,
        active: Sequence[int] | None = None,
        outputs: Mapping[int, Tensor] | None = None,
        zeros: bool = True,
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
            The operations that run in modes other than ``exact``; a network reads them for all edges at once.
            Without it, ``top_k``, ``argmax`` and ``sampled`` wait for the device; ``threshold``, and
            ``sampled`` with weights, run all operations.
        outputs : mapping of int to Tensor, optional
            Outputs of operations that were computed before: a cell's shared pools.
        zeros : bool
            False where ``weights`` lack the entry of a first ``none``, which isn't run: it adds zeros.

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
        every = tuple(range(0 if zeros else 1, len(self._ops)))
        given = _factors(logits, weights, len(every))
        part: Part | None = None if torch.compiler.is_compiling() else vars(self).get(PART)
        if part is not None and self.rule.mode == "exact" and weights is None and outputs is None:
            replayed: Tensor = part(self, x, given)
            return replayed
        if self.rule.mode == "exact":
            name, chosen = "softmax_sum" if weights is None else "weighted_sum", every
        else:
            name = "weighted_sum"
            given, chosen = self._chosen(given, is_logits=weights is None, active=active)
        known = outputs or {}
        if name == "weighted_sum" and chosen == every and joining([self]):
            held = [known.get(i) for i in every]
            ops = [self._ops[i] for i in every]
            return summed(edge_of(self, ops, held, x, given, own_ends(ops)))
        computed = self._outputs(chosen, known, x)
        if self.rule.mode == "argmax":
            return computed[0]
        if chosen != every:
            # Not by index: a list of numbers would be copied to the device, with a wait.
            given = torch.stack([given[i] for i in chosen])
        blended: Tensor = session.default().op(name)(computed, given)
        return blended

    def _outputs(self, chosen: Sequence[int], known: Mapping[int, Tensor], x: Tensor) -> list[Tensor]:
        """Return the outputs of the chosen operations; those that aren't known are computed."""
        run = [i for i in chosen if i not in known]
        made = grouped([self._ops[i] for i in run], x)
        known = {**known, **{i: made[self._ops[i]].out for i in run if self._ops[i] in made}}
        rest = iter(branched([self._ops[i] for i in run if i not in known], x, read=bool(made)))
        return [known[i] if i in known else next(rest) for i in chosen]

    def _chosen(
        self, given: Tensor, *, is_logits: bool, active: Sequence[int] | None
    ) -> tuple[Tensor, tuple[int, ...]]:
        """Return the factors of all operations, and the operations that run."""
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
        if active is not None:
            return given, tuple(active)
        if rule.mode in ("threshold", "sampled"):
            return given, tuple(range(len(self._ops)))
        return given, read(rule.keep(given[None], self.primitives))[0]

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


def _exact(mixed: MixedOp, x: Tensor, logits: Tensor) -> Tensor:
    return MixedOp.forward(mixed, x, logits, outputs={})  # as in a cell's call: run, not replayed


def _candidate(name: str, C: int, stride: int) -> nn.Module:
    if name not in OPS:
        raise InvalidInputError(
            f"primitives must be among {', '.join(OPS)}, got {name!r}", argument="primitives"
        )
    op = OPS[name](C, stride, False)
    return nn.Sequential(op, BatchNorm2d(C, affine=False)) if "pool" in name else op
