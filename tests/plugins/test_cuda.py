"""The CUDA plugin's host side; that its kernels are right is the conformance suite's business."""

import functools
import json
import os
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from tests import fresh
from tests.stand_ins import stand_in

nxcore_cuda = pytest.importorskip("nxcore_cuda")

from nxcore_cuda import accepts  # noqa: E402
from nxcore_cuda.emulator import emulate  # noqa: E402
from nxcore_cuda.machine import compile, load, toolkit  # noqa: A004, E402
from nxcore_cuda.machine.instance import Instance, unit  # noqa: E402

compile_has = stand_in(compile)
toolkit_has = stand_in(toolkit)
accepts_has = stand_in(accepts)
torch_version_has = stand_in(torch.version)
load_has = stand_in(load)
CPU = torch.device("cpu")
needs_compiler = pytest.mark.skipif(toolkit.host_compiler() is None, reason="no C++ compiler on PATH")

SOURCE = """
#pragma once
#include "element.cuh"
struct probe_args { const float* x; float* out; long long n; float scale; };

template <int STEP> __device__ void pairs(const probe_args& a) {
  float x = a.x[threadIdx.x];
  a.out[threadIdx.x] = x + a.scale * __shfl_xor_sync(ALL_LANES, x, STEP);
}
template <int THREADS> __device__ void total(const probe_args& a) {
  float sum = 0;
  for (long long i = threadIdx.x; i < a.n; i += THREADS) sum += a.x[i];
  sum = block_sum<THREADS>(sum);
  if (threadIdx.x == 0) a.out[blockIdx.x] = sum;
}
template <int THREADS> __device__ void reverse(const probe_args& a) {
  __shared__ float fixed[THREADS];
  float* given = dynamic_shared<float>();
  fixed[threadIdx.x] = a.x[threadIdx.x];
  __syncthreads();
  given[threadIdx.x] = fixed[THREADS - 1 - threadIdx.x];
  __syncthreads();
  a.out[threadIdx.x] = given[threadIdx.x];
}
__device__ void where(const probe_args& a) {
  int at = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * (threadIdx.z + blockDim.z *
           (blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z))));
  a.out[at] = at;
}
__device__ void early(const probe_args& a) {
  if (threadIdx.x >= 40) return;
  __shared__ float x[256];
  x[threadIdx.x] = a.x[threadIdx.x];
  __syncthreads();
  a.out[threadIdx.x] = x[39 - threadIdx.x];
}
__device__ void last(const probe_args& a) {
  __shared__ bool is_last;
  if (threadIdx.x == 0) is_last = atomicInc((unsigned*)a.out, gridDim.x - 1) == gridDim.x - 1;
  __syncthreads();
  if (is_last && threadIdx.x == 0) a.out[1] = blockIdx.x;
}
__device__ void half_shuffle(const probe_args& a) {
  if (threadIdx.x < 16) a.out[threadIdx.x] = __shfl_xor_sync(ALL_LANES, a.x[threadIdx.x], 1);
}
__device__ void split(const probe_args& a) {
  if (threadIdx.x < 32) __syncthreads(); else a.out[threadIdx.x] = warp_sum(a.x[threadIdx.x / 2 * 2]);
  if (threadIdx.x == 0) __syncwarp();
}
__device__ void stale(const probe_args& a) {
  __shared__ float x[32];
  float* y = dynamic_shared<float>();
  a.out[threadIdx.x] = blockIdx.x ? x[threadIdx.x] + y[threadIdx.x] : 0.0f;
  x[threadIdx.x] = y[threadIdx.x] = 1;
}
__device__ void misaligned(const probe_args& a) { store<4>(a.out, load<4>(a.x + 1)); }
__device__ void deep(const probe_args& a) {
  volatile float much[16384];
  for (int i = 16383; i >= 0; --i) much[i] = a.x[0];
  a.out[0] = much[7];
}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    found = tmp_path_factory.mktemp("sources")
    (found / "probe.cu").write_text(SOURCE)
    return found


@pytest.fixture
def launch(monkeypatch, folder):
    """Return a function that runs one of the kernels above."""
    monkeypatch.setattr(emulate, "emulated", functools.partial(compile.emulated, folder=folder))

    def run(entry, arguments, x, out, *, grid=(1, 1, 1), block=(256, 1, 1), shared=0, n=0, scale=1.0):
        instance = Instance(entry, arguments, source="probe", args="probe_args")
        handle = emulate.EmulatedHandle(instance, (*grid, *block), shared, 2, "qf", (n, scale))
        handle(x, out)
        return out

    return run


class TestInstance:
    def test_text(self):
        instance = Instance("add", ("float", 4, True), threads=128, blocks=4)
        assert instance.symbol == "add__float_4_true__t128__b4"
        assert instance.text == (
            '#include "add.cu"\n'
            'extern "C" __global__ void __launch_bounds__(128, 4) add__float_4_true__t128__b4'
            "(const __grid_constant__ add_args a) { add<float, 4, true>(a); }\n"
        )

    def test_no_template(self):
        instance = Instance("finish", source="sum", args="sum_args<2>")
        assert instance.symbol == "finish__plain__sum_args_2"
        assert "sum_args<2> a) { finish(a); }" in instance.text

    def test_every_field_makes_another_symbol(self):
        base = {"entry": "f", "arguments": ("float", 1)}
        others = ({}, {"threads": 128}, {"blocks": 2}, {"args": "f_args<1>"}, {"arguments": ("float", -1)})
        symbols = {Instance(**base | other).symbol for other in others}
        assert len(symbols) == len(others)
        assert all(symbol.isidentifier() for symbol in symbols)

    def test_a_unit_holds_each_once(self):
        one, two = Instance("f", (1,)), Instance("f", (2,))
        assert unit([one, two, one]).count("extern") == 2
        assert unit([one, two]).count("#include") == 1

    def test_arguments_are_a_tuple(self):
        with pytest.raises(TypeError, match="needs a tuple of template arguments, got str"):
            Instance("f", "float")


@needs_compiler
class TestEmulator:
    def test_shuffle(self, launch):
        x = torch.arange(64.0)
        out = launch("pairs", (8,), x, torch.empty(64), block=(64, 1, 1), scale=2.0)
        assert torch.equal(out, x + 2 * x[torch.arange(64) ^ 8])

    @pytest.mark.parametrize("threads", [32, 256, 1024])
    def test_block_sum(self, launch, threads):
        x = torch.randn(2000, generator=torch.Generator().manual_seed(0))
        instance = ("total", (threads,), x, torch.empty(3))
        out = launch(*instance, grid=(3, 1, 1), block=(threads, 1, 1), n=2000)
        torch.testing.assert_close(out, x.double().sum().float().expand(3))

    def test_shared_memory(self, launch):
        x = torch.randn(256)
        out = launch("reverse", (256,), x, torch.empty(256), shared=1024)
        assert torch.equal(out, x.flip(0))

    def test_indices(self, launch):
        out = launch("where", (), None, torch.empty(2 * 3 * 4 * 5 * 2 * 3), grid=(2, 3, 4), block=(5, 2, 3))
        assert torch.equal(out, torch.arange(720.0))

    def test_threads_that_returned_count_as_arrived(self, launch):
        x = torch.randn(256)
        assert torch.equal(launch("early", (), x, torch.zeros(256))[:40], x[:40].flip(0))

    def test_last_block_to_arrive(self, launch):
        out = torch.zeros(2)
        launch("last", (), None, out, grid=(5, 1, 1))
        assert out.tolist() == [0, 4]

    def test_nan_stays(self, launch):
        x = torch.tensor([float("nan"), float("inf"), 1.0, -float("inf")]).repeat(8)
        out = launch("pairs", (1,), x, torch.empty(32), block=(32, 1, 1))
        torch.testing.assert_close(out, x + x[torch.arange(32) ^ 1], equal_nan=True)

    def test_shared_memory_starts_as_nan(self, launch):
        out = launch("stale", (), None, torch.zeros(32), grid=(2, 1, 1), block=(32, 1, 1), shared=128)
        assert out.isnan().all()

    @pytest.mark.parametrize(
        ("entry", "message"),
        [
            (
                "half_shuffle",
                r"deadlock: 16 of its threads wait in a shuffle \(the first is thread 0\), 240 of",
            ),
            ("split", r"deadlock: 1 of its threads wait in __syncwarp \(the first is thread 0\), 255 of"),
            ("misaligned", r"block \(0, 0, 0\), thread 0: a vector of 16 bytes at the misaligned address"),
            ("deep", r"thread 0: needs more than 65536 bytes of stack"),
        ],
    )
    def test_what_a_gpu_would_hang_or_break_on(self, launch, entry, message):
        with pytest.raises(emulate.EmulatorError, match=message):
            launch(entry, (), torch.zeros(512), torch.zeros(512))
        assert launch("pairs", (1,), torch.ones(32), torch.empty(32), block=(32, 1, 1)).eq(2).all()

    def test_arguments_of_another_size(self, launch, folder):
        instance = Instance("pairs", (1,), source="probe", args="probe_args")
        handle = emulate.EmulatedHandle(instance, (1,) * 6, 0, 2, "qfq", (1, 1.0, 1))
        with pytest.raises(emulate.EmulatorError, match="its arguments have 32 bytes, got 40"):
            handle(torch.ones(1), torch.ones(1))

    def test_threads_take_turns(self, launch):
        x, outs = torch.randn(256), [torch.empty(256) for _ in range(4)]

        def work(out):
            for _ in range(20):
                launch("reverse", (256,), x, out.fill_(0), shared=1024)

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(work, outs))
        assert all(torch.equal(out, x.flip(0)) for out in outs)


class TestCache:
    @pytest.fixture(autouse=True)
    def elsewhere(self, monkeypatch, tmp_path):
        monkeypatch.setenv("NXCORE_CUDA_CACHE", str(tmp_path / "cache"))

    def make(self, tmp_path, script):
        """Run a stand-in for a compiler: ``script`` sees the output's path as $out."""
        tool = tmp_path / "compiler"
        tool.write_text(f"#!/bin/sh\nout=$2\n{script}\n")
        tool.chmod(0o755)
        return compile.kept(toolkit.cache_folder() / "made", "a kernel", [tool], "the text", ".cu")

    def test_kept_from_another_time(self, tmp_path):
        first = self.make(tmp_path, 'cp "$3" "$out"; echo x >> "$0.count"')
        assert first.read_text() == "the text"
        assert self.make(tmp_path, "exit 1") == first
        assert {path.name for path in first.parent.iterdir()} == {first.name, "made.json"}

    def test_the_file_appears_whole(self, tmp_path):
        script = f'echo part > "$out"; ls {toolkit.cache_folder()} > {tmp_path}/seen; echo all > "$out"'
        assert self.make(tmp_path, script).read_text() == "all\n"
        assert "made\n" not in (tmp_path / "seen").read_text()

    def test_a_failing_compiler(self, tmp_path):
        with pytest.raises(compile.CompileError, match=r"a kernel: .*\nended with status 3:\n") as e:
            self.make(tmp_path, 'for i in $(seq 100); do echo "line $i"; done; exit 3')
        assert str(e.value).endswith("line 100")
        assert "line 70\n" not in str(e.value)
        assert not list(toolkit.cache_folder().iterdir())

    def test_what_is_included_is_part_of_the_name(self, tmp_path):
        (tmp_path / "a.cu").write_text('#include "b.cuh"\n')
        (tmp_path / "b.cuh").write_text("int b;\n")
        (tmp_path / "other.cu").write_text("int c;\n")
        text = '#include "a.cu"\n'
        assert set(compile.included(text, tmp_path)) == {"a.cu", "b.cuh"}
        before = compile.sources_digest(text, tmp_path)
        (tmp_path / "other.cu").write_text("int d;\n")
        assert compile.sources_digest(text, tmp_path) == before
        (tmp_path / "b.cuh").write_text("int d;\n")
        assert compile.sources_digest(text, tmp_path) != before

    def test_folder(self, monkeypatch, tmp_path):
        assert toolkit.cache_folder() == tmp_path / "cache"
        monkeypatch.delenv("NXCORE_CUDA_CACHE")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
        assert toolkit.cache_folder() == tmp_path / "xdg" / "nxcore" / "cuda"
        monkeypatch.delenv("XDG_CACHE_HOME")
        monkeypatch.setenv("HOME", str(tmp_path))
        assert toolkit.cache_folder() == tmp_path / ".cache" / "nxcore" / "cuda"

    def test_an_image_of_the_wheel_comes_first(self, compile_has, toolkit_has, tmp_path, folder):
        compile_has(IMAGES=tmp_path)
        toolkit_has(nvcc=lambda: None)
        source = {"archs": ["sm_80", "compute_80"], "symbols": ["add__float_4"], "source": "add"}
        index = {
            "fresh.fatbin": source | {"digest": compile.sources_digest('#include "add.cu"\n')},
            "stale.fatbin": source | {"digest": "of other sources", "archs": ["sm_75"]},
        }
        (tmp_path / "index.json").write_text(json.dumps(index))
        (tmp_path / "fresh.fatbin").write_bytes(b"image")
        compile_has(shipped=functools.cache(compile.shipped.__wrapped__))
        assert compile.image(Instance("add", ("float", 4)), (9, 0)) == b"image"
        for other in (Instance("add", ("float", 2)), (7, 5)), (Instance("add", ("float", 4)), (7, 5)):
            with pytest.raises(compile.CompileError, match="no image of it is in the wheel, and no nvcc is"):
                compile.image(*other)


