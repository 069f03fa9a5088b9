"""A model that torch.compile has traced is accelerated, restored, patched and copied meanwhile."""

import copy
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import nxcore
import nxcore.nas
from tests.nn.programs import Net, image, same, step

pytestmark = pytest.mark.usefixtures("dynamo_anew")

Turn = Callable[[Any], Any]


def unwatched(model: Any) -> None:
    nxcore.accelerate(model, watch=False, graphs=False)


def child(model: Any) -> None:
    model.stem.compile(backend="eager")


def replaced(model: Any) -> None:
    model.stem = torch.compile(model.stem, backend="eager")


BEFORE: dict[str, Turn] = {
    "plain": lambda _: None,
    "accelerated": nxcore.accelerate,
    "unwatched": unwatched,
    "patched": nxcore.nas.patch,
}
TURNS: dict[str, Turn] = {
    "restored": nxcore.restore,
    "accelerated": nxcore.accelerate,
    "restored and accelerated": lambda m: (nxcore.restore(m), nxcore.accelerate(m)),
    "patched": nxcore.nas.patch,
    "unpatched": nxcore.nas.unpatch,
    "a child restored": lambda m: nxcore.restore(m.stem),
    "a child accelerated": lambda m: nxcore.accelerate(m.stem),
    "in another model that is accelerated": lambda m: nxcore.accelerate(nn.Sequential(m.stem, m)),
    "in another model that is restored": lambda m: nxcore.restore(nn.ModuleDict({"a": m.pool, "b": m})),
    "a copy restored": lambda m: nxcore.restore(copy.deepcopy(m)),
    "a class read": lambda m: [nn.utils.parametrize.type_before_parametrizations(c) for c in m.modules()],
}
QUICK = {("accelerated", "restored"), ("patched", "unpatched")}
EVALUATED = {"restored", "accelerated", "patched", "a child restored"}
"""The turns that an evaluation has too: the others make of a model what these do."""
PAIRS = [
    *((before, turn) for before in ("accelerated", "patched") for turn in TURNS),
    *(
        ("plain", "accelerated"),
        ("plain", "patched"),
        ("unwatched", "restored"),
        ("unwatched", "accelerated"),
    ),
]


def outcome(train: bool, before: Turn, turn: Turn) -> Any:
    """Return what steps of a compiled model come to, with a turn before the second and the third."""
    torch.manual_seed(0)
    model = Net().train(train)
    state = copy.deepcopy(model.state_dict())
    before(model)
    model.load_state_dict(state)
    compiled = torch.compile(model, backend="eager")
    found = [step(compiled, image())]
    for _ in range(2):
        turn(model)
        found += [step(compiled, image()), step(model, image())]
    return found, [p.grad for p in model.parameters()], dict(model.state_dict())


@functools.cache
def plain(train: bool) -> Any:
    return outcome(train, BEFORE["plain"], BEFORE["plain"])


@pytest.mark.parametrize(
    ("before", "turn", "train"),
    [
        pytest.param(
            b,
            t,
            train,
            marks=() if train and (b, t) in QUICK else pytest.mark.slow,
            id=f"{b}, then {t}, {name}",
        )
        for train, name in ((True, "training"), (False, "evaluation"))
        for b, t in PAIRS
        if train or (b != "patched" and t in EVALUATED)
    ],
)
def test_compiled_code_survives_what_nxcore_does(before: str, turn: str, train: bool) -> None:
    same(outcome(train, BEFORE[before], TURNS[turn]), plain(train))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # dynamo reads it
@pytest.mark.parametrize("part", [child, replaced])
@pytest.mark.parametrize("turn", [nxcore.restore, nxcore.accelerate, nxcore.nas.patch])
def test_a_compiled_part_survives_too(part: Turn, turn: Turn) -> None:
    outcomes: list[Any] = []
    for ours in (False, True):
        torch.manual_seed(0)
        model = Net()
        if ours:
            nxcore.accelerate(model)
        part(model)
        found = [step(model, image())]
        if ours:
            turn(model)
        found += [step(model, image()), step(copy.deepcopy(model), image())]
        outcomes.append((found, [p.grad for p in model.parameters()]))
    same(outcomes[1], outcomes[0])
