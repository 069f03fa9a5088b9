"""Strict products: machine code of every kernel of ``matmul`` and ``conv2d`` of class ieee32.

Each term must be one fused multiply-add of float32 (FFMA) that keeps denormals: no tensor core, no product
that is rounded before it is added, no shorter format.
"""

import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import torch

pytest.importorskip("nxcore_cuda")
pytest.importorskip("nxcore_cupy")

import nxcore_cuda
import nxcore_cupy
import nxcore_triton
from nxcore_cuda import conv2d, matmul, matmul_split
from nxcore_cuda.direct import Layer, candidates, choose
from nxcore_cuda.machine.compile import NVCC_FLAGS, compiled
from nxcore_cuda.machine.instance import Instance, unit

import nxcore
from nxcore.plugin import Problem
from tests.plugins.test_cuda_products import TILES, cuobjdump, needs_nvcc
from tests.table import for_each

OPS = ("matmul", "conv2d")
WAYS = [matmul.Way(inner, vectors) for inner, vectors in product((True, False), repeat=2)]
FILTERS = {"three": (3, 1, 1), "seven": (7, 1, 3), "strided": (3, 2, 1)}
OPCODE = re.compile(r"^\s+/\*[0-9a-f]{4,5}\*/\s+(?:@!?U?P\d+ )?([A-Z][A-Z0-9_.]*)", re.MULTILINE)
TENSOR_CORE = re.compile(r"(?:UTC)?[A-Z]{1,2}MMA\b")


def disassembled(image: Path) -> str:
    command = [cuobjdump(), "-sass", image]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def opcodes(image: Path) -> Counter[str]:
    """Return the instructions of an image, with their modifiers, and how many of each there are."""
    return Counter(OPCODE.findall(disassembled(image)))


def unlike_strict(found: Counter[str]) -> str:
    """Return why these instructions are not those of a strict product; empty if they are."""
    if wrong := [op for op in found if TENSOR_CORE.match(op) or "TF32" in op]:
        return f"tensor cores: {wrong}"
    if wrong := [op for op in found if op.startswith(("FMUL", "F2FP", "F2F.F16", "F2F.BF16"))]:
        return f"rounded before the sum: {wrong}"
    if wrong := [op for op in found if op.startswith(("FFMA", "FADD")) and "FTZ" in op]:
        return f"denormals are flushed: {wrong}"
    return "" if any(op.startswith("FFMA") for op in found) else "no FFMA"


def test_what_is_unlike_is_found() -> None:
    assert unlike_strict(Counter({"FFMA": 3, "FADD": 1, "HFMA2.MMA": 2, "F2I.FTZ.U32.TRUNC.NTZ": 1})) == ""
    for other, why in (
        ({"FADD": 3}, "no FFMA"),
        ({"FFMA": 3, "HMMA.1688.F32.TF32": 1}, "tensor cores"),
        ({"FFMA": 3, "HGMMA.64x8x8.F32.TF32": 1}, "tensor cores"),
        ({"FFMA": 3, "UTCHMMA": 1}, "tensor cores"),
        ({"FFMA": 3, "FMUL": 1}, "rounded"),
        ({"FFMA": 3, "F2FP.BF16.F32.PACK_AB": 1}, "rounded"),
        ({"FFMA.FTZ": 3}, "denormals"),
    ):
        assert unlike_strict(Counter(other)).startswith(why)


def of_cuda(instances: Iterable[Instance], folder: Path) -> dict[str, Counter[str]]:
    """Return the instructions of each instance of one source, by symbol: nvcc starts once for all."""
    different = {i.symbol: i for i in instances}
    image = folder / "image.cubin"
    image.write_bytes(compiled(unit(different.values()), (9, 0), next(iter(different.values())).source))
    _, *parts = re.split(r"^\s+Function : (\S+)$", disassembled(image), flags=re.MULTILINE)
    found = {name: Counter(OPCODE.findall(text)) for name, text in zip(parts[::2], parts[1::2], strict=True)}
    assert found.keys() == different.keys()
    return found


