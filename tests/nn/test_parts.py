"""The table of a model's parts: what runs each, what passes have changed, what is saved, and why."""

from pathlib import Path

import pytest
import torch
from torch import nn

import nxcore
from nxcore.nn import programs
from tests.nn.tape import part
from tests.nn.traced import CALLS, agree, replayed, two
from tests.stand_ins import stand_in

programs_has = stand_in(programs)


def told(model):
    """Return the lines of the table, and check those that have a limit."""
    text = str(nxcore.status(model))
    assert max(map(len, text.splitlines())) <= 100
    return text[: text.index("modules: ")].splitlines()


def gelu(_, x):
    return nn.functional.gelu(x)


def test_a_graph_that_is_replayed_has_its_passes_and_what_it_saves(tape):
    ours, _ = replayed(tape, gelu)
    assert told(ours) == [
        "parts                  run by  passes       saved a call  why",
        "graph of 8 operations  replay  2 operators        1.00 s    1",
        "  1: 2.0x: 1e+03 ms replayed, 2e+03 ms run",
    ]
    (found,) = nxcore.status(ours).to_dict()["parts"]
    assert (found["by"], found["passes"]) == ("replay", {"operators": 2})
    assert found["saved_ms"] == pytest.approx(part(ours).saved_ms)


def broken(_, x):
    torch._dynamo.graph_break("here")
    return x.tanh()


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # dynamo reads it
def test_code_between_graphs_is_torchs(tape):
    ours, plain = two(broken)
    agree(ours, plain, CALLS + 2)
    found = nxcore.status(ours).parts
    assert [p.by for p in found] == ["replay", "replay", "torch"]
    assert found[-1].part == "code between graphs"
    assert "graph_break" in found[-1].why
    assert f"in {Path(__file__).name}, line {broken.__code__.co_firstlineno + 1}" in found[-1].why


def test_a_model_that_is_not_replayed_says_why(tape):
    ours, plain = two()
    agree(ours, plain, 1)
    assert told(ours) == [
        "parts      run by  passes  saved a call  why",
        "the model  torch" + " " * 27 + "1",
        "  1: calls so far: 1",
    ]
    part(ours).end("enough")
    assert nxcore.status(ours).parts[0].why == "enough"
    ours.__class__ = type("Sharded", (type(plain),), {})  # as ``fully_shard`` does
    assert nxcore.status(ours).parts[0].why == "its class was changed since accelerate"


def test_any_other_model_has_none():
    assert nxcore.status(nn.Sequential(nn.Linear(2, 2))).to_dict()["parts"] == []


FSDPModule = type("FSDPModule", (nn.Linear,), {})


def test_a_model_with_sharded_layers_says_why_it_is_not_replayed(tape):
    swap = nxcore.accelerate(nn.Sequential(FSDPModule(2, 2)))
    assert swap.replays == "are not replayed: 0 is sharded: its parameters come and go within a call"
