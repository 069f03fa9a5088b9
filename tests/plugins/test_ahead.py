"""Kernels are compiled for a GPU in a process that has none."""

import json
import os
import sys
import threading
import types
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import nxcore_cuda
import nxcore_triton
import pytest
import torch
from nxcore_cuda.machine import absent
from nxcore_triton.launch import ALIGNED, Launch

from nxcore.expression.grammar import parsed
from nxcore.expression.operator import specs
from nxcore.ops import nxcore_ops
from nxcore.plugin import Problem, hosted
from nxcore.registry.registry import printed
from nxcore.spec.device import pretend
from nxcore.store.problems import moved
from tests import fresh
from tests.table import for_each

SPECS = {spec.name: spec for spec in nxcore_ops()}
DRAWN = {spec.name: spec for spec in specs(parsed("gelu(x) * y + slope * z", {"slope": 0.5}), "drawn")}
SPECS |= DRAWN
GPU = torch.device("cuda")
FACTS = {"name": "a GPU", "major": 9, "minor": 0, "shared_memory_per_block_optin": 232448}


@pytest.fixture(autouse=True)
def _pretending(cuda_answers):
    cuda_answers(get_device_properties=None)
    pretend(FACTS)


def problems(kernel):
    """Yield the problems of the smoke samples, as on a GPU, in the first dtype that the kernel takes."""
    spec = SPECS[kernel.op]
    for sample in spec.tagged("smoke"):
        yield moved(Problem.of(spec, sample.build(spec, "cpu", kernel.dtypes[0])), GPU)


def kernels(plugin):
    """Return a plugin's kernels, and those that it prints for an expression."""
    return [*plugin.KERNELS, *printed(plugin.nxcore_backend(), DRAWN.values())]


@for_each("kernel", kernels(nxcore_cuda), ids=lambda kernel: kernel.op)
def test_plans_of_cuda_need_no_device(kernel):
    made = []
    for problem in problems(kernel):
        absent.planned(kernel, problem, lambda instance, *_: made.append(instance))
    assert made
    assert all(instance.text for instance in made)


def test_what_is_planned_for_elsewhere_isnt_launched():
    with pytest.raises(RuntimeError, match="a device that isn't here"):
        absent._nowhere()


def test_cuda_compiles_for_the_capability_that_is_given(monkeypatch):
    asked = []
    monkeypatch.setattr(absent, "image", lambda instance, capability: asked.append(capability))
    kernel = nxcore_cuda.KERNELS[0]
    nxcore_cuda._ahead(kernel, next(problems(kernel)), (8, 6))
    assert set(asked) == {(8, 6)}


# Triton's interpreter compiles nothing, and these tests' process has it where there is no GPU.
COMPILE = """
import sys, json, pathlib
import torch
import nxcore_triton
from triton.runtime import driver
from nxcore.spec.device import pretend
from tests.plugins.test_ahead import FACTS, kernels, problems
pretend(FACTS)
folder, found = pathlib.Path(sys.argv[1]), {}
for kernel in kernels(nxcore_triton):
    if sys.argv[2:] and kernel.op not in sys.argv[2:]:
        continue
    for problem in problems(kernel):
        if kernel.takes(problem):
            nxcore_triton._ahead(kernel, problem, (9, 0))
            break
    found[kernel.op] = sorted({path.stem for path in folder.rglob("*.cubin")})
    assert driver._active is None, "the next call looks for its own device"
texts = [path.read_text() for path in folder.rglob("*.json") if not path.name.startswith("__grp__")]
assert all('"arch": 90' in text for text in texts), texts
print(json.dumps(found))
"""


def compiled(folder, *ops):
    """Return, by operator, the names of Triton's kernels that have been compiled so far."""
    root = str(Path(__file__).parents[2])
    env = os.environ | {"TRITON_CACHE_DIR": str(folder), "PYTHONPATH": os.pathsep.join([root, *sys.path])}
    env.pop("TRITON_INTERPRET", None)
    ran = fresh.run("-c", COMPILE, folder, *ops, env=env, timeout=570)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout.splitlines()[-1])


@pytest.mark.slow
def test_triton_compiles_a_call_to_its_cache(tmp_path):
    found = compiled(tmp_path, "add", "drawn_backward")
    assert set(found["add"]) & {"add_flat", "add_tiles"}
    assert set(found["drawn_backward"]) & {"flat", "tiles"}, "of an expression"


@pytest.mark.slow
def test_plans_of_triton_need_no_device(tmp_path):
    found = compiled(tmp_path)
    assert found.keys() == {kernel.op for kernel in kernels(nxcore_triton)}
    assert len(found["gumbel_softmax_backward"]) > 10, "of all operators before it"