def test_every_strict_kernel_is_looked_at() -> None:
    """A kernel that comes in a table has to come here too."""
    for plugin, rows in (
        (nxcore_cuda, {"matmul:plan", "conv2d:plan"}),
        (nxcore_triton, {"matmul:plan", "conv2d:plan"}),
    ):
        made = plugin.nxcore_backend().kernels
        strict = [k for k in made if k.op in OPS and k.precision == "ieee32"]
        assert {k.target.partition(".")[2] for k in strict} == rows
    chosen = {*matmul.ALONE_AND_EACH, matmul.PAIR, matmul.DEEP, matmul.AHEAD, *matmul.TEAMS}
    assert set(TILES.values()) >= chosen


@needs_nvcc
@pytest.mark.slow
@for_each("name", TILES)
def test_products_in_cuda(name, tmp_path) -> None:
    every = product(WAYS, WAYS) if name == "least" else zip(WAYS, reversed(WAYS), strict=True)
    tiles = [TILES[name]]
    if isinstance(tiles[0], matmul.Slices):
        tiles.append(replace(tiles[0], whole=True))
    found = of_cuda((tile.instance(a, b) for a, b in every for tile in tiles), tmp_path)
    assert {symbol: why for symbol, one in found.items() if (why := unlike_strict(one))} == {}


@needs_nvcc
@pytest.mark.slow
@pytest.mark.parametrize("name", FILTERS)
def test_convolutions_in_cuda(name, tmp_path) -> None:
    size, *window = FILTERS[name]
    spec = nxcore.op("conv2d").spec
    args = spec.bind(torch.empty(2, 4, 64, 64), torch.empty(8, 4, size, size), None, *window)
    layer = Layer.of(Problem.of(spec, args))
    found = of_cuda((conv2d.instance(torch.float32, layer, t) for t in candidates(layer)), tmp_path)
    assert {symbol: why for symbol, one in found.items() if (why := unlike_strict(one))} == {}


@needs_nvcc
@pytest.mark.slow
def test_a_kernel_of_split_factors_is_told_from_a_strict_one(tmp_path) -> None:
    (found,) = of_cuda([matmul_split.SMALL.instance(WAYS[0], WAYS[0])], tmp_path).values()
    assert unlike_strict(found).startswith("tensor cores")


# Triton's interpreter compiles nothing, and these tests' process has it where there is no GPU.
COMPILE = """
import json, pathlib, sys
import torch
import nxcore_triton
from nxcore.spec.device import pretend
from nxcore.plugin import Problem, hosted
from nxcore.store.problems import moved
from nxcore_triton.ahead import Compiled, FakeTensorMode, _driven, _filled
from tests.plugins.test_ahead import FACTS, GPU, SPECS

pretend(FACTS)
folder, found = pathlib.Path(sys.argv[1]), []
SAMPLES = ("batched", "gaps_in_memory", "row_vector", "groups", "channels_last", "dilated")
empty = torch.empty
LARGE = {
    "matmul": [(empty(512, 512), empty(512, 512)), (empty(512, 512).T, empty(512, 512).T)],
    "conv2d": [
        (empty(2, 4, 64, 64), empty(8, 4, 3, 3), empty(8), 1, 1),
        (empty(2, 4, 64, 64), empty(8, 4, 7, 7), None, 2, 3),
    ],
}

def images():
    return set(folder.rglob("*.cubin"))

def compile(kernel, problem, *tile):
    before = images()
    with hosted(Compiled), _driven((9, 0)), FakeTensorMode():
        pairs = zip(problem.spec.params, problem.args)
        kernel.plan(problem, *tile)(*(_filled(p.kind, a) for p, a in pairs))
    found.extend((kernel.op, kernel.precision, str(tile), str(path)) for path in images() - before)

for kernel in (*nxcore_triton.KERNELS, *nxcore_triton.SPLIT):
    if kernel.op not in LARGE:
        continue
    spec = SPECS[kernel.op]
    for i, args in enumerate(LARGE[kernel.op]):
        problem = moved(Problem.of(spec, spec.bind(*args)), GPU)
        tiles = [] if i or kernel.precision != "ieee32" else kernel.sweep(problem)
        for tile in tiles:
            compile(kernel, problem, tile)
        compile(kernel, problem)
    for sample in (s for s in spec.samples if s.name in SAMPLES):
        problem = moved(Problem.of(spec, sample.build(spec, "cpu", torch.float32)), GPU)
        if kernel.precision == "ieee32" and kernel.takes(problem):
            compile(kernel, problem)
print(json.dumps(found))
"""