class TestToolkit:
    @pytest.mark.parametrize(
        ("archs", "capability", "runs"),
        [
            (["sm_80"], (8, 6), True),  # a cubin runs on later minor versions of its major one
            (["sm_86"], (8, 0), False),
            (["sm_80"], (9, 0), False),
            (["sm_80", "compute_80"], (12, 0), True),
            (["sm_100"], (10, 3), True),
            (["compute_100"], (9, 0), False),
            ([], (9, 0), False),
        ],
    )
    def test_which_devices_an_image_runs_on(self, archs, capability, runs):
        assert toolkit.runs_on(archs, capability) is runs

    def test_target(self, toolkit_has):
        toolkit_has(architectures=lambda _: ((7, 5), (8, 0), (9, 0)))
        assert toolkit.target("nvcc", (9, 0)) == ("sm_90", "cubin")
        assert toolkit.target("nvcc", (12, 0)) == ("compute_90", "ptx")
        with pytest.raises(RuntimeError, match=r"compiles for capability 7.5 and later, the device has 7.0"):
            toolkit.target("nvcc", (7, 0))

    def test_nvcc_in_cuda_home(self, monkeypatch, tmp_path):
        tool = tmp_path / "bin" / "nvcc"
        tool.parent.mkdir()
        tool.write_text("")
        tool.chmod(0o755)
        monkeypatch.setenv("PATH", "")
        monkeypatch.setenv("CUDA_HOME", str(tmp_path))
        assert toolkit.nvcc() == str(tool)


