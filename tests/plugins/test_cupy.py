"""What is peculiar to the CuPy plugin; that its kernels are right is the conformance suite's business."""

import dataclasses
import functools
import importlib
import struct
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import nxcore.ops
from nxcore.spec.planning import hosted
from nxcore.spec.problem import Problem, TensorMeta
from tests import fresh

pytest.importorskip("nxcore_cupy")

import nxcore_cuda
import nxcore_cupy
from nxcore_cuda import separable
from nxcore_cuda.machine import host, load
from nxcore_cuda.machine.compile import SOURCES, CompileError
from nxcore_cuda.machine.instance import Instance

from tests.stand_ins import stand_in
from tests.table import for_each

nxcore_cupy_has = stand_in(nxcore_cupy)
torch_version_has = stand_in(torch.version)
load_has = stand_in(load)

SPECS = {spec.name: spec for spec in nxcore.ops.nxcore_ops()}
CUDA, STREAM = torch.device("cuda", 0), 0xFFFF_8000_0000_1234
SOURCE = """
#pragma once
struct probe_args { const float* x; float* out; long long n; float scale; };
__device__ void probe(const probe_args& a) { a.out[0] = a.x[0] + SCALE a.scale; }
"""


@pytest.fixture
def cupy():
    return pytest.importorskip("cupy")


@pytest.fixture
def build(cupy, monkeypatch, tmp_path):
    """Return the module that compiles, with an empty cache, where NVRTC is installed."""
    try:
        cupy.cuda.nvrtc.getVersion()
    except (ImportError, RuntimeError, OSError) as error:
        pytest.skip(f"NVRTC can't be loaded: {error}")
    monkeypatch.setenv("NXCORE_CUDA_CACHE", str(tmp_path / "cache"))
    return importlib.import_module("nxcore_cupy.compile")


@pytest.fixture
def machine(load_has, nxcore_cupy_has, torch_version_has, cuda_answers):
    """Make this machine one with CuPy and a CUDA device."""
    nxcore_cupy_has(_installed=lambda: ("cupy-cuda13x", "14.2.0"))
    torch_version_has(hip=None)
    cuda_answers(is_available=lambda: True, device_count=lambda: 2)
    load_has(capability=lambda _: (9, 0))


class TestMachine:
    def test_importing_the_plugin_imports_no_cupy(self):
        code = "import sys, torch, nxcore_cupy as n; n.nxcore_backend(); n.probe()\n"
        code += "sys.exit('cupy' in sys.modules or torch.cuda.is_initialized() or "
        code += "bool(list(n.nxcore_doctor())) and 'cupy' in sys.modules)"  # which asks for the device's name
        assert fresh.run("-c", code).returncode == 0

    def test_ready(self, machine):
        assert nxcore_cupy.probe() == nxcore_cupy.YES

    @pytest.mark.parametrize(("cuda", "extra"), [("12.8", "12"), ("13.0", "13"), (None, "13")])
    def test_no_cupy(self, machine, nxcore_cupy_has, torch_version_has, cuda, extra):
        nxcore_cupy_has(_installed=lambda: None)
        torch_version_has(cuda=cuda)
        verdict = nxcore_cupy.probe()
        assert verdict.reason == "none of cupy-cuda13x, cupy-cuda12x, cupy is installed"
        assert verdict.hint == f"pip install {nxcore_cupy.NEEDED[extra]}"
        assert f"cupy-cuda{extra}x" in verdict.hint

    @pytest.mark.parametrize("found", ["13.6.0", "9.6.0"])
    def test_old_cupy(self, machine, nxcore_cupy_has, found):
        nxcore_cupy_has(_installed=lambda: ("cupy-cuda12x", found))
        assert nxcore_cupy.probe().reason == f"needs cupy-cuda12x >= 14, found {found}"

    def test_no_device(self, machine, cuda_answers):
        cuda_answers(is_available=lambda: False)
        assert nxcore_cupy.probe().reason == "torch sees no CUDA device"

    def test_rocm(self, machine, torch_version_has):
        torch_version_has(hip="6.4")
        assert nxcore_cupy.probe().reason == "torch was built for ROCm, and these kernels are CUDA"

    def test_old_device_beside_another(self, machine, load_has):
        load_has(capability=lambda index: (7, 0) if index == 0 else (8, 0))
        assert nxcore_cupy.probe()
        load_has(capability=lambda _: (7, 0))
        assert nxcore_cupy.probe().reason == "needs a device of capability 7.5 or later, got 7.0"

    @pytest.mark.parametrize("cuda", [True, False])
    def test_doctor_takes_a_missing_toolkit_for_a_fault_where_there_is_a_device(
        self, machine, nxcore_cupy_has, cuda, cuda_answers
    ):
        nxcore_cupy_has(_installed=lambda: ("cupy", "13.0.0"))
        cuda_answers(is_available=lambda: cuda)
        (check,) = nxcore_cupy.nxcore_doctor()
        assert (check.name, check.ok, check.detail) == ("cupy", not cuda, "cupy 13.0.0")
        assert check.fix.startswith("pip install 'cupy-cuda")


