"""What these tests share: nothing is measured, for what is held here are numbers."""

from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch

import nxcore
from nxcore.graphs import branches
from nxcore.nas import group, level
from nxcore.nn import modules
from tests.nas.grouped import BACKWARD, FORWARD
from tests.nas.switches import OFF, switch


@pytest.fixture(autouse=True)
def _nothing_is_measured() -> Iterator[None]:
    """What is learnt from calls may change who serves between two of them, and with it the last bits."""
    with nxcore.policy("frozen"):
        yield


@pytest.fixture(autouse=True)
def _one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither convolutions, norms nor cells are computed together: a test of that switches it on."""
    for module in OFF:
        switch(monkeypatch, module, on=False)


@pytest.fixture
def as_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """Convolutions and norms are computed together where they are by default."""
    for module in OFF:
        switch(monkeypatch, module, on=True)


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The operators serve all calls, as kernels do, except those that torch is said to serve.

    Also the numbers of convolutions of each call.
    """
    calls = {FORWARD: [], BACKWARD: []}
    refuses = set()

    def operator(name):
        if name not in calls:
            return nxcore.op(name)

        def by_kernel(*args):
            assert not torch.is_grad_enabled()
            if name in refuses:
                return None
            calls[name].append(len(args[0]))
            return nxcore.op(name)(*args)

        return SimpleNamespace(by_kernel=by_kernel)

    switch(monkeypatch, group, on=True)
    monkeypatch.setattr(level, "_operator", operator)
    monkeypatch.setattr(modules, "by_kernel", lambda module, operator, *args: operator(*args))
    monkeypatch.setattr(branches, "_sum", lambda: SimpleNamespace(by_kernel=nxcore.op("weighted_sum")))
    return SimpleNamespace(forward=calls[FORWARD], backward=calls[BACKWARD], refuses=refuses)
