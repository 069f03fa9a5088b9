"""Order: the passes that a graph goes through before it runs."""

from __future__ import annotations

from collections.abc import Callable

from torch import fx

from nxcore.program.passes.blocks import blocks
from nxcore.program.passes.norms import norms
from nxcore.program.passes.operators import operators
from nxcore.program.passes.rows import rows

PASSES: tuple[Callable[[fx.Graph], int], ...] = (rows, norms, blocks, operators)
"""In their order: what several functions compute together comes before what one does."""


def rewritten(graph: fx.GraphModule) -> dict[str, int]:
    """Let the passes rewrite a graph; return the name of each and how many nodes it has put there.

    Examples
    --------
    >>> graph = torch.fx.symbolic_trace(lambda x: torch.nn.functional.silu(x))
    >>> rewritten(graph), graph(torch.zeros(2))
    ({'operators': 1}, tensor([0., 0.]))
    """
    found = {each.__name__: each(graph.graph) for each in PASSES}
    changed = {name: count for name, count in found.items() if count}
    if changed:
        graph.recompile()
    return changed
