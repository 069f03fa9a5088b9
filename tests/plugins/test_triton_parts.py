"""Products of class fp32x by bfloat16 parts: their errors, what isn't finite, and what a GPU would run."""

import math
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import nxcore_triton
import pytest
import torch

from nxcore.ops.matmul import SPEC
from nxcore.plugin import Problem, Product, TensorMeta
from tests.plugins.test_strict import opcodes

parts = pytest.importorskip("nxcore_triton.matmul_parts")

TILES = {"usual": parts.Tile(), "wide": parts.Tile(64, 128), "deep": parts.Tile(64, 64, 64, 2, group=1)}
needs_interpreter = pytest.mark.skipif(
    not nxcore_triton.tile.INTERPRETED, reason="TRITON_INTERPRET=1 was not set"
)


def multiplied(a, b, tile):
    """Return the product by one tile, into memory that held NaN."""
    out = torch.full_like(torch.matmul(a, b), torch.nan)
    product = Product.of(*map(TensorMeta.of, (a, b, out)))
    parts.plan_product(product, a.device, tile)(*((b, a) if product.turned else (a, b)), out)
    return out


def off(a, b, tile):
    """Return the largest error as a share of the product of absolute values."""
    exact, scale = a.double() @ b.double(), a.double().abs() @ b.double().abs()
    return float(((multiplied(a, b, tile).double() - exact).abs() / scale).max())


@pytest.mark.slow
@needs_interpreter
@pytest.mark.parametrize("name", TILES)
def test_every_tile_has_less_than_float32s_error(name):
    tile = TILES[name]
    for rows, terms, columns in ((tile.tall + 4, 2 * tile.depth + 5, tile.wide + 9), (5, 3, 7)):
        a, b = torch.randn(rows, terms), torch.randn(terms, columns)
        assert off(a, b, tile) <= 2.0**-22
        assert off(a.T.contiguous().T, b.T.contiguous().T, tile) <= 2.0**-22
        assert off(a.abs(), b.abs(), tile) <= 2.0**-21
        assert off(a * 10.0 ** torch.randint(-4, 5, a.shape), b, tile) <= 2.0**-21
    pairs = torch.randn(2, 3, 30, 40), torch.randn(3, 40, 50)
    assert off(*pairs, tile) <= 2.0**-22


@needs_interpreter
def test_what_is_not_finite_is_as_in_float32():
    a, b = torch.randn(70, 50), torch.randn(50, 70)
    a[3, 5], a[7, 8], a[9, 1], b[4, 9], b[3, 3], b[6, 7] = (
        math.inf,
        -math.inf,
        math.nan,
        math.inf,
        0,
        -math.inf,
    )
    a[11, 2] = torch.tensor(0x7F800001, dtype=torch.int32).view(torch.float32)  # NaN below the parts' bits
    a[12, 3], b[3, 12] = math.inf, 1.0  # whose later parts are zero
    got, want = multiplied(a, b, parts.Tile()), (a.double() @ b.double()).float()
    torch.testing.assert_close(got, want, equal_nan=True, rtol=1e-5, atol=1e-5)
    assert got[12, 12] == math.inf


@needs_interpreter
def test_the_largest_numbers_and_parts_of_few_bits_stay_exact():
    largest = torch.full((9, 4), torch.finfo(torch.float32).max)
    assert off(largest, torch.rand(4, 7) * 1e-3, parts.Tile()) <= 2.0**-22
    assert off(torch.randn(9, 40) * 2.0**-100, torch.randn(40, 7) * 2.0**100, parts.Tile()) <= 2.0**-22
    x = torch.cat((torch.full((1, 6), 1e8), torch.full((1, 6), -1e8) + 8), 1)
    assert torch.equal(multiplied(x, torch.ones(12, 5), parts.Tile()), torch.full((1, 5), 48.0))


@needs_interpreter
def test_three_parts_are_the_number():
    values = torch.cat(
        (torch.randn(4000), torch.tensor([3.4e38, -3.4e38, 1 - 2.0**-24, 2 - 2.0**-23, 0.0, -0.0]))
    )
    x = values.new_zeros(64, 64).flatten()
    x[: len(values)] = values
    kept = torch.zeros(1, 2, 3, 64, 32, dtype=torch.bfloat16)
    launch = parts.Launch(parts.split, (4,), x.device, RANK=0, TALL=64, ACROSS=64, DEPTH=32, UNIT=64)
    steps = ((64, 1), (64, 1), (1,), (0,), (0,))
    launch((x, kept), x, x, kept, torch.empty_like(kept), 64, 64, 64, 2, 1, *steps)
    found = kept.double().sum(2)[0].transpose(0, 1).reshape(64, 64)
    assert torch.equal(found, x.view(64, 64).double())
    assert kept.isfinite().all()


def test_a_device_of_little_shared_memory_is_declined(monkeypatch, cuda_answers):
    (kernel,) = (k for k in nxcore_triton.SPLIT if k.variant == "fp32x-parts")
    monkeypatch.setattr(nxcore_triton.tile, "INTERPRETED", False)
    metas = (TensorMeta.row_major((64, 64), torch.float32, torch.device("cuda")) for _ in range(2))
    problem = Problem(SPEC, (*metas, "fp32x"))
    for held, taken in ((232448, True), (101376, False)):
        facts = SimpleNamespace(shared_memory_per_block_optin=held)
        cuda_answers(get_device_properties=lambda *_, facts=facts: facts)
        verdict = kernel.takes(problem)
        assert bool(verdict) is taken, verdict.reason
    assert verdict.reason == "needs 110592 bytes of shared memory, the device has 101376"


# Triton's interpreter compiles nothing, and these tests' process has it where there is no GPU.
COMPILE = """
import pathlib, sys
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from nxcore.plugin import Product, TensorMeta, hosted
from nxcore_triton import matmul_parts as parts
from nxcore_triton.ahead import Compiled, _driven, _typed

class Shown(Compiled):
    def __call__(self, _tensors, *args):
        how = {"grid": self.grid, "num_warps": self.warps, **self.constants}
        made = self.kernel.warmup(*map(_typed, args), **how)
        image = pathlib.Path(sys.argv[1], f"{made.name}-{made.hash}.cubin")
        image.write_bytes(made.asm["cubin"])
        print(made.name, made.metadata.shared, image)

for n in (1024, 4096, 4097):
    metas = [TensorMeta.row_major((n, n), torch.float32, torch.device("cuda")) for _ in range(3)]
    product = Product.of(*metas)
    with hosted(Shown), _driven((9, 0)), FakeTensorMode():
        parts.plan_product(product, metas[0].device)(*(meta.empty() for meta in metas))
"""


@pytest.mark.slow
def test_a_gpu_multiplies_parts_from_shared_memory(tmp_path):
    env = {name: value for name, value in os.environ.items() if not name.startswith("TRITON_")}
    root = str(Path(__file__).parents[2])
    env |= {"TRITON_CACHE_DIR": str(tmp_path), "PYTHONPATH": os.pathsep.join([root, *sys.path])}
    command = [sys.executable, "-c", COMPILE, str(tmp_path)]
    ran = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stderr
    found = [line.split() for line in ran.stdout.splitlines()]
    assert [name for name, *_ in found] == ["split", "multiply"] * 3
    for name, shared, image in found:
        code = opcodes(Path(image))
        products = sum(count for op, count in code.items() if op.startswith("HGMMA"))
        assert (products >= 12) == (name == "multiply"), "six products of 16 terms, twice"
        assert not [op for op in code if op.startswith(("LDL", "STL"))], "registers spilled to memory"
        assert int(shared) <= nxcore_triton.accepts.PARTS