def test_launches_are_replaced_in_one_thread_alone():
    from nxcore_triton.ahead import Compiled
    from nxcore_triton.launch import Launch

    def launch():
        kernel = types.SimpleNamespace(arg_names=())
        made.append(type(Launch(kernel, (1,), torch.device("cpu"))))

    made = []
    with hosted(Compiled):
        launch()
        other = threading.Thread(target=launch)
        other.start()
        other.join()
    launch()
    assert made == [Compiled, Launch, Launch]


@pytest.mark.gpu
def test_what_is_on_disk_is_found_beside_launches_of_other_threads(tmp_path, monkeypatch):
    """Triton's driver and the launches of this thread stay as they are."""
    monkeypatch.undo()  # the device's own properties
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    kernel, spec = next(k for k in nxcore_triton.KERNELS if k.op == "add"), SPECS["add"]
    args = spec.tagged("smoke")[0].build(spec, "cuda", torch.float32)
    problem = Problem.of(spec, args)
    call, want = kernel.plan(problem), spec.reference(*args)
    call(*args)

    def look():
        for _ in range(30):
            nxcore_triton._ahead(kernel, problem, torch.cuda.get_device_capability())

    with ThreadPoolExecutor(1) as pool:
        looking = pool.submit(look)
        while not looking.done():
            torch.testing.assert_close(call(*args), want)
            torch.testing.assert_close(kernel.plan(problem)(*args), want)
        looking.result()


@pytest.mark.parametrize("kernel", kernels(nxcore_triton), ids=lambda kernel: kernel.op)
def test_launches_pass_aligned_pointers(kernel, monkeypatch):
    """What is compiled ahead is for such; parts of a work space are no exception."""
    spec, passed = SPECS[kernel.op], []
    monkeypatch.setattr(Launch, "__call__", lambda _, tensors, *__: passed.extend(tensors))
    for sample in spec.tagged("smoke"):
        args = sample.build(spec, "cpu", kernel.dtypes[0])
        if kernel.takes(problem := Problem.of(spec, args)):
            kernel.plan(problem)(*args)
    assert passed
    assert all(t.data_ptr() % ALIGNED == 0 for t in passed)


@pytest.mark.gpu
@pytest.mark.parametrize("op", ["add", "sum", "softmax_sum", "batch_norm", "drawn", "drawn_backward"])
def test_a_launch_finds_what_was_compiled_for_it(op, tmp_path, monkeypatch):
    """Whatever Triton adds to its cache's key is the same in both processes."""
    from nxcore_triton.ahead import Compiled
    from triton import knobs

    monkeypatch.undo()  # the device's own properties
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    kernel, spec = next(k for k in kernels(nxcore_triton) if k.op == op), SPECS[op]
    args = spec.tagged("smoke")[0].build(spec, "cuda", torch.float32)
    problem, hits = Problem.of(spec, args), []
    capability = torch.cuda.get_device_capability()
    compiled, own = [], Compiled.__call__

    def called(self, *args):
        self.kernel.device_caches.clear()  # of a test before this one, whose folder was another
        compiled.append(self.kernel)
        own(self, *args)

    monkeypatch.setattr(Compiled, "__call__", called)
    nxcore_triton._ahead(kernel, problem, capability)
    for each in compiled:
        each.device_caches.clear()  # as in a process that hasn't compiled it
    monkeypatch.setattr(knobs.compilation, "listener", lambda **seen: hits.append(seen["cache_hit"]))
    kernel.plan(problem)(*args)
    assert hits
    assert all(hits)


@pytest.mark.gpu
@pytest.mark.parametrize("op", ["add", "drawn", "drawn_backward"])
def test_cupy_compiles_what_a_plan_loads(op, monkeypatch):
    """An expression's operator has no row of its own; its code is compiled all the same."""
    nxcore_cupy = pytest.importorskip("nxcore_cupy")
    pytest.importorskip("cupy")
    from nxcore_cupy import launch

    texts = []
    monkeypatch.setattr(launch, "compiled", lambda text, *_: texts.append(text))
    found = next(k for k in kernels(nxcore_cupy) if k.op == op)
    nxcore_cupy._ahead(found, next(problems(found)), (9, 0))
    assert texts
    assert all(("pointwise" in text) == (op != "add") for text in texts)


def test_a_stand_in_is_for_every_device():
    assert torch.cuda.get_device_properties(3).name == "a GPU"
    assert isinstance(torch.cuda.get_device_properties(), types.SimpleNamespace)
