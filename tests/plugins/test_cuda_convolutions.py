"""nxcore-cuda's direct convolutions: every tile on the emulator, and what its machine code consists of."""

import re
import subprocess

import nxcore_cuda
import pytest
import torch
from nxcore_cuda import conv2d, conv2d_backward, direct_filters
from nxcore_cuda.conv2d_backward import Tiles
from nxcore_cuda.direct import MOST, Floats, Layer, Tile, candidates, choose
from nxcore_cuda.direct_filters import Block, Shape, Sums
from nxcore_cuda.machine.compile import compiled
from torch.nn import functional

import nxcore
from nxcore.plugin import Problem
from tests.plugins.test_cuda_products import cuobjdump, needs_emulator, needs_nvcc
from tests.table import for_each

SPEC, BACKWARD = (nxcore.op(name).spec for name in ("conv2d", "conv2d_backward"))
TILES = [Tile(1, 4, 4), Tile(1, 8, 1, 2), Tile(2, 4, 2), Tile(2, 8, 4, 2), Tile(4, 8, 4), Tile(4, 8, 2, 2)]


def called(x, weight, bias=None, *window):
    args = SPEC.bind(x, weight, bias, *window)
    return Problem.of(SPEC, args), args


@needs_emulator
@pytest.mark.parametrize("tile", TILES, ids=lambda tile: "-".join(map(str, vars(tile).values())))
def test_every_tile_is_right_inside_and_at_its_edges(tile):
    for shape in ((2, 4, 9, 34), (1, 5, 3, 64)):
        x, weight, bias = torch.randn(shape), torch.randn(9, shape[1], 3, 5), torch.randn(9)
        problem, args = called(x, weight, bias, 1, (1, 2))
        found = [conv2d.plan(problem, tile)(*args) for _ in range(2)]
        torch.testing.assert_close(found[0], functional.conv2d(*args), rtol=1e-5, atol=1e-5)
        assert torch.equal(*found)


@pytest.mark.parametrize(
    ("side", "tile"), [(32, Tile(1, 4, 4, 2)), (64, Tile(1, 4, 4, 2)), (128, Tile(4, 4, 4, 2))], ids=str
)
def test_the_shape_alone_chooses_the_tile(side, tile):
    problem, _ = called(torch.empty(2, 4, side, side), torch.empty(8, 4, 3, 3), None, 1, 1)
    layer = Layer.of(problem)
    assert choose(layer) == tile
    assert tile in candidates(layer)
    assert all(Floats.of(layer, each).bytes <= MOST for each in candidates(layer))


FASTEST = {
    32: ("1-4-4-2", "1-4-4-2", "4-2-256"),
    64: ("1-4-4-2", "1-4-4-2", "4-2-256"),
    128: ("4-4-4-2", "2-4-4-2", "4-4-256"),
}
"""Side -> tile of the result, of the image's and of the filters' gradient: on an H200, of every tile that was
raced for filters of 3, 5 and 7, the first is the fastest, and the others are within a twentieth of it."""


def named(tile):
    return "-".join(map(str, vars(tile).values()))


