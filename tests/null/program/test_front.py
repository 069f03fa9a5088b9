"""The backend ``nxcore`` of ``torch.compile``."""

import gc
import tomllib
from importlib import import_module
from pathlib import Path

import pytest
import torch
from torch import nn

from nxcore.program import front
from tests.null.program.nets import agree, pair

PYPROJECT = Path(__file__).parents[3] / "pyproject.toml"


def test_the_package_registers_the_backend():
    group = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["project"]["entry-points"]
    (name, target), *others = group["torch_dynamo_backends"].items()
    module, _, function = target.partition(":")
    assert (name, others) == ("nxcore", [])
    assert getattr(import_module(module), function) is front.nxcore


def test_on_a_cpu_the_graph_runs_as_it_is():
    if "nxcore" not in torch._dynamo.list_backends(exclude_tags=None):  # the package is installed
        torch._dynamo.register_backend(front.nxcore, name="nxcore")
    plain, ours = pair()
    call = torch.compile(ours, backend="nxcore")
    agree(call, ours, plain, 3)
    assert front.report(ours) == []


def test_a_graph_without_tensors_or_parameters(compiled, tape):
    call = compiled(lambda x: (x * 2, x.shape[0]))
    for i in range(6):
        assert call(torch.full((2,), float(i)))[0].tolist() == [2.0 * i] * 2
    assert tape.replayed
    assert torch.compile(lambda: 3, backend=front.nxcore)() == 3


class Broken(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x):
        x = self.one(x).tanh()
        torch._dynamo.graph_break()
        return self.two(x)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # dynamo reads it
def test_parts_of_a_model_that_dynamo_breaks_are_replayed_each(compiled):
    plain, ours = pair(Broken)
    call = compiled(ours)
    agree(call, ours, plain, 6)
    reports = front.report(ours)
    assert len(reports) == 2
    assert all("replays, 2.0x" in report for report in reports)


def test_models_of_one_class_share_a_graph_and_have_replays_of_their_own(compiled):
    models = [pair(), pair()]
    calls = [compiled(ours) for _, ours in models]
    for _ in range(6):
        for call, (plain, ours) in zip(calls, models, strict=True):
            agree(call, ours, plain)
    assert ["replays" in line for _, ours in models for line in front.report(ours)] == [True, True]
    (program,) = {program for _, ours in models for program, _ in front.replays_of(ours)}
    assert len(program.replays) == 2
    del models, calls, ours, plain, call
    gc.collect()
    assert not program.replays


def test_a_graph_that_dynamo_splits_for_exchanges_of_gradients(compiled, tmp_path, monkeypatch):
    spread = torch.distributed
    monkeypatch.setattr(spread, "_DEFAULT_FIRST_BUCKET_BYTES", 60)
    spread.init_process_group("gloo", init_method=f"file://{tmp_path / 'ranks'}", rank=0, world_size=1)
    try:
        plain, ours = pair()
        call = compiled(nn.parallel.DistributedDataParallel(ours, bucket_cap_mb=1e-4))
        agree(call, ours, plain, 7)
        assert ["replays" in line for line in front.report(ours)] == [True, True]
    finally:
        spread.destroy_process_group()


@pytest.mark.parametrize(
    "target",
    [torch.ops._c10d_functional.all_reduce, torch.distributed.all_reduce],
    ids=["operator", "function"],
)
def test_a_graph_that_exchanges_tensors_is_refused(target):
    graph = torch.fx.Graph()
    graph.output((graph.call_function(target, (graph.placeholder("x"), "sum", "0")),))
    made = torch.fx.GraphModule({}, graph)
    assert front.refusal(made, torch.device("cpu")).startswith("its code exchanges tensors with other ranks")
