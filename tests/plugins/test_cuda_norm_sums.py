"""nxcore-cuda's batch_norm_sum: every tile, and as many tensors as a launch takes."""

import re
import subprocess

import pytest
import torch

import nxcore.ops
from nxcore.plugin import TensorMeta
from nxcore.spec.problem import Problem
from nxcore.trust.truth import agreement

pytest.importorskip("nxcore_cuda")

from nxcore_cuda import batch_norm_sum, channel
from nxcore_cuda.batch_norm_sum import Pass
from nxcore_cuda.channel import CACHED, Channels, Tile
from nxcore_cuda.machine.compile import compiled

from tests.plugins.test_cuda_products import cuobjdump, needs_nvcc

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SPECS = {spec.name: spec for spec in nxcore.ops.nxcore_ops()}
PLANS = {"batch_norm_sum": batch_norm_sum.plan, "batch_norm_sum_backward": batch_norm_sum.plan_backward}
OPS = tuple(PLANS)


def arguments(op, count, shape):
    """Return arguments of the operator or its gradient: every third tensor isn't normalised."""
    xs = tuple(torch.randn(shape, device=DEVICE) for _ in range(count))
    weights, normed = torch.randn(count, device=DEVICE), tuple(i % 3 != 1 for i in range(count))
    if op == OPS[0]:
        return xs, weights, normed, 1e-5
    _, mean, var = SPECS[OPS[0]].reference(xs, weights, normed)
    return torch.randn(shape, device=DEVICE), xs, weights, mean, var, normed, 1e-5, None


def judge(op, args, tile=None):
    """Run an operator and compare it with float64."""
    found = agreement(PLANS[op](Problem.of(SPECS[op], args), tile), SPECS[op], args)
    assert found.ok, (tile, found.reason)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("count", [*(pytest.param(n, marks=pytest.mark.slow) for n in (1, 16, 64)), 17])
def test_any_number_of_tensors_that_a_launch_takes(op, count):
    judge(op, arguments(op, count, (5, 3, 6, 6)))


@pytest.mark.slow
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("shape", [(3, 2, 24, 24), (3, 2, 11, 13)])
def test_every_tile_agrees(op, shape):
    args = arguments(op, 5, shape)
    sweep = batch_norm_sum.sweep if op == OPS[0] else batch_norm_sum.sweep_backward
    for tile in sweep(Problem.of(SPECS[op], args)):
        judge(op, args, tile)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("near", [True, False])
def test_images_with_gaps_agree(op, near):
    """A slice of the channels is near: places take one division. A slice of the columns isn't."""
    shape = (5, 4, 24, 24)
    wide = (5, 7, 24, 24) if near else (5, 4, 24, 28)
    args = arguments(op, 5, shape)
    cut = [torch.randn(wide, device=DEVICE)[:, : shape[1], :, : shape[3]] for _ in range(5)]
    args = (tuple(cut) if op == OPS[0] else cut[0], *args[1:])
    problem = Problem.of(SPECS[op], args)
    operands = (problem["xs"][0], *([problem["grad"]] if op == OPS[1] else []))
    assert Channels.of(*operands).near(4) == near
    judge(op, args)


def test_places_of_more_than_30_bits_are_not_near():
    def described(*strides):
        return Channels.of(TensorMeta((64, 3, 2**10, 4), strides, torch.float32, DEVICE))

    assert described(2**20, 2**18, 4, 1).near(4)
    assert not described(2**25, 2**18, 4, 1).near(4)


@pytest.mark.gpu
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize(("channels", "side"), [(16, 32), (32, 16), (64, 8)])
def test_nodes_of_a_search_agree(op, channels, side):
    judge(op, arguments(op, 35, (64, channels, side, side)))


def own_instance(entry, dtype):
    """The kernel of a search's cells, whose threads have 16 values of a half type each."""
    source = entry.removesuffix("_sums").removesuffix("_moments").removesuffix("_whole")
    if source == "batch_norm_sum_backward":
        return batch_norm_sum._instance(entry, source, dtype, 64, 8, Pass(1024, 256, 2, CACHED), near=True)
    tile = Tile(2048, 1024, whole=True) if entry.endswith("_whole") else Tile(512)
    return channel.instance(entry, source, dtype, 8, tile)


@needs_nvcc
@pytest.mark.slow
@pytest.mark.parametrize(
    ("entry", "dtype"),
    [
        ("batch_norm_sum_backward_sums", torch.bfloat16),
        ("batch_norm_backward_sums", torch.float16),
        ("batch_norm_moments", torch.bfloat16),
        ("batch_norm_whole", torch.float16),
    ],
)
def test_machine_code_keeps_the_values_of_a_thread_in_registers(entry, dtype, tmp_path):
    """Loops over halves of 16 values aren't unrolled by themselves."""
    instance = own_instance(entry, dtype)
    (tmp_path / "image.cubin").write_bytes(compiled(instance.text, (9, 0), instance.symbol))
    code = subprocess.run(
        [cuobjdump(), "-sass", tmp_path / "image.cubin"], capture_output=True, text=True, check=True
    ).stdout
    found = re.findall(r"^\s+/\*[0-9a-f]{4,5}\*/\s+(?:@!?U?P\d+ )?([A-Z][A-Z0-9]*)", code, re.MULTILINE)
    assert "LDG" in found
    assert not {"LDL", "STL"} & set(found)
