"""``skip_decay``: each edge has one skip connection more, whose factor falls from 1 to 0.

"DARTS-", Chu et al. 2020, arXiv:2009.01027, eq. 6 and section 3.3: skip connections win since they ease
training, not since they are good operations. The auxiliary one does that work, has no logit, and is gone in
the end; its factor falls linearly over the epochs. It has weights of its own where the stride is 2.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from nxcore.nas.operations import PRIMITIVES
from nxcore.nas.remedies.remedy import Remedy, Weighed


class Skipped(Weighed):
    """A network whose edges have an operation more, whose factor is ``beta``."""

    beta: Tensor

    def __init__(self, *sizes: Any, primitives: Sequence[str] = PRIMITIVES, **options: Any) -> None:
        options["primitives"] = (*primitives, "skip_connect")
        super().__init__(*sizes, **options)
        self.register_buffer("beta", torch.ones(1, 1), persistent=False)

    def weights(self, logits: Tensor) -> Tensor:
        """Return the softmax of the logits, and ``beta``."""
        return torch.cat((torch.softmax(logits, -1), self.beta.expand(len(logits), 1)), -1)


class SkipDecay(Remedy):
    """A skip connection that fades."""

    network = Skipped

    def anneal(self, net: Any, done: float) -> None:
        """Let the skip connections fade."""
        net.beta.fill_(1.0 - done)
