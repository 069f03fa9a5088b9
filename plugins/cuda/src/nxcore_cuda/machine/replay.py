"""Plans whose launches are noted instead of made, so that they can be repeated without the interpreter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from nxcore.plugin import YES, Kernel, Launched, Problem, hosted, note
from nxcore_cuda.machine import toolkit
from nxcore_cuda.machine.handle import addresses
from nxcore_cuda.machine.host import Host
from nxcore_cuda.machine.launch import tickets

if toolkit.EMULATED:
    from nxcore_cuda.emulator.emulate import bound
else:
    from nxcore_cuda.machine.native import prepare as bound


def replay(
    kernel: Kernel, problem: Problem, *tile: Any, bound: Callable[..., tuple[Any, ...]] = bound
) -> Callable[..., Any]:
    """Return the plan of a problem with launches that are noted; see ``Kernel.replay``.

    Parameters
    ----------
    bound : callable
        From what ``Host.handle`` takes to what ``Noted`` takes: compiles and loads.
    """
    with hosted(Host(lambda _: YES, lambda *args: Noted(*bound(*args)))):
        return kernel.planner(problem, *tile)


class Noted:
    """A launch that is noted; it is called as the handles that launch.

    Parameters
    ----------
    function, context : int
        The driver's.
    shape : tuple of int
        Grid and block, x first.
    shared : int
        Bytes of dynamic shared memory.
    pointers : int
        How many tensors a call passes.
    values : bytes
        What follows the pointers in the kernel's struct.
    pack : callable
        From new values to bytes.
    driver : tuple of int
        As in ``nxcore.plugin.Launched``.
    """

    def __init__(
        self,
        function: int,
        context: int,
        _index: int,
        shape: tuple[int, ...],
        shared: int,
        pointers: int,
        values: bytes,
        pack: Callable[..., bytes],
        _name: str,
        driver: tuple[int, ...] = (),
    ) -> None:
        self.function, self.context, self.shape, self.driver = function, context, (*shape, shared), driver
        self.pointers, self.values, self.pack = pointers, values, pack

    def __call__(self, *tensors: Tensor | None, tail: tuple[Any, ...] | None = None) -> None:
        """Note a launch; ``tail`` replaces the values given at construction."""
        self.launch(addresses(tensors), tail)

    def launch(self, pointers: list[int], tail: tuple[Any, ...] | None) -> None:
        """Note a launch with these addresses."""
        shared = tickets()
        places = [(8 * i, address) for i, address in enumerate(pointers) if address]
        values = self.values if tail is None else self.pack(*tail)
        note(
            Launched(
                self.function,
                self.context,
                self.shape,
                bytes(8 * self.pointers) + values,
                (0,),  # one struct
                tuple((at, address) for at, address in places if address not in shared),
                tuple((at, shared[address]) for at, address in places if address in shared),
                driver=self.driver,
            )
        )