class TestMachine:
    @pytest.fixture(autouse=True)
    def ask_again(self, accepts_has, toolkit_has):
        accepts_has(device=functools.cache(accepts.device.__wrapped__))
        toolkit_has(EMULATED=False)

    @pytest.fixture
    def gpu(self, load_has, torch_version_has, cuda_answers):
        """Pretend that there is one GPU, of a capability that a test may change."""
        torch_version_has(hip=None)
        cuda_answers(is_available=lambda: True, device_count=lambda: 1)
        load_has(capability=lambda _: (9, 0))

    def test_importing_the_plugin_loads_no_driver_and_runs_no_compiler(self):
        code = (
            "import sys, subprocess; subprocess.Popen = None\n"
            "import nxcore_cuda as n; n.nxcore_backend(); n.probe()\n"
            "of = ('machine.launch', 'machine.native', 'emulator.emulate')\n"
            "loaded = any(f'nxcore_cuda.{m}' in sys.modules for m in of)\n"
            "sys.exit(loaded or n.machine.load.driver.cache_info().currsize)"
        )
        environment = os.environ | {"NXCORE_CUDA_EMULATOR": "1"}
        assert fresh.run("-c", code, env=environment).returncode == 0

    def test_emulator(self, toolkit_has):
        toolkit_has(EMULATED=True, host_compiler=lambda: "/usr/bin/g++")
        assert accepts.probe().simulated
        toolkit_has(host_compiler=lambda: None)
        assert accepts.probe().reason.endswith("needs a C++ compiler, and neither g++ nor c++ is on PATH")

    def test_no_device(self, cuda_answers):
        cuda_answers(is_available=lambda: False)
        assert accepts.probe().reason == "torch sees no CUDA device"
        assert "NXCORE_CUDA_EMULATOR=1" in accepts.probe().hint

    def test_rocm(self, torch_version_has):
        torch_version_has(hip="6.4")
        assert accepts.probe().reason == "torch was built for ROCm, and these kernels are CUDA"

    def test_old_device(self, gpu, load_has):
        load_has(capability=lambda _: (7, 0))
        assert accepts.probe().reason == "needs a device of capability 7.5 or later, got 7.0"

    def test_no_driver(self, gpu, load_has):
        def broken(_):
            raise OSError("libcuda.so.1: cannot open shared object file")

        load_has(capability=broken)
        assert accepts.probe().reason.startswith("the CUDA driver can't be used: libcuda.so.1")

    def test_neither_image_nor_nvcc(self, gpu, accepts_has, toolkit_has):
        toolkit_has(nvcc=lambda: None)
        accepts_has(shipped=lambda: {"a": {"archs": ["sm_80"], "symbols": []}})
        verdict = accepts.probe()
        assert verdict.reason.startswith("the wheel has no image for capability 9.0, and no nvcc is on PATH")
        assert "pip install 'nvidia-cuda-nvcc==13.0.*'" in verdict.hint

    def test_an_image_or_nvcc(self, gpu, accepts_has, toolkit_has):
        toolkit_has(nvcc=lambda: None)
        accepts_has(shipped=lambda: {"a": {"archs": ["compute_80"], "symbols": []}})
        assert accepts.probe()
        accepts.device.cache_clear()
        toolkit_has(nvcc=lambda: "/usr/bin/nvcc")
        accepts_has(shipped=dict)
        assert accepts.probe()

    def test_doctor(self, toolkit_has):
        toolkit_has(EMULATED=True)
        assert [check.name for check in nxcore_cuda.nxcore_doctor()][:1] == ["cuda device"]


def test_the_backend_tells_its_compiler():
    """A verdict is kept by it."""
    backend = nxcore_cuda.nxcore_backend()
    assert backend.toolkit is not None
    told = backend.toolkit()
    found = toolkit.host_compiler() if toolkit.EMULATED else toolkit.nvcc()
    assert told == ({"compiler": toolkit.version(found)} if found else {})
