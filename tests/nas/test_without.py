"""A patched search step where nothing may be compiled and nothing measured: what is on disk and on record."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import fresh

STEP = """
import json, sys
import torch
from torch.nn.functional import cross_entropy
import nxcore
from nxcore import nas
from tests.nas import darts

size, batch, layers, side, device = json.loads(sys.argv[1])
torch.manual_seed(0)
net = darts.Network(size, 10, layers, 4).to(device)
swap = nas.patch(net)
images = torch.randn(batch, 3, side, side, device=device)
labels = torch.randint(10, (batch,), device=device)
edges = sum(2 + i for i in range(4))
logits = torch.zeros(2, edges, 8, device=device, requires_grad=True)
for _ in range(12):
    loss = cross_entropy(net(images, *logits.unbind(0)), labels)
    torch.autograd.grad(loss, [logits, *net.parameters()])
found = nxcore.status()
# A machine's first import of them takes seconds, which a first step would wait for.
assert not {"sympy", "torch._dynamo", "torch._inductor"} & set(sys.modules), "torch's compiler was imported"
print(json.dumps([found.to_dict()["tally"], len(swap.replaced), found.counts, float(loss)]))
"""


DESCRIBED = """
import sys
import torch
from nxcore.interop.internals import gradients
from nxcore.registry.discovery import discover
from nxcore.spec.problem import Problem

for name, spec in discover(strict=True).ops.items():
    for sample in spec.samples:
        if "smoke" in sample.tags:
            Problem.of(spec, sample.build(spec, "cpu", torch.float32)).outputs
            assert "sympy" not in sys.modules, f"{name}, {sample.name}"
x = torch.ones(3, requires_grad=True)
print(*gradients([2 * x], [x], [torch.ones(3)]))
assert "sympy" not in sys.modules, "gradients"
"""


def ran(folder, of):
    """Return the tally, the number of replaced modules, and the problems by state."""
    env = os.environ | {"NXCORE_NO_JIT": "1", "NXCORE_NO_MEASURE": "1", "NXCORE_CACHE": str(folder)}
    env |= {"OMP_NUM_THREADS": "1"}  # these calls are tiny
    env.pop("NXCORE_POLICY", None)
    root = str(Path(__file__).parents[2])
    env["PYTHONPATH"] = os.pathsep.join([root, *filter(None, [env.get("PYTHONPATH")])])
    command = [sys.executable, "-c", STEP, json.dumps(of)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=570, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_describing_what_verifies_a_kernel_imports_no_compiler():
    done = fresh.run("-c", DESCRIBED)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "tensor([2., 2., 2.])\n"


@pytest.mark.slow
def test_a_small_step_on_the_cpu_compiles_and_races_nothing(tmp_path):
    tally, replaced, counts, loss = ran(tmp_path, (4, 2, 3, 8, "cpu"))
    assert tally == {"compilations": 0, "races": 0}
    assert replaced > 0
    assert counts["learning"] == 0
    assert loss == pytest.approx(2.3, abs=1.5)


@pytest.mark.gpu
def test_the_step_on_a_known_gpu_compiles_and_races_nothing_and_is_served_by_kernels(tmp_path):
    from nxcore_cuda.machine.compile import shipped

    tally, _, counts, _ = ran(tmp_path, (16, 64, 8, 32, "cuda"))
    assert tally == {"compilations": 0, "races": 0}
    if shipped():  # the wheel's images; a checkout has none
        assert counts["kernel"] > 0
