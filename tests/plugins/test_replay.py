"""Launches are repeated without the interpreter, and return the bits of the plan's own calls."""

import ctypes
import dataclasses
import importlib
import json
import os
import struct
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch

import nxcore
from nxcore.interop import native
from nxcore.ops import nxcore_ops
from nxcore.plugin import Problem
from nxcore.spec.planning import planning
from tests.table import for_each

EXTENSION = native.found().extension

if EXTENSION is None:
    pytest.skip(f"nxcore-native: {native.found().detail}", allow_module_level=True)

SPECS = {spec.name: spec for spec in nxcore_ops()}
PACKAGES = ("nxcore_cuda", "nxcore_triton", "nxcore_cupy")


def kernels(package):
    return {k.op: k for k in pytest.importorskip(package).KERNELS}


def flat(result):
    if isinstance(result, (tuple, list)):
        return [t for part in result for t in flat(part)]
    return [] if result is None else [result]


def same(got, want):
    assert type(got) is type(want)
    for a, b in zip(flat(got), flat(want), strict=True):
        assert (a.dtype, a.shape, a.stride()) == (b.dtype, b.shape, b.stride())
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)


CASES = [
    pytest.param(op, dtype, id=f"{op}-{dtype}")
    for op, kernel in sorted(kernels("nxcore_cuda").items())
    for dtype in (torch.float32, torch.bfloat16)
    if dtype in kernel.dtypes
]


def emulated():
    toolkit = importlib.import_module("nxcore_cuda.machine.toolkit")
    return toolkit.EMULATED


class TestCuda:
    @for_each(("op", "dtype"), CASES)
    def test_the_emulator_gets_the_same_launches(self, op, dtype):
        if not emulated():
            pytest.skip("NXCORE_CUDA_EMULATOR=1 was not set")
        kernel, spec, repeated = kernels("nxcore_cuda")[op], SPECS[op], 0
        for sample in spec.tagged("smoke"):
            args = sample.build(spec, "cpu", dtype)
            problem = Problem.of(spec, args)
            if not kernel.takes(problem):
                continue
            made, want = kernel.plan(problem), kernel.planner(problem)(*args)
            for _ in range(2):
                same(made(*args), want)
            if not kernel.graph_safe:  # it isn't recorded
                return
            repeated += made.programs()
        assert repeated

    def test_threads_of_the_program_share_a_plan(self):
        if not emulated():
            pytest.skip("NXCORE_CUDA_EMULATOR=1 was not set")
        args = SPECS["max_pool2d"].bind(torch.randn(2, 3, 8, 8), 3, 1, 1)
        problem = Problem.of(SPECS["max_pool2d"], args)
        kernel = kernels("nxcore_cuda")["max_pool2d"]
        made, want = kernel.plan(problem), kernel.planner(problem)(*args)

        def work(_):
            assert all(torch.equal(made(*args), want) for _ in range(20))

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(work, range(4)))


class TestPrinted:
    """Kernels that are printed of an expression are repeated as those in files are."""

    TEXT = "relu(x) * y + slope * y"

    def printed(self, package, device):
        module = pytest.importorskip(package)
        if not (able := module.probe()):
            pytest.skip(f"{package}: {able.reason}")
        spec = nxcore.pointwise(self.TEXT, slope=0.5).spec
        args = spec.bind(*torch.randn(2, 3, 1000, device=device).unbind())
        return module.PRINTERS[0], Problem.of(spec, args), args

    def held(self, printer, problem, args):
        made = printer.plan(problem)
        for slope in (0.5, 0.5, 0.25, 0.5):
            given = (*args[:2], slope, *args[3:])
            same(made(*given), printer.planner(problem)(*given))
        assert made.programs() == 2, "one for each number"

    @pytest.mark.parametrize("package", ["nxcore_numba", "nxcore_cuda"])
    def test_on_the_cpu(self, package):
        if package == "nxcore_cuda" and not emulated():
            pytest.skip("NXCORE_CUDA_EMULATOR=1 was not set")
        self.held(*self.printed(package, "cpu"))

    @pytest.mark.gpu
    @pytest.mark.parametrize("package", PACKAGES)
    def test_on_a_gpu(self, package):
        self.held(*self.printed(package, "cuda"))