class TestRows:
    def test_they_are_the_cuda_plugins(self):
        for row, other in zip(nxcore_cupy.KERNELS, nxcore_cuda.KERNELS, strict=True):
            same = ("op", "dtypes", "deterministic", "graph_safe", "in_place_safe", "precision", "probe")
            assert [getattr(row, name) for name in same] == [getattr(other, name) for name in same]
            assert row.target == "nxcore_cupy.launch:plan"

    def test_cuda_tensors_are_asked_for_under_the_emulator_too(self, device):
        spec = SPECS["sum"]
        kernel = next(k for k in nxcore_cupy.KERNELS if k.op == "sum")
        problem = Problem.of(spec, spec.bind(torch.ones(3)))
        assert kernel.accepts(problem).reason == "needs CUDA tensors, got cpu"
        assert host.current() is None

    def test_a_device_is_asked_of_this_plugin(self, monkeypatch):
        x = TensorMeta((3,), (1,), torch.float32, torch.device("cuda", 3))
        problem = Problem.of(SPECS["sum"], SPECS["sum"].bind(x))
        mine = host.Host(lambda index: nxcore_cupy.no(f"not on {index}"), None)
        with hosted(mine):
            assert nxcore_cuda.accepts.sums(problem).reason == "not on 3"


class TestCompile:
    @pytest.fixture
    def folder(self, tmp_path):
        (tmp_path / "probe.cu").write_text(SOURCE.replace("SCALE", "2 *"))
        return tmp_path

    def test_kept_until_an_included_file_changes(self, build, folder, monkeypatch):
        text = Instance("probe").text
        first = build.compiled(text, (9, 0), "probe", folder)
        assert b"probe__plain" in first.read_bytes()
        with monkeypatch.context() as patch:
            patch.setattr(build, "_compile", None)
            assert build.compiled(text, (9, 0), "probe", folder) == first
        (folder / "probe.cu").write_text(SOURCE.replace("SCALE", "3 *"))
        assert build.compiled(text, (9, 0), "probe", folder) != first
        assert not list(first.parent.glob("making-*"))

    def test_subnormal_numbers_are_kept(self, build, folder, monkeypatch):
        monkeypatch.setattr(build, "target", lambda _: ("compute_90", "ptx"))
        ptx = build.compiled(Instance("probe").text, (9, 0), "probe", folder).read_text()
        assert "fma.rn.f32" in ptx
        assert ".ftz" not in ptx

    def test_what_does_not_compile(self, build, folder):
        (folder / "probe.cu").write_text(SOURCE)
        with pytest.raises(CompileError, match=r'(?s)^probe: NVRTC with -std=c\+\+17 .*"SCALE" is undefined'):
            build.compiled(Instance("probe").text, (9, 0), "probe", folder)
        assert not list(folder.rglob("probe-*"))

    def test_a_device_that_nvrtc_does_not_know(self, build, monkeypatch):
        monkeypatch.setattr(build.nvrtc, "getSupportedArchs", lambda: (75, 80, 90, 120))
        assert build.target((9, 0)) == ("sm_90", "cubin")
        assert build.target((10, 3)) == ("compute_90", "ptx")
        assert build.target((13, 0)) == ("compute_120", "ptx")
        with pytest.raises(CompileError, match="compiles for 75 and later, the device has 70"):
            build.target((7, 0))

    @for_each("source", sorted(path.stem for path in SOURCES.glob("*.cu")))
    def test_every_source(self, build, source, monkeypatch):
        monkeypatch.delenv("NXCORE_CUDA_CACHE")  # kept from another time where nothing changed
        instance = next((i for i in _instances() if i.source == source), None)
        assert instance, f"no planner's instances() has one of {source}.cu"
        assert instance.symbol.encode() in build.compiled(instance.text, (9, 0), instance.symbol).read_bytes()


