"""``perturbation``: an operation is as good as what the supernet loses without it, not as its factor says.

"DARTS-PT", Wang et al. 2021, arXiv:2108.04392, algorithm 1 and its code, without the training between two
decisions. After the search, each edge in random order keeps the operation whose removal costs most of the
accuracy on validation images; then each node keeps the two edges whose removal costs most, one by one.
``none`` can't be kept. The factors of what stays don't change when an operation is removed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from nxcore.graphs.graphed import Graphed
from nxcore.nas.genotype import Gene, Genotype, edges
from nxcore.nas.metrics import Tally
from nxcore.nas.remedies.remedy import Remedy, Weighed

if TYPE_CHECKING:
    from nxcore.nas.trainer import Trainer


class Perturbation(Remedy):
    """A selection by removal."""

    network, selects = Weighed, True

    @torch.no_grad()
    def selected(self, trainer: Trainer) -> Genotype:
        """Return the genotype that 2,048 images choose: 2 x 14 x 7 of operations, then 2 x 22 of edges."""
        net: Any = trainer.net
        kinds = [net.weights(rows).clone() for rows in trainer.arch()]
        draw = torch.Generator().manual_seed(trainer.seed)
        graphed = trainer.passes.graphed
        run = Graphed(net.weighed, limit=1, warmup=2, state=tuple(net.buffers())) if graphed else net.weighed
        most = 2048
        size = max(1, trainer.preset.batch // trainer.world)
        part = [
            t[trainer.rank :: trainer.world][: max(1, most // trainer.world)] for t in trainer.data.validation
        ]
        count = max(size, len(part[1]) // size * size)  # batches of one size
        batches = [
            [t.to(trainer.device) for t in pair]
            for pair in zip(*(t[:count].split(size) for t in part), strict=True)
        ]

        def removed(kind: int, row: int, operation: Any) -> tuple[float, float]:
            """Return accuracy and loss, negative, without one or all operations of an edge."""
            weights = [k.clone() if i == kind else k for i, k in enumerate(kinds)]
            weights[kind][row, operation] = 0.0
            tally = Tally(trainer.device)
            for images, labels in batches:
                scores = run(images, *weights)
                tally.add(functional.cross_entropy(scores, labels), scores, labels)
            loss, accuracy = tally.read()
            return accuracy, -loss

        names, steps = trainer.arch.primitives, trainer.arch.steps
        real = [i for i, name in enumerate(names) if name != "none"]
        cells: list[tuple[Gene, ...]] = []
        for kind, weights in enumerate(kinds):
            kept: dict[int, int] = {}
            for row in torch.randperm(len(weights), generator=draw).tolist():
                kept[row] = min(real, key=lambda i, row=row: removed(kind, row, i))  # type: ignore[misc]
                weights[row] = functional.one_hot(torch.tensor(kept[row]), len(names)).to(weights)
            found: dict[int, list[int]] = {}
            nodes = edges(steps)
            for node in torch.randperm(steps, generator=draw).tolist():
                rows = list(nodes[node])
                while len(rows) > 2:
                    least = max(rows, key=lambda row: removed(kind, row, slice(None)))
                    rows.remove(least)
                found[node] = rows
            cells.append(
                tuple(
                    (names[kept[row]], row - nodes[node][0]) for node in range(steps) for row in found[node]
                )
            )
        concat = trainer.genotype.normal_concat
        return Genotype(cells[0], concat, cells[1], concat)
