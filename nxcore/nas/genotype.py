"""Genotype: the discrete architecture that a search finds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nxcore.errors import InvalidInputError

Gene = tuple[str, int]
"""An operation, and the state that it reads: 0 and 1 are the cell's inputs."""


class Genotype(NamedTuple):
    """A discrete architecture: two edges into each node of a cell, and the nodes that form its output.

    Attributes
    ----------
    normal, reduce : tuple of (str, int)
        Operation and source state, two for each node, in node order.
    normal_concat, reduce_concat : tuple of int
        The states that are concatenated.

    Examples
    --------
    >>> arch = nas.ArchitectureParameters(1, ["none", "skip_connect"], 1)
    >>> arch.genotype().normal_concat
    (2,)
    """

    normal: tuple[Gene, ...]
    normal_concat: tuple[int, ...]
    reduce: tuple[Gene, ...]
    reduce_concat: tuple[int, ...]

    @classmethod
    def of(cls, held: Mapping[str, Any]) -> Genotype:
        """Return the genotype of plain data, such as a search's ``result.json`` holds.

        Raises
        ------
        KeyError, TypeError, ValueError
            If it isn't one.
        """
        normal, reduce = (
            tuple((str(name), int(state)) for name, state in held[cell]) for cell in ("normal", "reduce")
        )
        return cls(normal, tuple(held["normal_concat"]), reduce, tuple(held["reduce_concat"]))

    def skips(self) -> int:
        """Return the number of skip connections of the cell that has more of them."""
        return max(sum(name == "skip_connect" for name, _ in cell) for cell in (self.normal, self.reduce))


def edges(steps: int) -> list[list[int]]:
    """Return the rows of each node's edges; node ``n`` has ``n + 2``."""
    rows, found = 0, []
    for node in range(steps):
        found.append(list(range(rows, rows + node + 2)))
        rows += node + 2
    return found


def dominant(weights: Tensor, primitives: Sequence[str], steps: int = 4) -> tuple[Gene, ...]:
    """Return the two strongest edges of each node, ranked by their strongest operation except ``none``.

    Parameters
    ----------
    weights : Tensor
        Shape (edges, operations): the softmax of the architecture parameters.
    primitives : sequence of str
        Names of the operations.
    steps : int
        The number of nodes of a cell.

    Raises
    ------
    InvalidInputError
        If ``weights`` has another shape.

    Examples
    --------
    >>> nas.dominant(torch.tensor([[0.9, 0.1], [0.2, 0.8]]), ["none", "skip_connect"], steps=1)
    (('skip_connect', 1), ('skip_connect', 0))
    """
    rows = edges(steps)
    wanted = (rows[-1][-1] + 1, len(primitives))
    if tuple(weights.shape) != wanted:
        raise InvalidInputError(
            f"weights must be {wanted}, one row for each edge, got {tuple(weights.shape)}", argument="weights"
        )
    table = weights.detach().to("cpu", torch.float64).tolist()
    real = [i for i, name in enumerate(primitives) if name != "none"]
    genes: list[Gene] = []
    for node in rows:
        best = {row - node[0]: max(real, key=lambda i, r=row: table[r][i]) for row in node}  # type: ignore[misc]  # mypy can't infer a default's type
        strongest = sorted(best, key=lambda state: -table[node[0] + state][best[state]])[:2]
        genes += [(primitives[best[state]], state) for state in strongest]
    return tuple(genes)


def drawn(
    primitives: Sequence[str], steps: int, multiplier: int, generator: torch.Generator | None = None
) -> Genotype:
    """Return a random genotype: each node reads two distinct states, by any operation except ``none``.

    Parameters
    ----------
    primitives : sequence of str
        Names of the operations.
    steps, multiplier : int
        The number of nodes of a cell, and how many of them, from the last, form its output.
    generator : torch.Generator, optional
        A generator on the CPU.

    Examples
    --------
    >>> drawn(["none", "skip_connect"], 2, 1).normal_concat
    (3,)
    """
    real = [name for name in primitives if name != "none"]

    def cell() -> tuple[Gene, ...]:
        genes: list[Gene] = []
        for states in range(2, steps + 2):
            for state in torch.randperm(states, generator=generator)[:2].tolist():
                operation = torch.randint(len(real), (), generator=generator).item()
                genes.append((real[int(operation)], state))
        return tuple(genes)

    concat = tuple(range(2 + steps - multiplier, 2 + steps))
    return Genotype(cell(), concat, cell(), concat)
