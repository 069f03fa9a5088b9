"""Compiling for a device that isn't here: plans are made, and their kernels compiled to disk, not loaded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nxcore.plugin import YES, Kernel, Problem, hosted
from nxcore_cuda.machine.compile import image
from nxcore_cuda.machine.host import Host
from nxcore_cuda.machine.instance import Instance

Make = Callable[..., Any]


def planned(kernel: Kernel, problem: Problem, make: Make) -> None:
    """Plan a problem, if the kernel takes it, with ``make`` in place of each launch.

    Parameters
    ----------
    kernel : Kernel
        A kernel of this plugin.
    problem : Problem
        On a CUDA device that need not be here.
    make : callable
        Compiles; takes the arguments of ``Host.handle``.
    """

    def handle(*args: Any) -> Callable[..., None]:
        make(*args)
        return _nowhere

    with hosted(Host(lambda _: YES, handle)):
        if kernel.takes(problem):
            kernel.plan(problem)


def ahead(kernel: Kernel, problem: Problem, capability: tuple[int, int]) -> None:
    """Compile what a plan of ``problem`` loads; see ``Backend.ahead``."""

    def make(instance: Instance, *_: Any) -> None:
        image(instance, capability)

    planned(kernel, problem, make)


def _nowhere(*_: Any, **__: Any) -> None:
    raise RuntimeError("this launch was planned for a device that isn't here")
