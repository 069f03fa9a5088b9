"""MixedOp: every operation of a search space on one edge, blended by architecture weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from torch import Tensor, nn

import nxcore
from nxcore.errors import InvalidInputError
from nxcore.nas.operations import OPS, PRIMITIVES

Mode = Literal["exact", "top_k", "argmax"]
MODES: tuple[Mode, ...] = ("exact", "top_k", "argmax")


class MixedOp(nn.Module):
    """Blend the operations of one edge: sum_i w_i op_i(x), w = softmax(logits).

    Parameters
    ----------
    C : int
        Channels of input and output.
    stride : int
        1, or 2 on the edges that leave a reduction cell's inputs.
    primitives : sequence of str
        Names in ``OPS``; the paper's eight by default.
    mode : {"exact", "top_k", "argmax"}
        ``exact`` is the paper's. ``top_k`` runs the k strongest alone and blends them with the softmax over
        those: the others get no gradient, so what is dropped doesn't come back by itself. ``argmax`` runs the
        strongest operation that isn't ``none``, as it is: for inference; the output's scale is another.
    k : int
        Of ``top_k``.

    References
    ----------
    Liu, Simonyan, Yang 2019, arXiv:1806.09055, eq. 2. Module names are those of the paper's code.
    """

    def __init__(
        self,
        C: int,
        stride: int,
        primitives: Sequence[str] = PRIMITIVES,
        mode: Mode = "exact",
        k: int = 2,
    ) -> None:
        super().__init__()
        if mode not in MODES:
            raise InvalidInputError(f"mode must be one of {', '.join(MODES)}, got {mode!r}", argument="mode")
        if not 1 <= k <= len(primitives):
            raise InvalidInputError(f"k must be 1 to {len(primitives)}, got {k}", argument="k")
        self.primitives, self.mode, self.k = tuple(primitives), mode, k
        self._ops = nn.ModuleList(_candidate(name, C, stride) for name in primitives)

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
    ) -> Tensor:
        """Return the blend.

        Parameters
        ----------
        x : Tensor
            Shape (N, C, H, W).
        logits : Tensor, optional
            Shape (operations,): before softmax.
        weights : Tensor, optional
            Shape (operations,): the factors themselves. Exactly one of the two is given.
        active : sequence of int, optional
            Which operations run, where the mode isn't ``exact``: read once a step for all edges by
            ``ArchitectureParameters.active``. Without it this edge reads its own, which waits for the device.
        outputs : mapping of int to Tensor, optional
            Outputs of operations that are known already: a cell's shared pools.

        Returns
        -------
        Tensor
            Shape (N, C, H', W').

        Raises
        ------
        InvalidInputError
            If neither or both of ``logits`` and ``weights`` are given, or their shape is another.
        """
        given = logits if weights is None else weights
        if given is None or (logits is not None and weights is not None):
            raise InvalidInputError(
                "exactly one of logits (before softmax) and weights (after it) must be given, got "
                f"{'neither' if given is None else 'both'}",
                argument="logits",
            )
        if tuple(given.shape) != (len(self._ops),):
            name = "logits" if weights is None else "weights"
            raise InvalidInputError(
                f"{name} must be ({len(self._ops)},), one an operation, got {tuple(given.shape)}",
                argument=name,
            )
        if self.mode == "exact":
            chosen = tuple(range(len(self._ops)))
        else:
            chosen = tuple(active) if active is not None else strongest(given, self)
        if self.mode == "argmax":
            out: Tensor = self._ops[chosen[0]](x)
            return out
        known = outputs or {}
        computed = [known[i] if i in known else self._ops[i](x) for i in chosen]
        if len(chosen) < len(self._ops):
            given = given[list(chosen)]
        blended: Tensor = nxcore.op("softmax_sum" if weights is None else "weighted_sum")(computed, given)
        return blended

    def extra_repr(self) -> str:
        """Return the mode."""
        return f"mode={self.mode!r}" + (f", k={self.k}" if self.mode == "top_k" else "")


def strongest(given: Tensor, mixed: MixedOp) -> tuple[int, ...]:
    """Return the operations that a mode keeps, the strongest first; waits for the device."""
    row: list[float] = given.detach().tolist()
    order = sorted(range(len(row)), key=lambda i: -row[i])
    if mixed.mode == "argmax":
        return tuple(i for i in order if mixed.primitives[i] != "none")[:1]
    return tuple(sorted(order[: mixed.k]))


def _candidate(name: str, C: int, stride: int) -> nn.Module:
    if name not in OPS:
        raise InvalidInputError(
            f"primitives must be among {', '.join(OPS)}, got {name!r}", argument="primitives"
        )
    op = OPS[name](C, stride, False)
    return nn.Sequential(op, nn.BatchNorm2d(C, affine=False)) if "pool" in name else op