def _instances():
    for kernel in nxcore_cuda.KERNELS:
        yield from importlib.import_module(kernel.target.partition(":")[0]).instances()


class RawModule:
    """Stands in for CuPy's, and for a kernel and its function: writes down what it is told."""

    limit = 49152

    def __init__(self, path):
        self.path, self.launches, self.limits = path, [], []

    def get_function(self, name):
        self.name = name
        self.kernel = self
        return self

    @property
    def max_dynamic_shared_size_bytes(self):
        return self.limits[-1] if self.limits else self.limit

    @max_dynamic_shared_size_bytes.setter
    def max_dynamic_shared_size_bytes(self, size):
        self.limits.append(size)

    def __call__(self, grid, block, args, shared_mem, stream):
        (arg,) = args
        assert isinstance(arg, np.ndarray)
        assert arg.size == 1
        self.launches.append((grid, block, shared_mem, stream.ptr, arg.tobytes()))


class TestLaunch:
    SHAPE, LAYOUT, VALUES = (9, 8, 7, 64, 2, 1), "qf", (2**40, 1.5)

    @pytest.fixture
    def module(self, cupy, monkeypatch, load_has, cuda_answers, tmp_path):
        """Return the module that launches, with a CUDA device to tell."""
        found = importlib.import_module("nxcore_cupy.launch")
        monkeypatch.setattr(cupy, "RawModule", RawModule)
        load_has(capability=lambda _: (9, 0))
        cuda_answers(device_count=lambda: 1)
        monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda i: STREAM + i, raising=False)
        monkeypatch.setattr(found, "_streams", {})
        self.texts = []

        def compiled(text, capability, what):
            self.texts.append(text)
            return tmp_path / f"{what}.{capability}"

        monkeypatch.setattr(found, "compiled", compiled)
        return found

    def handle(self, module, shared=0, pointers=2, index=0):
        instance, device = Instance("probe"), torch.device("cuda", index)
        return module.Handle(instance, device, self.SHAPE, shared, pointers, self.LAYOUT, self.VALUES)

    def test_what_cupy_is_told(self, module, tmp_path):
        x, y = torch.ones(3), torch.ones(3)
        launch = self.handle(module, shared=1024)
        assert launch(x, y) is None
        assert (launch.function.path, launch.function.name) == (
            str(tmp_path / "probe__plain.(9, 0)"),
            "probe__plain",
        )
        ((grid, block, shared, stream, args),) = launch.function.launches
        assert (grid, block, shared, stream) == ((9, 8, 7), (64, 2, 1), 1024, STREAM)
        assert len(args) == 32
        assert struct.unpack_from("@2Pqf", args) == (x.data_ptr(), y.data_ptr(), *self.VALUES)

    def test_a_struct_of_another_size_would_not_compile(self, module):
        self.handle(module)
        assert self.texts[0].endswith('static_assert(sizeof(probe_args) == 32, "as packed");\n')

    def test_none_is_a_null_pointer_and_a_tail_holds_for_one_call(self, module):
        x, launch = torch.ones(3), self.handle(module)
        launch(None, x, tail=(5, 2.5))
        launch(None, x)
        found = [struct.unpack_from("@2Pqf", args) for *_, args in launch.function.launches]
        assert found == [(0, x.data_ptr(), 5, 2.5), (0, x.data_ptr(), *self.VALUES)]

    def test_other_arguments(self, module):
        launch = self.handle(module)
        with pytest.raises(TypeError, match="probe__plain takes 2 tensors, got 1"):
            launch(torch.ones(3))
        with pytest.raises(struct.error):
            launch(torch.ones(3), None, tail=(1,))
        assert not launch.function.launches

    def test_more_shared_memory_is_asked_for_and_never_less(self, module, monkeypatch):
        assert self.handle(module, shared=49152).function.limits == []
        assert self.handle(module, shared=49153).function.limits == [49153]
        monkeypatch.setattr(RawModule, "limit", 100_000)  # as another handle asked for
        assert self.handle(module, shared=60_000).function.limits == []

    def test_the_stream_is_read_at_the_launch_and_made_once(self, module, monkeypatch):
        launch = self.handle(module)
        for pointer in (0, 0x70, 0, 0x70):
            monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda _, found=pointer: found)
            launch(None, None)
        assert [stream for *_, stream, _ in launch.function.launches] == [0, 0x70, 0, 0x70]
        assert sorted(module._streams) == [0, 0x70]

    def test_several_devices(self, module, cuda_answers):
        entered = []

        class Device:
            def __init__(self, index):
                self.index = index

            def __enter__(self):
                entered.append(self.index)

            def __exit__(self, *_):
                entered.append("left")

        cuda_answers(device_count=lambda: 2, device=Device)
        launch = self.handle(module, index=1)
        launch(None, None)
        assert entered == [1, "left"] * 2
        assert launch.function.launches[0][3] == STREAM + 1

    def test_a_plan_is_the_cuda_plugins_with_these_handles(self, module, monkeypatch, cuda_answers):
        from nxcore_cuda.machine.launch import Guarded, Launch

        cuda_answers(current_device=lambda: 0)

        def planner(problem):
            one, two = (
                Launch(Instance("probe"), CUDA, 4, pointers=1, layout="i", values=(n,)) for n in (1, 2)
            )
            return Guarded(one, two)

        monkeypatch.setitem(module.PLANNERS, "probe", SimpleNamespace(plan=planner))
        call, x = module.plan(SimpleNamespace(op="probe")), torch.ones(64)
        call(x), call(x[1:])
        assert host.current() is None
        for launch, number, start in ((call.vector, 1, x), (call.scalar, 2, x[1:])):
            ((grid, block, _, _, args),) = launch.function.launches
            assert (grid, block) == ((4, 1, 1), (256, 1, 1))
            assert struct.unpack_from("@Pi", args) == (start.data_ptr(), number)


