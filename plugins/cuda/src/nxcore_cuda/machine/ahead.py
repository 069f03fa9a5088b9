"""Compile kernels ahead of time: the images of a wheel, one for each source.

``NXCORE_CUDA_EMULATOR=1 python -m nxcore_cuda.machine.ahead FOLDER`` writes them and their index. It needs
torch and nvcc, and no GPU: samples are described by CPU tensors, recorded problems by themselves.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import nxcore.ops
from nxcore.offline import release
from nxcore.plugin import Problem, composed
from nxcore.spec.device import pretend
from nxcore.trust.samples import proofs
from nxcore_cuda import KERNELS, SPLIT, nxcore_backend
from nxcore_cuda.emulator import emulate
from nxcore_cuda.machine import toolkit
from nxcore_cuda.machine.absent import planned
from nxcore_cuda.machine.compile import NVCC_FLAGS, SOURCES, digest, run, sources_digest
from nxcore_cuda.machine.instance import Instance, unit

ARCHITECTURES = ("75", "80", "86", "89", "90", "100", "120")

SMALL = "--compress-mode=size"
"""CUDA 12.8 and later compress images so; drivers before that for CUDA 12.4 can't read them."""


def _of_smoke_samples() -> Iterator[Instance]:
    """Yield what nxcore itself needs to verify the kernels on a machine without nvcc."""
    specs = {spec.name: spec for spec in nxcore.ops.nxcore_ops()}
    found: list[Instance] = []
    original = emulate.EmulatedHandle.__init__
    # A plan's launches are kept here, and nothing is compiled.
    emulate.EmulatedHandle.__init__ = lambda _, instance, *__: found.append(instance)  # type: ignore[method-assign]
    try:
        for kernel in (*KERNELS, *SPLIT, *composed((*KERNELS, *SPLIT), specs.values())):
            spec = specs[kernel.op]
            for sample in proofs(kernel, spec.samples):
                for dtype in kernel.dtypes:
                    problem = Problem.of(spec, sample.build(spec, "cpu", dtype))
                    if kernel.suits(problem) and kernel.accepts(problem):
                        kernel.plan(problem)
    finally:
        emulate.EmulatedHandle.__init__ = original  # type: ignore[method-assign]
    yield from found


def _of_records() -> Iterator[Instance]:
    """Yield what the problems of the shipped records launch on their devices, where this plugin won."""
    found: list[Instance] = []
    for wanted in release.wanted(nxcore_backend()):
        pretend(dict(wanted.facts))
        planned(wanted.kernel, wanted.problem, lambda instance, *_: found.append(instance))
    yield from found


def instances() -> dict[str, list[Instance]]:
    """Return the instances that a wheel holds, by source."""
    if not toolkit.EMULATED:
        raise RuntimeError("needs NXCORE_CUDA_EMULATOR=1 in the environment, so that plans need no GPU")
    found = [*_of_smoke_samples(), *_of_records()]
    for module in sorted({kernel.target.partition(":")[0] for kernel in (*KERNELS, *SPLIT)}):
        found += importlib.import_module(module).instances()
    by_source: dict[str, list[Instance]] = {}
    for instance in sorted(set(found), key=lambda instance: instance.symbol):
        by_source.setdefault(instance.source, []).append(instance)
    return dict(sorted(by_source.items()))


def architectures(compiler: str, wanted: Sequence[str] = ARCHITECTURES) -> list[str]:
    """Return those of the wanted architectures that this nvcc compiles for, as nvcc writes them.

    The last one is kept as PTX too, which later devices compile for themselves.
    """
    known = {toolkit.name(capability) for capability in toolkit.architectures(compiler)}
    usable = [arch for arch in wanted if arch in known]
    if not usable:
        raise RuntimeError(
            f"{compiler} compiles for {', '.join(sorted(known, key=int))}, and none of {', '.join(wanted)}"
        )
    return [*(f"sm_{arch}" for arch in usable), f"compute_{max(usable, key=int)}"]


def build(folder: Path, wanted: Sequence[str] = ARCHITECTURES) -> str:
    """Write one fat binary for each source, and an index of them. Returns what was written, in words.

    An image that the folder has from the same kernels, by the same compiler, is kept.
    """
    compiler = toolkit.nvcc()
    if compiler is None:
        raise RuntimeError(f"no nvcc is {toolkit.PLACES}")
    archs = architectures(compiler, wanted)
    codes = [f"-gencode=arch=compute_{arch.partition('_')[2]},code={arch}" for arch in archs]
    small = [SMALL] if toolkit.knows(compiler, SMALL) else []
    folder.mkdir(parents=True, exist_ok=True)
    there = folder / "index.json"
    before = json.loads(there.read_text()) if there.is_file() else {}
    by = digest(toolkit.version(compiler), *small, *NVCC_FLAGS)

    def compile(source: str, found: list[Instance]) -> tuple[str, dict[str, Any]]:
        name = f"{source}.fatbin"
        entry = {
            "source": source,
            "digest": sources_digest(f'#include "{source}.cu"\n'),
            "archs": archs,
            "symbols": [instance.symbol for instance in found],
            "by": by,
        }
        if entry != before.get(name) or not (folder / name).is_file():
            text = folder / f"{source}-unit.cu"  # another name than the source that it includes
            text.write_text(unit(found))
            # nvcc leaves a broken file where it is ended
            image = ["-fatbin", "--threads=0", *small, "-o", str(folder / f"{name}.new")]
            run([compiler, *image, *NVCC_FLAGS, *codes, f"-I{SOURCES}", text], source)
            (folder / f"{name}.new").replace(folder / name)
            text.unlink()
        return name, entry

    by_source = instances()
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # threads that wait for compilers
        index = dict(pool.map(compile, by_source, by_source.values()))
    there.write_text(json.dumps(index, indent=1) + "\n")
    count = sum(len(image["symbols"]) for image in index.values())
    return f"{count} kernels of {len(index)} sources for {', '.join(archs)}"


if __name__ == "__main__":
    asked = sys.argv[2].split(",") if len(sys.argv) > 2 else ARCHITECTURES
    print(build(Path(sys.argv[1]), asked))  # noqa: T201  the command's result
