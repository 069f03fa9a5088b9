"""Host time of one launch: this repository's launchers and those of other packages, on one small add.

    python benchmarks/launch.py [--json] [--elements 1024]

Each launcher adds two tensors into a third that is allocated before (unless its name says another way), reads
torch's current stream at each call, and is checked once. A figure is the median over rounds of the mean
microseconds of 200 back-to-back calls without a synchronisation, minus the time of an empty loop. The kernel
must be shorter than the launch, or the length of the queue would be measured.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import importlib
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from nxcore.store.encoding import encoded

CALLS, ROUNDS, WARM = 200, 51, 5
PACKAGES = (
    "torch",
    "triton",
    "cuda-core",
    "cuda-bindings",
    "cupy-cuda13x",
    "cupy-cuda12x",
    "apache-tvm-ffi",
)
SOURCE = """
struct add_args { const float* x; const float* y; float* out; long long n; };
template <int THREADS> __device__ void add(const add_args& a) {
  long long i = blockIdx.x * (long long)THREADS + threadIdx.x;
  if (i < a.n) a.out[i] = a.x[i] + a.y[i];
}
"""
PLAIN = """
extern "C" __global__ void add_plain(const float* x, const float* y, float* out, long long n) {
  long long i = blockIdx.x * 256ll + threadIdx.x;
  if (i < n) out[i] = x[i] + y[i];
}
"""
FFI = """
#include <tvm/ffi/extra/c_env_api.h>
void add_ffi(tvm::ffi::TensorView x, tvm::ffi::TensorView y, tvm::ffi::TensorView out) {
  long long n = x.size(0);
  DLDevice device = x.device();
  cudaStream_t stream = static_cast<cudaStream_t>(TVMFFIEnvGetStream(device.device_type, device.device_id));
  add_plain<<<(n + 255) / 256, 256, 0, stream>>>(static_cast<float*>(x.data_ptr()),
      static_cast<float*>(y.data_ptr()), static_cast<float*>(out.data_ptr()), n);
}
"""
Call = Callable[[], Any]


class Bench:
    """The tensors, and an image of the kernel."""

    def __init__(self, elements: int) -> None:
        self.x, self.y = torch.randn(elements, device="cuda"), torch.randn(elements, device="cuda")
        self.out = torch.empty_like(self.x)
        self.n, self.index = elements, torch.cuda.current_device()
        self.grid = (-(-elements // 256), 1, 1)
        # As the launchers here read it; torch.cuda.current_stream() costs several times as much.
        self.raw_stream = functools.partial(torch._C._cuda_getCurrentRawStream, self.index)  # noqa: SLF001

    @property
    def pointers(self) -> tuple[int, int, int]:
        return self.x.data_ptr(), self.y.data_ptr(), self.out.data_ptr()

    @functools.cached_property
    def cubin(self) -> bytes:
        from nxcore_cuda.machine.compile import compiled

        return compiled(PLAIN, torch.cuda.get_device_capability(self.index), "add_plain")

    @functools.cached_property
    def prepared(self) -> tuple[Any, ...]:
        """The parts of a handle of nxcore-cuda."""
        from nxcore_cuda.machine import load, native
        from nxcore_cuda.machine.compile import compiled
        from nxcore_cuda.machine.instance import Instance

        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "add.cu").write_text("#pragma once\n" + SOURCE)
            make = functools.partial(compiled, folder=Path(folder))
            original, load.image = load.image, lambda i, capability: make(i.text, capability, i.symbol)
            try:
                shape = (*self.grid, 256, 1, 1)
                device = torch.device("cuda", self.index)
                return native.prepare(Instance("add", (256,)), device, shape, 0, 3, "q", (self.n,))
            finally:
                load.image = original


def torch_add(bench: Bench) -> Call:
    return lambda: torch.add(bench.x, bench.y, out=bench.out)


def torch_add_allocating(bench: Bench) -> Call:
    def call() -> None:
        bench.out = torch.add(bench.x, bench.y)

    return call


def _built() -> Any:
    from nxcore_cuda.machine import native

    if native.built is None:
        raise RuntimeError(native.launcher)
    return native.built


def ours_c(bench: Bench) -> Call:
    launch = _built().Handle(*bench.prepared)
    x, y, out = bench.x, bench.y, bench.out
    return lambda: launch(x, y, out)


def ours_c_guarded(bench: Bench) -> Call:
    one = _built().Handle(*bench.prepared)
    launch = _built().Guarded(one, one)
    x, y, out = bench.x, bench.y, bench.out
    return lambda: launch(x, y, out)


def ours_c_allocating(bench: Bench) -> Call:
    launch = _built().Handle(*bench.prepared)
    x, y = bench.x, bench.y

    def call() -> None:
        bench.out = out = torch.empty_like(x)
        launch(x, y, out)

    return call


def ours_ctypes(bench: Bench) -> Call:
    from nxcore_cuda.machine.handle import CtypesHandle

    launch = CtypesHandle(*bench.prepared)
    x, y, out = bench.x, bench.y, bench.out
    return lambda: launch(x, y, out)


def plan_of_add(package: str, bench: Bench) -> Call:
    import nxcore.ops
    from nxcore.plugin import Problem

    spec = next(spec for spec in nxcore.ops.nxcore_ops() if spec.name == "add")
    kernel = next(kernel for kernel in importlib.import_module(package).KERNELS if kernel.op == "add")
    bound = spec.bind(bench.x, bench.y)
    problem = Problem.of(spec, bound)
    if not (verdict := kernel.takes(problem)):
        raise RuntimeError(verdict.reason)
    planned = kernel.plan(problem)

    def call() -> None:
        bench.out = planned(*bound)

    return call


def cuda_core(bench: Bench) -> Call:
    try:
        core = importlib.import_module("cuda.core")
        core.ObjectCode  # noqa: B018  before 0.5, all of it was experimental
    except (ImportError, AttributeError):
        core = importlib.import_module("cuda.core.experimental")
    core.Device(bench.index).set_current()
    kernel = core.ObjectCode.from_cubin(bench.cubin).get_kernel("add_plain")
    config = core.LaunchConfig(grid=bench.grid, block=(256, 1, 1))
    streams = {raw: core.Stream.from_handle(raw) for raw in (bench.raw_stream(),)}
    launch, raw_stream, n = core.launch, bench.raw_stream, ctypes.c_longlong(bench.n)
    x, y, out = bench.x, bench.y, bench.out
    return lambda: launch(
        streams[raw_stream()], config, kernel, x.data_ptr(), y.data_ptr(), out.data_ptr(), n
    )


def _bound(bench: Bench) -> tuple[Any, Any]:
    """Return cuda.bindings' driver, and the kernel."""
    driver = importlib.import_module("cuda.bindings.driver")
    driver.cuInit(0)
    torch.cuda.synchronize()
    status, module = driver.cuModuleLoadData(bench.cubin)
    if int(status):
        raise RuntimeError(f"cuModuleLoadData returned {status!r}")
    status, function = driver.cuModuleGetFunction(module, b"add_plain")
    if int(status):
        raise RuntimeError(f"cuModuleGetFunction returned {status!r}")
    return driver, function