@pytest.mark.slow
def test_products_and_convolutions_in_triton(tmp_path) -> None:
    pytest.importorskip("triton", reason="no Triton, which compiles them")
    env = {name: value for name, value in os.environ.items() if not name.startswith("TRITON_")}
    root = str(Path(__file__).parents[2])
    env |= {"TRITON_CACHE_DIR": str(tmp_path), "PYTHONPATH": os.pathsep.join([root, *sys.path])}
    command = [sys.executable, "-c", COMPILE, str(tmp_path)]
    ran = subprocess.run(command, env=env, capture_output=True, text=True, timeout=570, check=False)
    assert ran.returncode == 0, ran.stderr
    seen: Counter[tuple[str, str]] = Counter()
    for op, precision, tile, image in json.loads(ran.stdout.splitlines()[-1]):
        if not Path(image).stem.startswith(("multiply", "convolve")):
            continue  # what adds up the shares of a product
        seen[op, precision] += 1
        found = opcodes(Path(image))
        if precision == "ieee32":
            assert unlike_strict(found) == "", (op, tile)
        else:
            assert unlike_strict(found).startswith("tensor cores")
    assert seen["matmul", "ieee32"] >= 8
    assert seen["conv2d", "ieee32"] >= 8
    assert seen["matmul", "fp32x"] >= 1


def test_cupy_compiles_the_same_sources_without_shortcuts() -> None:
    """NVRTC's options leave denormals and the rounding of products as nvcc's do."""
    for op in OPS:
        (own,) = (k for k in nxcore_cupy.KERNELS if k.op == op)
        (theirs,) = (k for k in nxcore_cuda.KERNELS if k.op == op and k.precision == "ieee32")
        assert nxcore_cupy.PLANNERS[op].target == theirs.target
        assert theirs.target in own.uses
        assert own.precision == "ieee32"
    source = Path(nxcore_cupy.__file__).with_name("compile.py").read_text(encoding="utf-8")
    (options,) = re.findall(r"^OPTIONS = \((.*?)\)", source, re.MULTILINE)
    for given in (options, " ".join(NVCC_FLAGS)):
        assert not re.search(r"fast.math|ftz|fmad|prec", given)


@pytest.mark.gpu
@pytest.mark.parametrize("op", OPS)
def test_products_and_convolutions_by_nvrtc(op, tmp_path) -> None:
    pytest.importorskip("cupy")
    from nxcore_cupy.compile import compiled as by_nvrtc

    spec = nxcore.op("conv2d").spec
    args = spec.bind(torch.empty(2, 4, 64, 64), torch.empty(8, 4, 3, 3), None, 1, 1)
    layer = Layer.of(Problem.of(spec, args))
    direct = conv2d.instance(torch.float32, layer, choose(layer))
    instance = matmul.LEAST.instance(WAYS[0], WAYS[1]) if op == "matmul" else direct
    path = by_nvrtc(instance.text, torch.cuda.get_device_capability(), instance.symbol)
    if path.suffix != ".cubin":
        pytest.skip("NVRTC is older than the device, whose driver compiles the kernel")
    try:
        found = opcodes(path)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"cuobjdump can't read the machine code of this NVRTC: status {error.returncode}")
    assert unlike_strict(found) == ""
