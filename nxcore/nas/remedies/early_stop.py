"""``early_stop``: the search ends before a cell has more than two skip connections.

"DARTS+", Liang et al. 2019, arXiv:1909.06035, criterion 1: two skip connections or more in a normal cell.
Here both kinds of cell count, three are too many, and the genotype of the epoch before is kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nxcore.nas.remedies.remedy import Remedy

if TYPE_CHECKING:
    from nxcore.nas.preset import Preset


class EarlyStop(Remedy):
    """An end at two skip connections."""

    def __init__(self, preset: Preset) -> None:
        super().__init__(preset)
        self.skips = 2
