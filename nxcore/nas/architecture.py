"""The architecture under search: one tensor for all edges of all kinds of cell."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from nxcore import session
from nxcore.errors import InvalidInputError
from nxcore.nas.genotype import Genotype, dominant, edges
from nxcore.nas.operations import PRIMITIVES
from nxcore.nas.rule import above_zero

SCALE = 1e-3
"""The standard deviation of initial logits, as in the paper's code."""


class Temperature:
    """An exponential temperature schedule, from ``start`` to ``end`` in ``steps`` steps, then constant.

    Parameters
    ----------
    start, end : float
        Both above 0.
    steps : int
        At least 1.
    device : device, optional
        The device of ``tau``.

    Attributes
    ----------
    tau : Tensor
        A scalar in float32 for ``ArchitectureParameters.sample`` and ``Rule``. It changes in place, so a
        captured graph sees the change.

    Raises
    ------
    InvalidInputError
        If ``start`` or ``end`` is not above 0, or ``steps`` is below 1.

    Examples
    --------
    >>> schedule = nas.Temperature(4.0, 1.0, steps=2)
    >>> schedule.step()
    >>> schedule.tau
    tensor(2.)
    """

    def __init__(
        self, start: float = 5.0, end: float = 0.1, steps: int = 100, device: torch.device | str | None = None
    ) -> None:
        for name, value in (("start", start), ("end", end)):
            if not value > 0:
                raise InvalidInputError(f"{name} must be above 0, got {value}", argument=name)
        if steps < 1:
            raise InvalidInputError(f"steps must be at least 1, got {steps}", argument="steps")
        self.start, self.end, self.steps = start, end, steps
        self.tau = torch.full((), start, dtype=torch.float32, device=device)
        self._done = torch.zeros((), dtype=torch.float32, device=device)

    def step(self) -> None:
        """Advance one step, without waiting for the device."""
        self._done.add_(1)
        share = (self._done / self.steps).clamp(max=1)
        self.tau.copy_(self.start * (self.end / self.start) ** share)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the state of the schedule."""
        return {"tau": self.tau.clone(), "done": self._done.clone()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore the state of another schedule; ``tau`` stays the same tensor."""
        self.tau.copy_(state["tau"])
        self._done.copy_(state["done"])


class ArchitectureParameters(nn.Module):
    """Logits of every edge, before softmax.

    Parameters
    ----------
    steps : int
        Nodes of a cell.
    primitives : sequence of str
        The operations.
    multiplier : int
        The number of last nodes that a cell concatenates.
    generator : torch.Generator, optional
        The generator of the initial logits.

    Attributes
    ----------
    logits : Parameter
        Shape (2, edges, operations): normal cells, then reductions; one row for each edge, in node order.

    Examples
    --------
    >>> arch = nas.ArchitectureParameters(steps=2, multiplier=2)
    >>> arch.logits.shape
    torch.Size([2, 5, 8])
    """

    def __init__(
        self,
        steps: int = 4,
        primitives: Sequence[str] = PRIMITIVES,
        multiplier: int = 4,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.steps, self.multiplier, self.primitives = steps, multiplier, tuple(primitives)
        count = edges(steps)[-1][-1] + 1
        self.logits = nn.Parameter(SCALE * torch.randn(2, count, len(primitives), generator=generator))

    def forward(self) -> tuple[Tensor, Tensor]:
        """Return the logits of normal cells and of reductions, each of shape (edges, operations)."""
        normal, reduce = self.logits.unbind(0)
        return normal, reduce

    def sample(
        self, tau: float | Tensor = 1.0, *, hard: bool = False, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return Gumbel-softmax weights of all edges, drawn at once: Jang, Gu, Poole 2017, arXiv:1611.01144.

        Parameters
        ----------
        tau : float or Tensor
            The temperature, above 0. A 0-d tensor may change between replays of a captured graph.
        hard : bool
            One-hot in the forward pass; the gradient is that of the soft weights (straight-through).
        generator : torch.Generator, optional
            The generator of the noise.

        Returns
        -------
        tuple of Tensor
            The weights of normal cells and of reductions, each of shape (edges, operations).

        Raises
        ------
        InvalidInputError
            If ``tau`` is a number not above 0.
        """
        above_zero(tau)
        normal, reduce = (
            session.default().op("gumbel_softmax")(self.logits, tau, hard, generator=generator).unbind(0)
        )
        return normal, reduce

    def entropy(self) -> Tensor:
        """Return the mean entropy of the edges' softmax, in nats: a scalar, at most log(operations)."""
        return self.entropies().mean()

    def entropies(self) -> Tensor:
        """Return the entropy of each edge's softmax, in nats: shape (2, edges), float32 or wider."""
        wide = torch.promote_types(self.logits.dtype, torch.float32)
        found: Tensor = session.default().op("entropy")(self.logits.to(wide))
        return found

    def dominant(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the strongest operation of each edge, ``none`` included, in normal cells and in reductions.

        Reads the device once. ``genotype`` also chooses among edges, and excludes ``none``.
        """
        normal, reduce = self.logits.detach().argmax(-1).tolist()
        return tuple(self.primitives[i] for i in normal), tuple(self.primitives[i] for i in reduce)

    def genotype(self) -> Genotype:
        """Return the discrete architecture, two edges a node, without ``none``; reads the device once."""
        normal, reduce = torch.softmax(self.logits.detach().float(), dim=-1).cpu().unbind(0)
        concat = tuple(range(2 + self.steps - self.multiplier, self.steps + 2))
        return Genotype(
            dominant(normal, self.primitives, self.steps),
            concat,
            dominant(reduce, self.primitives, self.steps),
            concat,
        )
