"""What is exported runs in a fresh process; inductor's code and its CUDA graphs call the kernels."""

import os
import subprocess
import sys

import pytest
import torch

import nxcore
from nxcore.registry.inductor import probe_cpu
from tests.null import fakes


class Mixed(torch.nn.Module):
    """Every kind of argument: a filter, a string, lists, a number."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.linspace(-1, 1, 36).view(4, 1, 3, 3))
        self.logits = torch.nn.Parameter(torch.tensor([0.1, -0.2, 0.3]))

    def forward(self, x):
        each = (
            nxcore.ops.depthwise_conv2d(x, self.weight, 1, "same"),
            nxcore.ops.max_pool2d(x, 3, 1, 1),
            nxcore.ops.avg_pool2d(x, 3, 1, 1, count_include_pad=False),
        )
        return nxcore.ops.add(nxcore.ops.softmax_sum(each, self.logits), 1.5, alpha=2)


LOADER = """
import sys, torch, nxcore.interop.library
nxcore.interop.library.define_all()
program = torch.export.load(sys.argv[1] + "/mixed.pt2")
x, want = torch.load(sys.argv[1] + "/numbers.pt")
torch.testing.assert_close(program.module()(x), want)
print("done")
"""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec:FutureWarning")  # torch.export's own
def test_what_is_exported_runs_in_a_fresh_process(session, tmp_path):
    model, x = Mixed(), torch.randn(2, 4, 8, 9)
    batch = torch.export.Dim("batch", min=2, max=100)
    program = torch.export.export(model, (x,), dynamic_shapes={"x": {0: batch}})
    called = [n.target for n in program.run_decompositions().graph.nodes if n.op == "call_function"]
    assert sum(str(target).startswith("nxcore.") for target in called) == 5
    other = torch.randn(5, 4, 8, 9)
    torch.testing.assert_close(program.module()(other), model(other))
    torch.export.save(program, tmp_path / "mixed.pt2")
    torch.save((other, model(other).detach()), tmp_path / "numbers.pt")
    command = [sys.executable, "-W", "ignore", "-c", LOADER, str(tmp_path)]
    bare = os.environ | {"NXCORE_POLICY": "frozen", "NXCORE_BACKENDS": ""}
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False, env=bare)
    assert done.stdout.strip().endswith("done"), done.stderr[-1500:]


@pytest.mark.slow
@pytest.mark.skipif(not probe_cpu(), reason="inductor has no compiler here")
def test_inductor_calls_the_kernels(session):
    kernel = next(k for k in session.registry.backend("fake").kernels if k.op == "softmax_sum").plan(None)
    op = session.op("softmax_sum", backend="fake")
    xs = [torch.randn(4, 6, requires_grad=True) for _ in range(3)]
    w = torch.randn(3, requires_grad=True)

    def function(xs, w):
        return op([x.cos() for x in xs], w).sin()

    got, want = torch.compile(function, fullgraph=True)(xs, w), function(xs, w)
    torch.testing.assert_close(got, want)
    before = kernel.count
    for a, b in zip(
        torch.autograd.grad(got.sum(), [*xs, w]), torch.autograd.grad(want.sum(), [*xs, w]), strict=True
    ):
        torch.testing.assert_close(a, b)
    torch.compile(function, fullgraph=True)(xs, w)
    assert kernel.count == before + 1


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")  # the first graph of torch's own trees
def test_cuda_graphs_of_the_compiler_replay_the_kernels():
    torch._dynamo.reset()
    op = nxcore.op("softmax_sum")
    for n in (300, 500):
        xs, w = [torch.randn(64, n, device="cuda") for _ in range(4)], torch.randn(4, device="cuda")
        op(xs, w)  # decided before the capture
        function = torch.compile(lambda xs, w: op(xs, w) * 2, fullgraph=True, mode="reduce-overhead")
        for _ in range(4):
            for x in xs:
                x.normal_()
            got = function(xs, w).clone()
            torch.testing.assert_close(got, fakes.SPECS["softmax_sum"].reference(xs, w) * 2)
    torch._dynamo.reset()
