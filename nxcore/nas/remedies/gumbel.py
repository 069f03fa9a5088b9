"""``gumbel``: the factors of all operations are drawn anew in each pass, ever closer to one operation.

"SNAS", Xie et al. 2019, arXiv:1812.09926, eq. 4: the softmax of logits with Gumbel noise over a temperature
that falls; all operations run. So a pass is that of a search without a remedy, and can be replayed. One
operation alone runs in ``nxcore.nas.Rule("sampled")``.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from nxcore import session
from nxcore.nas.architecture import Temperature
from nxcore.nas.remedies.remedy import Remedy, Weighed


class Drawn(Weighed):
    """A network of which each pass draws the factors; all cells of a kind have the same."""

    tau: Tensor

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.register_buffer("tau", Temperature().tau, persistent=False)

    def weights(self, logits: Tensor) -> Tensor:
        """Return factors that are drawn."""
        drawn: Tensor = session.default().op("gumbel_softmax")(logits, self.tau, False)
        return drawn


class Gumbel(Remedy):
    """Factors that are drawn."""

    network = Drawn

    def anneal(self, net: Any, done: float) -> None:
        """Lower the temperature, exponentially from 5 to 0.1."""
        schedule = Temperature()
        net.tau.fill_(schedule.start * (schedule.end / schedule.start) ** done)
