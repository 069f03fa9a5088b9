"""Keep shipped figures of kernels that were rewritten and launch the same as before.

    python benchmarks/retrace.py COMMIT [--compiled SOURCE ...]

A rewritten planner gives its kernel another identity, and `tests/test_shipped.py` fails. This script plans
and calls every kernel on every problem of the shipped files, in the sources of COMMIT, at which the files
were valid, and in the present ones. No kernel runs: a trace lists the operations of torch and, for each
launch, the device code, grid, block, shared memory and values. Where both traces agree, the entry takes the
kernel's new identity. The others are measured again, or removed by `nxcore wisdom shipped --prune`.

Device code is compared as text, with all that it includes. That of the sources named after `--compiled`, such
as `sep_conv2d`, is compiled by nvcc for an H200 instead, and its machine code is compared, whatever the
kernel's name is.

It needs no GPU: CPU tensors stand in, and torch's references run on the meta device. Whether the host takes
as long as before is not compared.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import os
import struct
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from nxcore.store.encoding import encoded

ROOT = Path(__file__).parents[1]
TRACED = ("torch", "cuda", "cuda-fp32x", "triton", "triton-fp32x", "triton-fp32x-parts", "numba-cuda")
H200 = (9, 0)
NO_BITS = 8  # the kind of a section that only has a size
SAME_LAUNCHES = {"cupy": "cuda"}
"""A backend that launches another's plans."""


class Trace(TorchDispatchMode):
    """What a call does: torch's operations and launches, in order. Addresses are numbered as they appear."""

    def __init__(self):
        super().__init__()
        self.lines, self.places = [], {}
        self.kept = []  # else a later result may have the address of an earlier one

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        shown = {k: self.shown(v) for k, v in (kwargs or {}).items() if k not in ("device", "pin_memory")}
        self.lines.append([str(function), [self.shown(a) for a in args], shown])
        self.kept.append(function(*args, **(kwargs or {})))
        return self.kept[-1]

    def shown(self, value):
        if isinstance(value, torch.Tensor):
            return f"{tuple(value.shape)} {value.stride()} {value.dtype}"
        return [self.shown(v) for v in value] if isinstance(value, tuple | list) else repr(value)

    def placed(self, value):
        if isinstance(value, torch.Tensor):
            return [self.address(value.data_ptr()), self.shown(value)]
        return [self.placed(v) for v in value] if isinstance(value, tuple | list) else repr(value)

    def address(self, pointer):
        return self.places.setdefault(pointer, len(self.places)) if pointer else None


def sections(image):
    """Return the machine code, constants and shared memory of an image: section -> size and digest."""
    (start,), (count, names) = struct.unpack_from("<Q", image, 0x28), struct.unpack_from("<HH", image, 0x3C)
    headers = [struct.unpack_from("<IIQQQQ", image, start + 64 * i) for i in range(count)]
    found = {}
    for name, kind, _, _, at, size in headers:
        first = headers[names][4] + name
        spelt = image[first : image.index(b"\0", first)].decode()
        if spelt.startswith((".text", ".nv.constant", ".nv.shared")):
            held = b"" if kind == NO_BITS else image[at : at + size]
            found[spelt] = size, hashlib.sha256(held).hexdigest()
    return found


def recorded(current, compiled=()):
    """Replace the launches of every plugin by lines of the trace that ``current`` holds.

    The device code of the sources that ``compiled`` names is compared after nvcc.
    """
    import nxcore_numba.gpu.launch
    import nxcore_triton.launch
    from nxcore_cuda.emulator.emulate import EmulatedHandle
    from nxcore_cuda.machine.compile import compiled as nvcc
    from nxcore_cuda.machine.compile import sources_digest

    from nxcore.trust.closure import digest
    from nxcore.trust.identity import installed

    def code(target):
        return installed().closure([target], halts=("nxcore", "nxcore_numba.gpu.launch")).digest

    @functools.cache
    def device_code(instance):
        if instance.source not in compiled:
            return sources_digest(f'#include "{instance.source}.cu"\n')
        found = sections(nvcc(instance.text, H200, instance.symbol))
        return {name.replace(instance.symbol, ""): code for name, code in found.items()}

    def of(kernel):
        function = getattr(kernel, "fn", None) or kernel.py_func
        return code(f"{function.__module__}:{function.__name__}")

    def prepared(self, instance, shape, shared, pointers, layout, values):
        named = [] if instance.source in compiled else [instance.symbol, digest([instance.declaration])]
        self.what = [*named, device_code(instance), shape, shared, layout]
        self.values, self.pointers, self.instance = values, pointers, instance

    def launched(self, pointers, tail):
        trace = current[0]
        values = repr(self.values if tail is None else tail)
        trace.lines.append(["cuda", self.what, [trace.address(p) for p in pointers], values])

    class Triton:
        def __init__(self, kernel, grid, _device, warps=4, **constants):
            named = sorted((k, of(v) if hasattr(v, "fn") else repr(v)) for k, v in constants.items())
            self.what = [of(kernel), (*grid, 1, 1)[:3], warps, named]

        def __call__(self, _tensors, *args):
            current[0].lines.append(["triton", self.what, [current[0].placed(a) for a in args]])

    class Numba:
        def __init__(self, kernel, blocks):
            self.what = [of(kernel), blocks]

        def __call__(self, _device, *args):
            current[0].lines.append(["numba", self.what, [current[0].placed(a) for a in args]])

    EmulatedHandle.__init__, EmulatedHandle.launch = prepared, launched
    nxcore_triton.launch.Launch, nxcore_numba.gpu.launch.Launch = Triton, Numba


