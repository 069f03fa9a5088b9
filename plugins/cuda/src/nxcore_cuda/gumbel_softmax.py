"""gumbel_softmax: one launch for all rows: a few lanes of a warp hold a row in registers."""

from __future__ import annotations

from collections.abc import Iterator

from nxcore_cuda import rows
from nxcore_cuda.machine.instance import Instance

plan = plan_backward = rows.plan


def instances() -> Iterator[Instance]:
    """Yield the kernels of common calls, to compile ahead of time."""
    yield from rows.instances("gumbel_softmax")
