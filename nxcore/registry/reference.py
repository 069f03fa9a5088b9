"""Each spec's reference as the backend "torch": always there; all other kernels are compared with it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from nxcore.plugin import API_VERSION
from nxcore.spec.kernel import YES, Backend, Kernel, Verdict, accept_all
from nxcore.spec.problem import Problem
from nxcore.spec.spec import OpSpec

ANY_DTYPE = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


@dataclass(frozen=True)
class TorchKernel(Kernel):
    """An operator written in torch.

    Attributes
    ----------
    call : callable
        The implementation; the same for every problem.
    yardstick : bool
        Whether it is only timed, never served; see ``OpSpec.yardsticks``.
    """

    call: Callable[..., Any] = lambda *_: None
    yardstick: bool = False

    def takes(self, problem: Problem) -> Verdict:
        """Return the answer of ``accepts``: torch serves idle calls too."""
        return self.accepts(problem)

    @property
    def plan(self) -> Callable[[Problem], Callable[..., Any]]:
        """Return a planner that returns ``call`` for every problem."""
        return lambda _: self.call


def _probe() -> Verdict:
    return YES


def backend(specs: Iterable[OpSpec]) -> Backend:
    """Return the backend "torch" for ``specs``: the reference first, then each spec's idioms."""
    kernels: list[Kernel] = []
    for spec in specs:
        ways = {"": spec.reference, **spec.idioms, **spec.yardsticks}
        kernels.extend(
            TorchKernel(
                op=spec.name,
                target=f"{way.__module__}:{way.__qualname__}",
                accepts=getattr(way, "accepts", accept_all),
                variant=variant,
                dtypes=ANY_DTYPE,
                graph_safe=True,
                in_place_safe=True,
                call=way,
                yardstick=variant in spec.yardsticks,
            )
            for variant, way in ways.items()
        )
    return Backend("torch", _probe, tuple(kernels), api=API_VERSION)