def cuda_bindings(bench: Bench) -> Call:
    driver, function = _bound(bench)
    launch, raw_stream = driver.cuLaunchKernel, bench.raw_stream
    kinds = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_longlong)
    x, y, out, n, grid = bench.x, bench.y, bench.out, bench.n, bench.grid

    def call() -> None:
        values = (x.data_ptr(), y.data_ptr(), out.data_ptr(), n)
        launch(function, *grid, 256, 1, 1, 0, raw_stream(), (values, kinds), 0)

    return call


def cuda_bindings_packed(bench: Bench) -> Call:
    driver, function = _bound(bench)
    launch, raw_stream, grid = driver.cuLaunchKernel, bench.raw_stream, bench.grid
    values = (ctypes.c_longlong * 4)(*bench.pointers, bench.n)
    step = ctypes.sizeof(ctypes.c_longlong)
    addresses = (ctypes.c_void_p * 4)(*(ctypes.addressof(values) + i * step for i in range(4)))
    packed, x, y, out = ctypes.addressof(addresses), bench.x, bench.y, bench.out

    def call() -> None:
        values[0], values[1], values[2] = x.data_ptr(), y.data_ptr(), out.data_ptr()
        launch(function, *grid, 256, 1, 1, 0, raw_stream(), packed, 0)
        addresses  # noqa: B018  kept alive

    return call


