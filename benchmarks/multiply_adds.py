"""Time multiply-adds alone on a GPU: what bounds strict products of float32 matrices, in time and in cycles.

Each kernel does as many multiply-adds as a product of n by n matrices, in the inner loop of a product's tile,
with factors in registers or read from shared memory. It loads nothing else, and its threads don't wait for
each other: its time, measured as ``matmul.py`` measures, is a floor of products by such threads. Prints a
table, writes all figures.

    python benchmarks/multiply_adds.py --json record.json
"""

from __future__ import annotations

import argparse
import functools
import math
import platform
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import cupy
import numpy as np
import torch
from matmul import cold, least, warm
from nxcore_cuda.machine.compile import compiled

from nxcore.store.encoding import encoded

WARP, SCHEDULERS = 32, 4
RUN = 16  # terms of a turn, as in the source
SIZES = {512: 128, 1024: 128, 2048: 132, 4096: 132}
"""Sides of the products, and the blocks: the small products have tiles for 128 of 132 multiprocessors."""

BODY = """#include "multiply_adds.cu"
extern "C" __global__ void __launch_bounds__({threads}, 1)
timed(float* out, long long* clock, int terms, int step) {{
  multiply_adds<{arguments}>(multiply_adds_args{{out, clock, terms, step}});
}}
"""


@dataclass(frozen=True)
class Kind:
    """The threads of a block: a tile, the sums of a thread, slices that share terms, where factors are.

    ``reads`` is when factors are read, as the source has it.
    """

    tall: int
    wide: int
    rows: int
    columns: int
    slices: int
    shared: bool
    reads: str = "AHEAD"

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.tall * self.wide // (self.rows * self.columns) * self.slices

    @property
    def floats(self) -> int:
        """Floats of shared memory."""
        return RUN * self.slices * (self.tall + self.wide + 8)

    @property
    def name(self) -> str:
        """The name in the table."""
        where = "shared" if self.shared else "registers"
        when = f", {self.reads.lower()}" if self.reads != "AHEAD" else ""
        return f"{where}, {self.rows} x {self.columns}, {self.threads // WARP} warps{when}"

    @property
    def text(self) -> str:
        """The translation unit."""
        sizes = (self.tall, self.wide, self.rows, self.columns, self.slices, str(self.shared).lower())
        return BODY.format(threads=self.threads, arguments=", ".join(map(str, (*sizes, self.reads))))


KINDS = (
    Kind(64, 128, 8, 8, 4, shared=False),
    Kind(64, 128, 8, 16, 4, shared=False),
    Kind(64, 128, 8, 8, 4, shared=True),
    Kind(64, 128, 8, 16, 4, shared=True),
    Kind(64, 128, 8, 8, 2, shared=True),
    Kind(64, 128, 8, 16, 4, shared=True, reads="LATE"),
    Kind(64, 128, 8, 8, 4, shared=True, reads="SPACED"),
    Kind(64, 128, 8, 16, 4, shared=True, reads="SPACED"),
    Kind(192, 128, 12, 16, 2, shared=True, reads="LATE"),
)


def built(kind: Kind, folder: Path) -> Any:
    """Return the function of a kernel; its image is put into a folder, from which CuPy loads it."""
    code = compiled(kind.text, torch.cuda.get_device_capability(), "multiply_adds", Path(__file__).parent)
    path = folder / f"{kind.name.replace(' ', '_')}.cubin"
    path.write_bytes(code)
    function = cupy.RawModule(path=str(path)).get_function("timed")
    function.max_dynamic_shared_size_bytes = 4 * kind.floats
    return function


class Timed:
    """A call of as many multiply-adds as a product of n by n matrices, on the default stream, as torch's."""

    def __init__(self, kind: Kind, n: int, function: Any) -> None:
        self.blocks, self.kind, self.function = SIZES[n], kind, function
        self.terms = RUN * math.ceil(n**3 / (self.blocks * kind.threads * kind.rows * kind.columns * RUN))
        self.out = torch.empty(self.blocks * kind.threads, device="cuda")
        shape = (self.blocks, kind.threads // WARP, 2)
        self.clock = torch.empty(shape, dtype=torch.int64, device="cuda")
        self.args = (self.out.data_ptr(), self.clock.data_ptr(), np.int32(self.terms), np.int32(0))

    @property
    def multiplied(self) -> int:
        """How many multiply-adds the call does."""
        return self.blocks * self.kind.threads * self.kind.rows * self.kind.columns * self.terms

    def __call__(self) -> torch.Tensor:
        """Launch it."""
        self.function((self.blocks,), (self.kind.threads,), self.args, shared_mem=4 * self.kind.floats)
        return self.out

    def slots(self) -> float:
        """Return a scheduler's cycles for one of its multiply-adds in the last call, median of blocks."""
        own = self.terms * self.kind.rows * self.kind.columns * self.kind.threads / WARP / SCHEDULERS
        spans = self.clock[..., 1].amax(1) - self.clock[..., 0].amin(1)
        return float(spans.double().median()) / own


def main() -> None:
    """Time all kinds at all sizes."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=1.0, help="of calls one after the other, at 4096")
    parser.add_argument("--counters", action="store_true", help="only call each once, for a profiler")
    given = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.empty(1, device="cuda")
    with tempfile.TemporaryDirectory() as folder:
        functions = {kind: built(kind, Path(folder)) for kind in KINDS}
    if given.counters:
        for kind, function in functions.items():
            Timed(kind, 2048, function)()
        torch.cuda.synchronize()
        return
    shortest = least(given.repeats)
    print(f"{torch.cuda.get_device_name()}; a call that writes one number: {shortest:.1f} us")
    print("n, us and TFLOP/s of cuBLAS; us, TFLOP/s, cycles of a scheduler for a multiply-add of each kind")
    rows, sustained = [], []
    for n in SIZES:
        a, b, out = (torch.rand(n, n, device="cuda") - 0.5 for _ in range(3))
        strict = functools.partial(torch.matmul, a, b, out=out)
        calls: dict[str, Callable[[], torch.Tensor]] = {"cublas": strict}
        calls |= {kind.name: Timed(kind, n, function) for kind, function in functions.items()}
        for name, us in cold(calls, given.repeats).items():
            call = calls[name]
            done = call.multiplied if isinstance(call, Timed) else n**3
            row = {"n": n, "kind": name, "us": us, "tflops": 2 * done / us / 1e6}
            if isinstance(call, Timed):
                row |= {"slots": call.slots(), "blocks": call.blocks, "terms": call.terms}
            rows.append(row)
            slots = f"{row['slots']:.3f}" if "slots" in row else ""
            print(f"{n} {name}: {us:.1f} us, {row['tflops']:.1f} T {slots}", flush=True)
        if n == max(SIZES) and given.seconds:
            for name, call in calls.items():
                us, seen = warm(call, given.seconds)
                done = call.multiplied if isinstance(call, Timed) else n**3
                sustained.append(
                    {"kind": name, "us": us, "tflops": 2 * done / us / 1e6, "clock and power": seen}
                )
                print(
                    f"{n} for {given.seconds:g} s, {name}: {us:.0f} us, {2 * done / us / 1e6:.1f} T, {seen}",
                    flush=True,
                )
    if given.json:
        about = {
            "device": torch.cuda.get_device_name(),
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
            "python": platform.python_version(),
            "repeats": given.repeats,
            "least_us": shortest,
            "kinds": {kind.name: asdict(kind) for kind in KINDS},
        }
        given.json.write_text(encoded({**about, "rows": rows, "sustained": sustained}, indent=1) + "\n")


if __name__ == "__main__":
    main()
