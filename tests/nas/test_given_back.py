"""A module is given back within its call, as another thread may do it, at each line of our code."""

import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nxcore import nas
from nxcore.nas import mixture


class Zero(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mul(0.0)


class Mixed(nn.Module):
    def __init__(self, *, written: bool) -> None:
        super().__init__()
        first = nn.ReLU(inplace=True) if written else nn.ReLU()
        self._ops = nn.ModuleList([Zero(), first, nn.BatchNorm2d(4, affine=False)])

    def forward(self, x: Tensor, weights: Any) -> Tensor:
        found: Tensor = sum(w * op(x) for w, op in zip(weights, self._ops, strict=True))
        return found


CODES = {
    f.__code__
    for f in (
        nas.unpatch,
        mixture.forward,
        mixture.blended,
        mixture.differs,
        mixture._fits,
        mixture._children,
        mixture._vector,
    )
}


class Switch:
    """Runs a call, and another one before a line of the first, as a switch of threads does."""

    def __init__(self, line: int, other: Any) -> None:
        self.line, self.other, self.lines = line, other, 0

    def _trace(self, frame: Any, event: str, _: Any) -> Any:
        if frame.f_code not in CODES:
            return None
        if event == "line":
            if self.lines == self.line:
                self.other()
            self.lines += 1
        return self._trace

    def run(self, call: Any) -> Any:
        """Return the result of ``call``."""
        found = sys.gettrace()
        sys.settrace(self._trace)
        try:
            return call()
        finally:
            sys.settrace(found)


@pytest.mark.parametrize("written", [False, True])
@pytest.mark.parametrize("within", ["call", "unpatch", "patch"])
def test_at_each_line(written: bool, within: str) -> None:
    torch.manual_seed(0)
    module, x, weights = Mixed(written=written), torch.randn(2, 4, 5, 5), torch.rand(3)
    wanted, found = module(x.clone(), weights), list[Tensor]()

    def call() -> None:
        found.append(module(x.clone(), weights))

    def taken() -> None:  # admitted before the other thread's change
        found.append(mixture.blended(module, x.clone(), weights))

    line, lines = 0, 1
    while line < lines:
        if within == "patch":
            nas.unpatch(module)
            switch = Switch(line, taken)
            switch.run(lambda: nas.patch(module))
        else:
            nas.patch(module)
            switch = Switch(line, taken if within == "unpatch" else lambda: nas.unpatch(module))
            switch.run(call if within == "call" else lambda: nas.unpatch(module))
        nas.unpatch(module)
        torch.testing.assert_close(found.pop(), wanted)
        line, lines = line + 1, switch.lines
    assert line > 10
