"""A recorder for the CPU: operators, run again on the memory that they had, stand for a CUDA graph.

On a device captures without a pool of their own share memory: what one computes may lie where those
captured before it work. So here a replay of these fills it with NaN.
"""

import threading
import time

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from nxcore.graphs.recorder import Order
from nxcore.nn import exchange

MET = 2
"""Calls of a model before its capture."""


def part(model):
    """Return what replays the model."""
    return exchange.watch_of(model).whole


class _Notes(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.lines, self.made, self._others = [], {}, set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if "empty" not in func.__name__:  # no work
            self.lines.append((func, args, kwargs or {}, out))
        elif _holds(out) and not out.is_floating_point():
            out.zero_()  # a capture on a device reads no memory: what is an index would be out of range here
        self._others |= {_memory(t) for t in tree_leaves((args, kwargs)) if _holds(t)} - {*self.made}
        self.made |= {_memory(t): t for t in tree_leaves(out) if _holds(t) and _memory(t) not in self._others}
        return out


def _memory(tensor):
    return tensor.untyped_storage().data_ptr()


def _holds(leaf):
    return isinstance(leaf, Tensor) and leaf.numel() > 0


class Tape:
    """What ``nxcore.graphs.recorder.CudaRecorder`` is; ``slow`` makes a replay cost that many seconds
    more.
    """

    on_host = True  # the device's random generator is that of the host

    def __init__(self, slow=0.0):
        self.slow, self.captured, self.replayed, self.order = slow, 0, 0, Order()
        self.lock, self._made, self.pools, self.lines = threading.RLock(), [], [], []

    def turn(self):
        pass

    def aside(self, work):
        return work()

    def capture(self, work, pool=None):
        with _Notes() as notes:
            result = work()
        place = len(self._made) // 2  # there and back are of one
        self.captured += 1
        self.pools.append(pool)
        self.lines.append(notes.lines)
        if pool is None:
            self._made.append(notes.made)

        def replay():
            self.replayed += 1
            time.sleep(max(self.slow, 0.0))
            with torch.no_grad(), torch.autocast("cpu", enabled=False):  # what is recorded is below it
                for made in self._made[2 * place + 2 :] if pool is None else ():
                    for tensor in made.values():
                        if tensor.is_floating_point():
                            tensor.untyped_storage().fill_(255)  # NaN in every floating type
                for func, args, kwargs, out in notes.lines:
                    again = func(*args, **kwargs)
                    for mine, new in zip(tree_leaves(out), tree_leaves(again), strict=True):
                        if isinstance(mine, Tensor) and new is not None and mine.data_ptr() != new.data_ptr():
                            mine.copy_(new)

        return result, replay

    def lying(self, tensor):
        return tensor.detach()

    def seconds(self, work):
        """Any replay is faster than a run, unless it is slow: what a test must not depend on isn't timed."""
        before = self.replayed
        work()
        return 1.0 + self.slow * 1e3 if self.replayed > before else 2.0

    def dice(self):
        return torch.get_rng_state()

    def put_back(self, dice):
        torch.set_rng_state(dice)