def _there(value):
    """Describe what lies on the CPU as if it lay on a CUDA device."""
    if isinstance(value, TensorMeta):
        return dataclasses.replace(value, device=CUDA)
    return tuple(map(_there, value)) if isinstance(value, tuple) else value


@for_each("kernel", nxcore_cupy.KERNELS, ids=lambda kernel: kernel.op)
def test_plans_compile_and_pack_what_their_struct_holds(kernel, cupy, build, monkeypatch):
    """All of a plan but the GPU: NVRTC itself compares the size of the struct with what is packed."""
    monkeypatch.delenv("NXCORE_CUDA_CACHE")
    monkeypatch.setattr(cupy, "RawModule", RawModule)
    monkeypatch.setattr(load, "capability", lambda _: (9, 0))
    monkeypatch.setattr(separable, "memory", lambda _: separable.MOST)  # torch may be one without CUDA
    spec, planned = SPECS[kernel.op], 0
    for sample in spec.tagged("smoke"):
        problem = Problem.of(spec, sample.build(spec, "cpu", torch.float32))
        problem = dataclasses.replace(problem, args=_there(problem.args))
        if kernel.takes(problem):
            kernel.plan(problem)
            planned += 1
    assert planned


@pytest.mark.gpu
def test_a_struct_goes_by_value(build, monkeypatch, tmp_path):
    """CuPy gets the address of a numpy array of one element; the kernel sees what is in it."""
    module = importlib.import_module("nxcore_cupy.launch")
    (tmp_path / "probe.cu").write_text(SOURCE.replace("SCALE", "2 *"))
    monkeypatch.setattr(module, "compiled", functools.partial(build.compiled, folder=tmp_path))
    launch = module.Handle(Instance("probe"), CUDA, (1,) * 6, 0, 2, "qf", (0, 1.5))
    x, out = torch.ones(1, device=CUDA), torch.zeros(1, device=CUDA)
    for tail, wanted in ((None, 4.0), ((0, 2.5), 6.0)):
        launch(x, out, tail=tail)
        assert out.item() == wanted