def built(value, device):
    """Return an argument of an entry's key, without values."""
    if isinstance(value, dict):
        sizes = value["shape"], value["strides"]
        return torch.empty_strided(*sizes, dtype=getattr(torch, value["dtype"]), device=device)
    if isinstance(value, list):
        return tuple(built(v, device) for v in value)
    if isinstance(value, str):
        kinds = {"float": 1.0, "int": 1}
        return kinds[value] if value in kinds else getattr(torch, value.removeprefix("torch."), value)
    return value


def compiled_by(backend, kernel):
    """Return what a kernel uses of the modules that load it: the compiler's flags."""
    return [target for target in kernel.uses if target.partition(":")[0] in backend.runtime]


def calls(entry):
    """Yield each recorded kernel of an entry: its name there, operator, label, and its problem's key."""
    key = entry["key"]
    for make in sorted(entry["page"]["makes"]):
        op, _, label = make.rpartition(": ")
        backward = op == key.get("backward", {}).get("op")
        yield make, op or key["op"], label, key["backward" if backward else "forward"] if op else key


def traced(files, compiled=()):
    """Return, for each file and entry, kernel -> identity and digest of its trace; see ``recorded``."""
    from nxcore import session
    from nxcore.spec.problem import Problem
    from nxcore.trust.identity import installed

    current = [Trace()]
    recorded(current, compiled)
    found, own = {}, session.default()
    for file in files:
        found[Path(file).name] = []
        for part in json.loads(Path(file).read_text())["environments"]:
            for entry in part["entries"]:
                of = {}
                for make, op, label, key in calls(entry):
                    spec = own.registry.spec(op)
                    kernels = {b.label(k): (b, k) for b, k in own.registry.kernels(op)}
                    backend, kernel = kernels.get(label, (None, None))
                    like = SAME_LAUNCHES.get(label, label)
                    if backend is None or (backend.name != "torch" and like not in TRACED):
                        continue
                    identity = own.gate.identity(backend, kernel).kernel
                    device = "meta" if backend.name == "torch" else "cpu"
                    args = tuple(built(key[p.name], device) for p in spec.params)
                    problem = Problem.of(spec, args)
                    if backend.name != "torch":
                        _ = problem.outputs  # kept; how a result is described is no part of a launch
                    current[0] = Trace()
                    with torch.no_grad(), current[0]:
                        kernels[like][1].plan(problem)(*args)
                    lines = [installed().closure([t]).digest for t in compiled_by(backend, kernel)]
                    lines = encoded([lines, current[0].lines], default=list)
                    of[make] = identity, hashlib.sha256(lines.encode()).hexdigest()
                found[Path(file).name].append(of)
    return found


def run(root, files, compiled=()):
    """Return what ``traced`` finds in the sources under ``root``."""
    plugins = [str(path) for path in root.glob("plugins/*/src")]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "traces.json"
        command = [sys.executable, __file__, "--trace", str(out), *map(str, files), "--compiled", *compiled]
        settings = {"PYTHONPATH": os.pathsep.join([str(root), *plugins]), "NXCORE_CACHE": folder}
        # As set: results are compared, not times, in interpreters and the emulator.
        settings |= {"NXCORE_CUDA_EMULATOR": "1", "NUMBA_ENABLE_CUDASIM": "1", "TRITON_INTERPRET": "0"}
        subprocess.run(command, cwd=folder, env=os.environ | settings, check=True)
        return json.loads(out.read_text())


def rewritten(document, before, now):
    """Give entries the present identities of kernels that launch the same; return the document and counts."""
    counts = Counter()
    entries = (entry for part in document["environments"] for entry in part["entries"])
    for entry, then, today in zip(entries, before, now, strict=True):
        makes = entry["page"]["makes"]
        for label, (identity, trace) in today.items():
            was, earlier = then.get(label, ("", ""))
            if makes[label] == identity:
                continue
            same = makes[label] == was and trace == earlier
            counts[label, entry["key"]["op"], "kept" if same else "stale"] += 1
            makes[label] = identity if same else makes[label]
    return document, counts


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("commit", nargs="?", help="where the shipped files were valid")
    parser.add_argument("--trace", nargs="+", help=argparse.SUPPRESS)
    parser.add_argument(
        "--compiled", nargs="*", default=(), metavar="SOURCE", help="sources to compare as machine code"
    )
    asked = parser.parse_args()
    if asked.trace:
        out, *files = asked.trace
        Path(out).write_text(encoded(traced(files, asked.compiled)))
        return
    if not asked.commit:
        parser.error("name the commit at which the shipped files were valid")
    from nxcore.offline import shipped

    files = shipped.files()
    with tempfile.TemporaryDirectory() as folder:
        packed = subprocess.run(["git", "archive", asked.commit], cwd=ROOT, capture_output=True, check=True)
        subprocess.run(["tar", "-x", "-C", folder], input=packed.stdout, check=True)
        before, now = run(Path(folder), files, asked.compiled), run(ROOT, files, asked.compiled)
    for file in files:
        found, counts = rewritten(json.loads(file.read_text()), before[file.name], now[file.name])
        shipped.write(file, found)
        for (label, op, what), count in sorted(counts.items()):
            print(f"{file.name}: {label} {op}: {count} {what}")


if __name__ == "__main__":
    main()