@pytest.mark.gpu
@pytest.mark.parametrize("package", PACKAGES)
class TestOnAGpu:
    def plan(self, package, op, *args, **kwargs):
        spec, kernel = SPECS[op], kernels(package)[op]
        if not (able := importlib.import_module(package).probe()):
            pytest.skip(f"{package}: {able.reason}")
        bound = spec.bind(*args, **kwargs)
        problem = Problem.of(spec, bound)
        assert kernel.takes(problem), kernel.takes(problem).reason
        return kernel.plan(problem), kernel.planner(problem), bound

    @for_each(("op", "dtype"), CASES)
    def test_every_kernel_returns_the_bits_of_its_plan(self, package, op, dtype):
        spec, repeated, met = SPECS[op], 0, 0
        if not (able := importlib.import_module(package).probe()):
            pytest.skip(f"{package}: {able.reason}")
        if (kernel := kernels(package).get(op)) is None:
            pytest.skip(f"{package} has no kernel of {op}")
        for sample in spec.tagged("smoke"):
            args = sample.build(spec, "cuda", dtype)
            problem = Problem.of(spec, args)
            if not kernel.takes(problem):
                continue
            met += 1
            made, want = kernel.plan(problem), kernel.planner(problem)(*args)
            for _ in range(3):
                same(made(*args), want)
            repeated += made.programs()
        assert repeated or not met

    def test_it_launches_on_the_current_stream(self, package):
        x, y = torch.randn(2, 1 << 20, device="cuda").unbind()
        made, _, args = self.plan(package, "add", x, y)
        made(*args)
        assert made.programs() == 1
        one, other, default = torch.cuda.Stream(), torch.cuda.Stream(), torch.cuda.default_stream()
        external = torch.cuda.ExternalStream(other.cuda_stream)
        for side in (one, one, other, default, one, external, default, other):
            torch.cuda.synchronize()
            with torch.cuda.stream(side):
                torch.cuda._sleep(20_000_000)
                x.add_(1)
                got = made(*args)
            side.synchronize()
            assert torch.equal(got, x + y)

    def test_a_capture_replays_it(self, package):
        x = torch.randn(64, 64, 8, 8, device="cuda")
        made, call, args = self.plan(package, "sum", x, (0, 2, 3))
        made(*args)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = made(*args)
        for _ in range(3):
            x.add_(1)
            graph.replay()
            assert torch.equal(out, call(*args))

    def test_tickets_are_put_back(self, package):
        x = torch.randn(1 << 20, device="cuda")
        made, call, args = self.plan(package, "sum", x)
        want = call(*args)
        assert all(torch.equal(made(*args), want) for _ in range(100))

    def test_a_new_thread_and_the_engines(self, package):
        x, y = torch.randn(2, 4096, device="cuda").unbind()
        made, _, args = self.plan(package, "add", x, y)
        made(*args)
        found = []
        thread = threading.Thread(target=lambda: found.append(made(*args)))
        thread.start()
        thread.join()
        assert torch.equal(found[0], x + y)

    def test_another_device(self, package):
        if torch.cuda.device_count() < 2:
            pytest.skip("one device")
        x, y = torch.randn(2, 4096, device="cuda:1").unbind()
        made, _, args = self.plan(package, "add", x, y)
        for _ in range(3):
            assert torch.equal(made(*args), x + y)
        assert torch.cuda.current_device() == 0


