"""nxcore-cuda's reductions with places: every comparison of keys gives torch's element, bit for bit."""

import pytest
import torch

from nxcore.plugin import Problem
from tests.ops.backends import operator
from tests.plugins.test_cuda_products import needs_nvcc
from tests.plugins.test_strict import opcodes
from tests.table import for_each

pytest.importorskip("nxcore_cuda")

SHAPES = {
    "a_few_lanes": ((50, 9), 1),
    "a_warp": ((6, 400), 1),
    "a_block": ((2, 5001), 1),
    "blocks_that_share": ((3, 40_001), 1),
    "columns_of_lanes": ((2, 200, 64), 1),
    "columns_of_warps": ((40, 300), 0),
    "columns_that_blocks_share": ((20_000, 12), 0),
}


def drawn(kind, shape):
    """Return elements among which many are alike, or what no comparison of floats orders."""
    dice = torch.Generator().manual_seed(0)
    if kind == "ties":
        return torch.randint(-2, 3, shape, generator=dice).float()
    x = torch.randn(shape, generator=dice)
    if kind == "zeros of two signs":
        return torch.zeros(shape).copysign(x)
    if kind == "nan":
        return x.masked_fill(torch.rand(shape, generator=dice) < 0.02, torch.nan)
    if kind == "denormals":
        return x * 2.0**-140
    x = torch.full(shape, -torch.inf)  # nothing is above what threads begin with
    if kind == "one above":
        x.view(-1)[-1] = -3e38
    return x


def bits(x):
    """Return the bits of elements, those of one NaN where they are NaN."""
    return x.masked_fill(x.isnan(), torch.nan).view(torch.int32 if x.itemsize == 4 else torch.int16)


@for_each("dtype", [torch.float32, torch.bfloat16], ids=str)
@for_each("name", SHAPES)
@for_each("kind", ["ties", "zeros of two signs", "nan", "denormals", "infinite", "one above"])
def test_the_first_of_equals_is_found_with_its_sign(device, kind, name, dtype):
    shape, dim = SHAPES[name]
    x = drawn(kind, shape).to(dtype)
    for op in ("max", "min"):
        values, indices = operator(op, "cuda")(x.to(device), dim)
        expected = getattr(torch, op)(x, dim)
        assert torch.equal(indices.cpu(), expected.indices)
        assert torch.equal(bits(values.cpu()), bits(expected.values))


@needs_nvcc
@pytest.mark.parametrize(("dim", "shuffles"), [(None, 2), (1, 16)])
def test_a_warp_compares_keys_by_two_instructions(dim, shuffles, tmp_path):
    """Shuffles remain where a few lanes share an output, and where keys of several columns lie in a warp."""
    from nxcore_cuda import fold
    from nxcore_cuda.machine.compile import compiled

    import nxcore

    spec = nxcore.op("argmax").spec
    problem = Problem.of(spec, spec.bind(torch.empty(4, 512, 896, device="meta"), dim))
    walk = fold.walk_of(problem).widest(4)
    tile = next(fold.sweep(problem))
    made = fold._instance(walk.inner, "float", 4, walk.kind, fold.LARGEST, tile, places=True)
    path = tmp_path / "image.cubin"
    path.write_bytes(compiled(made.text, (9, 0), made.symbol))
    found = opcodes(path)
    assert sum(n for op, n in found.items() if op.startswith("SHFL")) == shuffles
    assert not [op for op in found if op.startswith(("LDL", "STL"))]
    assert any(op.startswith("REDUX") for op in found) is walk.inner


@pytest.mark.parametrize("op", ["argmax", "amax"])
@pytest.mark.parametrize("shape", [(65536, 1024), (1 << 22, 12)])
def test_a_large_fold_over_rows_is_one_wave_of_blocks(op, shape):
    """Each further wave would leave its shares, and wait for memory once more."""
    from nxcore_cuda import fold
    from nxcore_cuda import sum as sums

    import nxcore

    spec = nxcore.op(op).spec
    problem = Problem.of(spec, spec.bind(torch.empty(shape, device="meta"), 0))
    walk = fold.walk_of(problem).widest(4)
    assert not walk.inner
    _, tiles, parts = sums.grid(walk, fold.choose(walk, 4, places=op == "argmax"))
    assert parts > 1
    assert sums.FILL < tiles * parts <= 2 * sums.FILL
    assert fold.branch(problem)


@for_each("op", ["argmax", "amax", "sum"])
@for_each(("shape", "parts"), [((4096, 16384), 1), ((4096, 8192), None), ((2048, 4096), None)])
def test_blocks_share_no_output_where_larger_blocks_fill_the_device(op, shape, parts):
    """Of 16,384 outputs 256 blocks have 64 each, and no shares; 8,192 would leave half of the device idle."""
    from nxcore_cuda import fold
    from nxcore_cuda import sum as sums

    import nxcore

    spec = nxcore.op(op).spec
    problem = Problem.of(spec, spec.bind(torch.empty(shape, device="meta"), 0))
    walk = fold.walk_of(problem).widest(4)
    tile = sums.choose(walk, 4) if op == "sum" else fold.choose(walk, 4, places=op == "argmax")
    assert (sums.grid(walk, tile)[1:] == (256, 1)) is (parts == 1)
    assert (tile.threads == sums.WIDE) is (parts == 1)
    module = sums if op == "sum" else fold
    assert module.branch(problem) is (parts is None)


def test_blocks_of_the_highest_number_alone_read_and_clear_slots(device):
    """Launches in a row find slots empty, whichever of them came before: other sizes, other keys."""
    calls = [(op, n) for n in (40_001, 1_000_000, 70_000) for op in ("argmax", "amax", "any")]
    for op, n in calls + calls[::-1]:
        x = torch.randn(n, generator=torch.Generator().manual_seed(n)).to(device)
        assert torch.equal(operator(op, "cuda")(x), getattr(torch, op)(x)), (op, n)