def cupy_raw(bench: Bench) -> Call:
    cupy = importlib.import_module("cupy")
    kernel = cupy.RawKernel(PLAIN, "add_plain")
    streams = {raw: cupy.cuda.ExternalStream(raw) for raw in (bench.raw_stream(),)}
    raw_stream, n, grid = bench.raw_stream, bench.n, bench.grid
    x, y, out = bench.x, bench.y, bench.out

    def call() -> None:
        with streams[raw_stream()]:
            kernel(grid, (256, 1, 1), (x.data_ptr(), y.data_ptr(), out.data_ptr(), n))

    return call


def tvm_ffi(bench: Bench) -> Call:
    cpp = importlib.import_module("tvm_ffi.cpp")
    module = cpp.load_inline("nxcore_bench", cuda_sources=PLAIN + FFI, functions=["add_ffi"])
    add, x, y, out = module.add_ffi, bench.x, bench.y, bench.out
    return lambda: add(x, y, out)


CONTENDERS: dict[str, Callable[[Bench], Call]] = {
    "torch.add, out=": torch_add,
    "torch.add": torch_add_allocating,
    "nxcore-cuda, C": ours_c,
    "nxcore-cuda, C, guarded": ours_c_guarded,
    "nxcore-cuda, C, with empty_like": ours_c_allocating,
    "nxcore-cuda, plan of add": functools.partial(plan_of_add, "nxcore_cuda"),
    "nxcore-cuda, ctypes": ours_ctypes,
    "nxcore-triton, plan of add": functools.partial(plan_of_add, "nxcore_triton"),
    "cuda.core launch": cuda_core,
    "cuda.bindings cuLaunchKernel": cuda_bindings,
    "cuda.bindings cuLaunchKernel, packed": cuda_bindings_packed,
    "CuPy RawKernel": cupy_raw,
    "apache-tvm-ffi": tvm_ffi,
}


def measure(call: Call) -> float:
    """Return the mean microseconds of ``CALLS`` back-to-back calls: the median over rounds."""
    rounds = []
    for _ in range(WARM + ROUNDS):
        torch.cuda.synchronize()
        started = time.perf_counter_ns()
        for _ in range(CALLS):
            call()
        rounds.append((time.perf_counter_ns() - started) / CALLS * 1e-3)
    torch.cuda.synchronize()
    return statistics.median(rounds[WARM:])


def rows(elements: int) -> Iterator[dict[str, Any]]:
    """Yield a row for each launcher: its microseconds, or the reason why it has none."""
    loop = measure(lambda: None)
    for name, prepare in CONTENDERS.items():
        bench = Bench(elements)
        try:
            call = prepare(bench)
            call()
            torch.cuda.synchronize()
            if not torch.equal(bench.out, bench.x + bench.y):
                raise RuntimeError("wrong result")
            yield {"launcher": name, "us": round(measure(call) - loop, 3)}
        except Exception as error:  # noqa: BLE001  another's package may raise anything
            text = (str(error).strip().splitlines() or [""])[0]
            yield {"launcher": name, "us": None, "reason": f"{type(error).__name__}: {text[:160]}"}


def head() -> dict[str, Any]:
    """Return device and versions, on which the figures depend."""
    found = {}
    packages = (
        "torch",
        "triton",
        "cuda-core",
        "cuda-bindings",
        "cupy-cuda13x",
        "cupy-cuda12x",
        "apache-tvm-ffi",
    )
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return {"device": torch.cuda.get_device_name(), "python": platform.python_version(), "packages": found}


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    parser.add_argument("--elements", type=int, default=1024)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("torch finds no CUDA device: nothing to measure", file=sys.stderr)
        return 1
    about, found = head(), list(rows(options.elements))
    if options.json:
        print(encoded(about | {"elements": options.elements, "rows": found}))
        return 0
    print(f"{about['device']}, Python {about['python']}, {about['packages']}")
    for row in found:
        print(f"{row['launcher']:38} " + (f"{row['us']:8.2f} us" if row["us"] is not None else row["reason"]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