class TestTriton:
    """Parameters are packed as Triton's own launcher packs them; the kernel says how many there are."""

    def test_parameters(self):
        launch = pytest.importorskip("nxcore_triton.replay")
        x, y = torch.ones(4), torch.ones(4)
        signature = {
            "x": "*fp32",
            "pair": ("*fp32", "i64"),
            "n": "i32",
            "one": "constexpr",
            "a": "fp32",
            "B": "constexpr",
        }
        about = SimpleNamespace(num_warps=8, shared=512, num_ctas=1, launch_pdl=False)
        compiled = SimpleNamespace(metadata=about, src=SimpleNamespace(signature=signature), function=77)
        found = launch.launched(compiled, (3, 2, 1), (x, (y, 2**40), 6, 1, 0.5, 128))
        assert (found.function, found.shape) == (77, (3, 2, 1, 256, 1, 1, 512))
        assert found.pointers == ((0, x.data_ptr()), (8, y.data_ptr()))
        assert found.parameters == tuple(range(0, 56, 8))
        assert int.from_bytes(found.block[16:24], "little") == 2**40
        assert int.from_bytes(found.block[24:28], "little") == 6
        assert ctypes.c_float.from_buffer_copy(found.block, 32).value == 0.5
        assert not any(found.block[40:])

    @pytest.mark.slow
    def test_compiled_kernels_take_the_parameters_that_are_packed(self):
        pytest.importorskip("triton")
        script = Path(__file__).with_name("triton_parameters.py")
        env = os.environ | {"TRITON_INTERPRET": "0"}
        done = subprocess.run(
            [sys.executable, str(script)], capture_output=True, text=True, check=False, env=env, timeout=300
        )
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        assert found
        for compiled, packed, count in found:
            assert compiled == [*packed, 8, 8], "and two pointers to scratch memory"
            assert count == len(compiled)

    @pytest.mark.parametrize("odd", ["num_ctas", "global_scratch_size", "profile_scratch_size", "launch_pdl"])
    def test_a_launch_of_another_kind_is_refused(self, odd):
        launch = pytest.importorskip("nxcore_triton.replay")
        about = SimpleNamespace(**{"num_warps": 4, "shared": 0, odd: 2})
        compiled = SimpleNamespace(metadata=about, src=SimpleNamespace(signature={}), function=1)
        with pytest.raises(ValueError, match=odd):
            launch.launched(compiled, (1, 1, 1), ())


class TestCupy:
    """CuPy compiles and loads; what it loaded is noted with the struct that nxcore-cuda packs."""

    @pytest.fixture
    def module(self, monkeypatch, cuda_answers):
        """Return the module that launches, beside a CuPy that loads nothing."""
        pytest.importorskip("nxcore_cupy")

        def get_function(_):
            return SimpleNamespace(kernel=SimpleNamespace(ptr=0x5000), max_dynamic_shared_size_bytes=49152)

        cupy, cuda, nvrtc = (ModuleType(name) for name in ("cupy", "cupy.cuda", "cupy.cuda.nvrtc"))
        cupy.cuda, cuda.nvrtc = cuda, nvrtc
        cupy.RawModule = lambda path: SimpleNamespace(get_function=get_function)
        for made in (cupy, cuda, nvrtc):
            monkeypatch.setitem(sys.modules, made.__name__, made)
        for name in ("compile", "launch"):
            monkeypatch.delitem(sys.modules, f"nxcore_cupy.{name}", raising=False)
        found = importlib.import_module("nxcore_cupy.launch")
        monkeypatch.setattr(found, "compiled", lambda text, capability, what: f"{what}.cubin")
        load = found.load
        monkeypatch.setattr(load, "capability", lambda _: (9, 0))
        monkeypatch.setattr(load, "context", lambda index: 0x7000 + index)
        cuda_answers(device_count=lambda: 1)
        yield found
        for name in ("compile", "launch"):
            monkeypatch.delitem(sys.modules, f"nxcore_cupy.{name}", raising=False)

    def test_an_expression_is_planned_again_by_cudas_printer(self, module, monkeypatch):
        seen = []
        monkeypatch.setattr(module, "replay", lambda kernel, *_, **__: seen.append(kernel.op))
        printer = importlib.import_module("nxcore_cupy").PRINTERS[0]
        module.again(dataclasses.replace(printer, op="pointwise_0123"), None)
        module.again(kernels("nxcore_cupy")["sum"], None)
        assert seen == ["pointwise", "sum"]

    def test_a_launch_is_noted(self, module):
        instance = importlib.import_module("nxcore_cuda.machine.instance").Instance("probe")
        noted = importlib.import_module("nxcore_cuda.machine.replay").Noted
        shape, device = (9, 8, 7, 64, 2, 1), torch.device("cuda", 1)
        launch = noted(*module._bound(instance, device, shape, 1024, 2, "qf", (2**40, 1.5)))
        x, notes = torch.ones(4), []
        with planning(noted=notes):
            launch(x, None)
            launch(None, x, tail=(5, 2.5))
        first, second = notes
        assert (first.function, first.context, first.shape) == (0x5000, 0x7001, (*shape, 1024))
        assert struct.unpack("@2Pqf0q", first.block) == (0, 0, 2**40, 1.5)
        assert struct.unpack("@2Pqf0q", second.block)[2:] == (5, 2.5)
        assert (first.pointers, second.pointers) == (((0, x.data_ptr()),), ((8, x.data_ptr()),))
        assert first.parameters == (0,)
