"""A patched network is copied as it is, and pickled as it was."""

import copy
import importlib
import multiprocessing
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nxcore import nas
from nxcore.nn.exchange import PATCHED
from tests.nn.programs import Mixed, Net, image, step


class Held(Net):
    """Of a class that says how it is copied and made."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        made: Any = super().__new__(cls)
        object.__setattr__(made, "made_with", args)
        return made

    def __init__(self, number: int = 0) -> None:
        super().__init__()
        self.number = number

    def __getnewargs__(self) -> tuple[int]:
        return (self.number,)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "number": self.number + 1}

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.number


class Small(nn.Module):
    """Weights outputs of a list in its own code, and is made by a function of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.branches = nn.ModuleList([nn.MaxPool2d(3, 1, 1), nn.AvgPool2d(3, 1, 1)])
        self.alpha = nn.Parameter(torch.tensor([0.3, 0.7]))

    def forward(self, x: Tensor) -> Any:
        return sum(a * branch(x) for a, branch in zip(self.alpha, self.branches, strict=True))

    def __reduce__(self) -> Any:
        return Small, (), vars(self).copy()


def ours(model: nn.Module) -> list[str]:
    """Return what a patch has left in a model's own modules."""
    mine = [m for m in model.modules() if isinstance(m, Net | Mixed | Small)]
    return [name for m in mine for name in vars(m) if name.startswith("_nxcore_")] + [
        type(m).__name__ for m in mine if hasattr(type(m), PATCHED)
    ]


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_is_of_the_classes_before(protocol: int) -> None:
    model = Net()
    nas.patch(model)
    assert ours(model)
    twin = pickle.loads(pickle.dumps(model, protocol))
    assert (type(twin), type(twin.mixed)) == (Net, Mixed)
    assert not ours(twin)
    torch.testing.assert_close(step(twin, image()), step(model, image()))
    assert "mixed" in nas.patch(twin).replaced


def test_a_deep_copy_is_patched_and_independent() -> None:
    model = Net()
    nas.patch(model)
    twin = copy.deepcopy(model)
    assert ours(twin) == ours(model)
    assert type(twin.mixed) is type(model.mixed), "one class serves all"
    torch.testing.assert_close(step(twin, image()), step(model, image()))
    nas.unpatch(twin)
    assert type(twin.mixed) is Mixed
    assert not ours(twin)
    assert ours(model)


def test_a_class_of_ones_own_that_says_how_it_is_copied_and_pickled() -> None:
    model = Held(2)
    nas.patch(model)
    for n, twin in enumerate((copy.deepcopy(model), pickle.loads(pickle.dumps(model)))):
        assert isinstance(twin, Held), n
        assert twin.number == 3
        assert vars(twin)["made_with"] == (2,)
    small = nn.Sequential(Small())
    nas.patch(small)
    twin = pickle.loads(pickle.dumps(small))
    torch.testing.assert_close(twin(image()), small(image()))
    assert type(twin[0]) is Small


def test_by_value_too() -> None:
    cloudpickle = pytest.importorskip("cloudpickle", reason="cloudpickle isn't installed")
    model = Net()
    nas.patch(model)
    twin = cloudpickle.loads(cloudpickle.dumps(model))
    torch.testing.assert_close(step(twin, image()), step(model, image()))


def spawned(model: nn.Module, queue: Any) -> None:
    """Run the model in a process of its own."""
    importlib.import_module("nxcore")
    queue.put(step(model, image()).tolist())


@pytest.mark.slow
def test_a_spawned_process_runs_it() -> None:
    model = Net()
    nas.patch(model)
    context: Any = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=spawned, args=(model, queue))
    process.start()
    found = queue.get(timeout=300)
    process.join(60)
    torch.testing.assert_close(torch.tensor(found), step(model, image()))