@for_each("side", FASTEST)
@for_each("kernel", [3, 5, 7])
def test_the_chosen_tiles_are_the_fastest_that_were_measured(side, kernel):
    problem, _ = called(
        torch.empty(2, 4, side, side), torch.empty(8, 4, kernel, kernel), None, 1, kernel // 2
    )
    back, _ = gradients((2, 4, side, side), (kernel, kernel), 8, padding=kernel // 2)
    (layer,), shape = Layer.turned(back), Shape.of(back)
    chosen = choose(Layer.of(problem)), choose(layer), direct_filters.choose(shape)
    assert tuple(map(named, chosen)) == FASTEST[side]


def test_a_window_that_is_too_large_for_shared_memory_is_declined():
    (kernel,) = (k for k in nxcore_cuda.KERNELS if k.op == "conv2d")
    problem, _ = called(torch.ones(1, 16, 90, 90), torch.ones(4, 16, 7, 7), None, 1, 0, 14)
    found = kernel.accepts(problem)
    assert re.match(r"needs CUDA|a tile takes \d+ of 63488 bytes of shared memory: x has shape", found.reason)


def gradients(shape, kernel, made=9, stride=1, padding=1, groups=1, dilation=1):
    x, weight = torch.randn(shape), torch.randn(made, shape[1] // groups, *kernel)
    grad = torch.randn_like(functional.conv2d(x, weight, None, stride, padding, dilation, groups))
    args = BACKWARD.bind(grad, x, weight, stride, padding, dilation, groups)
    return Problem.of(BACKWARD, args), args


def require_right(problem, args, tiles=None):
    found, again = (conv2d_backward.plan(problem, tiles)(*args) for _ in range(2))
    want = BACKWARD.reference(*(a.double() if isinstance(a, torch.Tensor) else a for a in args))
    for out, same, wanted in zip(found, again, want, strict=True):
        torch.testing.assert_close(out.double(), wanted, rtol=1e-5, atol=1e-4)
        assert torch.equal(out, same)


@needs_emulator
@pytest.mark.parametrize("tile", TILES, ids=lambda tile: "-".join(map(str, vars(tile).values())))
def test_every_tile_of_an_images_gradient_is_right(tile):
    problem, args = gradients((2, 9, 9, 34), (3, 5), padding=(1, 2))
    require_right(problem, args, Tiles(image=tile))


@needs_emulator
@for_each("sums", [Sums(4, 1), Sums(8, 2, 128), Sums(4, 8, 128), Sums(8, 4)], ids=str)
@for_each(
    "window",
    [{}, {"kernel": (1, 9), "padding": 4}, {"stride": 2, "dilation": 2}, {"groups": 3, "padding": 0}],
    ids=str,
)
def test_all_sums_of_filters_are_right(sums, window):
    given = {"kernel": (5, 3), **window}
    require_right(*gradients((2, 3, 19, 35), **given), Tiles(filters=sums))


@needs_emulator
def test_more_units_than_a_block_has_threads():
    problem, args = gradients((1, 12, 5, 6), (7, 7), 16, padding=6, dilation=2)
    shape = Shape.of(problem)
    block = Block.of(shape, direct_filters.choose(shape))
    assert block.units > 2 * block.threads >= 2 * block.lanes
    require_right(problem, args)


@pytest.mark.parametrize(("side", "rows"), [(32, 2), (64, 2), (128, 4)])
def test_the_shape_alone_chooses_the_sums(side, rows):
    problem, _ = gradients((2, 4, side, side), (3, 3), 8)
    shape = Shape.of(problem)
    assert direct_filters.choose(shape) == Sums(4, rows)
    assert all(Block.of(shape, each).bytes <= MOST for each in direct_filters.candidates(shape))


@needs_nvcc
@pytest.mark.slow
@pytest.mark.parametrize("size", [3, 7])
@pytest.mark.parametrize("tile", [Tile(1, 4, 4), Tile(4, 8, 4)], ids=lambda tile: f"{tile.pixels} pixels")
def test_machine_code_has_no_tensor_core_and_keeps_sums_in_registers(tile, size, tmp_path):
    problem, _ = called(torch.empty(2, 4, 64, 64), torch.empty(8, 4, size, size), None, 1, 1)
    instance = conv2d.instance(torch.float32, Layer.of(problem), tile)
    require_strict(instance, size**2 * tile.pixels * tile.filters, tmp_path)


@needs_nvcc
@pytest.mark.slow
@pytest.mark.parametrize("size", [3, 7])
def test_machine_code_of_filters_gradients_keeps_sums_in_registers(size, tmp_path):
    problem, _ = gradients((2, 4, 64, 64), (size, size), 8)
    instance = conv2d_backward.instance(torch.float32, Shape.of(problem), Sums(8, 2))
    require_strict(instance, 4 * 8 * size, tmp_path)


def require_strict(instance, products, tmp_path):
    (tmp_path / "image.cubin").write_bytes(compiled(instance.text, (9, 0), instance.symbol))
    code = subprocess.run(
        [cuobjdump(), "-sass", tmp_path / "image.cubin"], capture_output=True, text=True, check=True
    ).stdout
    found = re.findall(r"^\s+/\*[0-9a-f]{4,5}\*/\s+(?:@!?U?P\d+ )?([A-Z][A-Z0-9]*)", code, re.MULTILINE)
    assert found.count("FFMA") >= products
    assert not {"HMMA", "HGMMA", "QGMMA", "IMMA", "DMMA"} & set(found)
    assert not {"LDL", "STL"} & set(found), "registers spilled to memory"
