"""nxcore-cuda's products: every tile on the emulator, and what its machine code consists of."""

import re
import subprocess
import types
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from nxcore.ops import nxcore_ops
from nxcore.plugin import Problem, Product, TensorMeta

pytest.importorskip("nxcore_cuda")

from nxcore_cuda import matmul, matmul_split
from nxcore_cuda.machine import toolkit
from nxcore_cuda.machine.compile import compiled

from tests.table import for_each

needs_emulator = pytest.mark.skipif(not toolkit.EMULATED, reason="NXCORE_CUDA_EMULATOR=1 was not set")
needs_nvcc = pytest.mark.skipif(toolkit.nvcc() is None, reason=f"no nvcc {toolkit.PLACES}")

OWN = matmul.Slices(64, 32, 8, 8, 64, 8, team=4)
TILES = {
    "large": matmul.LARGE,
    "middle": matmul.MIDDLE,
    "small": matmul.SMALL,
    "least": matmul.LEAST,
    "pair": matmul.PAIR,
    "straight": matmul.STRAIGHT,
    "sliced": matmul.SLICED,
    "one_by_one": replace(matmul.LEAST, by_line=False, straight=True, order=1),
    "ordered": replace(matmul.LEAST, order=1),
    "deep": matmul.DEEP,
    "ahead": matmul.AHEAD,
    "octet": matmul.OCTET,
    "broad": matmul.BROAD,
    "kept": matmul.KEPT,
    "duet": matmul.DUET,
    "quartet": matmul.QUARTET,
    "legion": matmul.LEGION,
    "three_stages": replace(matmul.SLICED, stages=3),
    "own_stages": OWN,
    "own_of_a_warp": replace(OWN, team=1),
    "own_of_pairs": matmul.Slices(64, 128, 8, 16, 64, 4, turn=2),
    "own_of_all": matmul.Slices(64, 64, 8, 8, 16, 1, stages=3, held=True),
    "own_held": replace(OWN, team=8, held=True, pieces=2),
}
QUICK = ("small", "least", "one_by_one", "deep", "octet", "kept", "duet", "legion")


def cuobjdump():
    """Return the disassembler beside nvcc, or that of Triton's package."""
    beside = Path(str(toolkit.nvcc())).resolve().with_name("cuobjdump")
    triton = pytest.importorskip("triton", reason="no cuobjdump beside nvcc, and no Triton that has one")
    return beside if beside.exists() else Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"


def multiplied(a, b, tile):
    """Return the product by one tile, into memory that held NaN."""
    out = torch.full_like(torch.matmul(a, b), torch.nan)
    product = Product.of(*map(TensorMeta.of, (a, b, out)))
    run = matmul.plan_product(product, a.device, tile)
    run(*((b, a) if product.turned else (a, b)), out)
    return out


def product_of(args):
    """Describe a call."""
    a, b = args[:2]
    return Product.of(*map(TensorMeta.of, (a, b, torch.matmul(a.to("meta"), b.to("meta")))))


def operand(rows, columns, turned):
    return torch.randn(columns, rows).T if turned else torch.randn(rows, columns)


@needs_emulator
@pytest.mark.parametrize(
    ("a_turned", "b_turned"),
    [
        (False, False),
        (True, True),
        pytest.param(False, True, marks=pytest.mark.slow),
        pytest.param(True, False, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in TILES]
)
def test_every_tile_is_right_inside_and_at_its_edges(name, a_turned, b_turned):
    """Of whole numbers, whose many sums are exact, then of few terms."""
    tile = TILES[name]
    rows, terms, columns = tile.tall + 4, 2 * tile.depth + 4, tile.wide + 8
    a, b = operand(rows, terms, a_turned).mul(4).round(), operand(terms, columns, b_turned).mul(4).round()
    assert torch.equal(multiplied(a, b, tile), a @ b)
    a, b = operand(5, 3, a_turned), operand(3, 7, b_turned)
    torch.testing.assert_close(multiplied(a, b, tile), a @ b, rtol=1e-5, atol=1e-5)


@needs_emulator
@for_each("stages", [2, 3, 4])
@for_each("terms", [3, 32, 33, 97, 300])
def test_terms_go_around_the_stages(stages, terms):
    """Whole numbers, so that each term counts exactly once."""
    tile = replace(matmul.LEAST, straight=True, stages=stages)
    a, b = (torch.randint(-8, 9, shape).float() for shape in ((3, terms), (terms, 5)))
    assert torch.equal(multiplied(a, b, tile), a @ b)


@needs_emulator
@pytest.mark.parametrize("stages", [2, 3, 8])
def test_terms_go_around_the_stages_of_each_slice(stages):
    tile = replace(OWN, stages=stages)
    twice = replace(tile, depth=128, turn=2)
    for terms, one in ((3, tile), (64, tile), (65, twice), (300, tile), (300, twice)):
        a, b = (torch.randint(-8, 9, shape).float() for shape in ((3, terms), (terms, 5)))
        assert torch.equal(multiplied(a, b, one), a @ b)


@needs_emulator
def test_a_whole_product_needs_no_bounds():
    a, b = torch.randn(64, 128), torch.randn(128, 32)
    product = Product.of(*map(TensorMeta.of, (a, b, torch.empty(64, 32))))
    whole = OWN.for_product(product)
    assert whole == replace(OWN, whole=True, one=True)
    assert whole.alone
    assert torch.equal(multiplied(a, b, whole), multiplied(a, b, OWN))
    for other in (replace(whole, one=False), replace(whole, parts=2), OWN):
        assert not other.alone
        assert torch.equal(multiplied(a, b, other), multiplied(a, b, whole)) == (other.parts == 1)
    for shape in ((65, 128, 32), (64, 127, 32), (64, 128, 31)):
        rows, terms, columns = shape
        metas = (torch.empty(s, device="meta") for s in ((rows, terms), (terms, columns), (rows, columns)))
        assert not OWN.for_product(Product.of(*map(TensorMeta.of, metas))).whole


def whole(*shape):
    """Return whole numbers, whose many sums are exact."""
    return torch.randint(-8, 9, shape).float()


class Operations(TorchDispatchMode):
    """What torch is asked to do."""

    def __init__(self):
        super().__init__()
        self.names = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.add(str(function))
        return function(*args, **(kwargs or {}))


@needs_emulator
@pytest.mark.parametrize(
    ("a", "b"),
    [
        pytest.param(whole(20, 12).T, whole(8, 20).T, id="transposed"),
        pytest.param(whole(24, 40)[::2, ::2], whole(20, 16)[:, ::2], id="strided"),
        pytest.param(whole(1, 20).expand(12, 20), whole(20, 1).expand(20, 8), id="expanded"),
        pytest.param(whole(2, 1, 12, 20), whole(3, 20, 8), id="batches broadcast"),
        pytest.param(whole(3, 12, 20).permute(1, 0, 2), whole(20, 8), id="batch inside"),
        pytest.param(whole(256, 64).T, whole(64, 256).T, id="teams of slices"),
    ],
)
def test_operands_are_read_where_they_lie(a, b):
    """A call makes its result, and nothing is copied before."""
    spec = next(spec for spec in nxcore_ops() if spec.name == "matmul")
    call = matmul.plan(Problem.of(spec, spec.bind(a, b)))
    with Operations() as asked:
        found = call(a, b)
    assert {name.partition(".")[2].partition(".")[0] for name in asked.names} <= {"empty", "empty_strided"}
    assert torch.equal(found, a @ b)


@needs_emulator
@pytest.mark.parametrize("parts", [2, 3, 50])
def test_blocks_that_share_a_tile_give_one_result_always(parts):
    for tile in (replace(matmul.LEAST, parts=parts), replace(OWN, parts=parts)):
        a, b = torch.randn(70, 100), torch.randn(100, 66)
        found = [multiplied(a, b, tile) for _ in range(2)]
        torch.testing.assert_close(found[0], a @ b, rtol=1e-5, atol=1e-5)
        assert torch.equal(*found)


@needs_emulator
@pytest.mark.parametrize("a_turned", [False, True])
@pytest.mark.parametrize("b_turned", [False, True])
@pytest.mark.parametrize(
    "tile",
    [
        pytest.param(matmul_split.SMALL, id="small"),
        pytest.param(matmul_split.LARGE, id="large", marks=pytest.mark.slow),
        pytest.param(replace(matmul_split.SMALL, rounded=False, straight=True), id="cut"),
    ],
)
def test_every_tile_of_split_factors_has_the_error_of_float32(tile, a_turned, b_turned):
    shared = replace(tile, parts=3)
    for one, rows, terms, columns in (
        (tile, tile.tall + 4, 2 * tile.depth + 4, tile.wide + 8),
        (shared, 9, 5 * tile.depth + 1, 7),
    ):
        a, b = operand(rows, terms, a_turned), operand(terms, columns, b_turned)
        exact, scale = a.double() @ b.double(), a.double().abs() @ b.double().abs()
        assert ((multiplied(a, b, one).double() - exact).abs() <= 2.0**-20 * scale).all()


@for_each(
    ("shape", "tile", "parts"),
    [
        ((4096, 4096, 4096), matmul.LEGION, 1),
        ((4100, 4096, 4096), matmul.DUET, 1),
        ((4097, 4097, 4097), matmul.STRAIGHT, 1),
        ((4096, 64, 4096), matmul.LARGE, 1),
        ((1536, 1536, 1536), matmul.LEGION, 3),
        ((1024, 1024, 1024), matmul.QUARTET, 1),
        ((768, 768, 768), matmul.DUET, 3),
        ((1000, 1000, 1000), matmul.QUARTET, 1),
        ((1023, 1023, 1023), matmul.SLICED, 1),
        ((512, 512, 512), matmul.KEPT, 1),
        ((384, 384, 384), matmul.KEPT, 1),
        ((384, 256, 384), matmul.BROAD, 1),
        ((544, 640, 256), matmul.BROAD, 1),
        ((512, 512, 511), matmul.DEEP, 1),
        ((127, 127, 127), matmul.DEEP, 1),
        ((511, 511, 511), matmul.DEEP, 1),
        ((600, 600, 511), matmul.SLICED, 3),
        ((64, 1024, 1024), matmul.BROAD, 4),
        ((64, 16384, 64), matmul.BROAD, 33),
        ((16, 16384, 16), matmul.BROAD, 66),
        ((256, 256, 256), matmul.BROAD, 2),
        ((300, 256, 256), matmul.BROAD, 1),
        ((256, 256, 255), matmul.LEAST, 4),
        ((16, 4096, 4096), matmul.BROAD, 2),
        ((16, 4096, 4095), matmul.SLICED, 4),
        ((5, 6, 7), matmul.LEAST, 1),
        ((1, 64, 70000), matmul.MIDDLE, 1),
        ((4, 0, 3), matmul.LEAST, 1),
        ((0, 4, 3), matmul.LEAST, 1),
    ],
)
def test_the_shape_alone_chooses_the_tile(shape, tile, parts):
    rows, terms, columns = shape
    metas = (torch.empty(s, device="meta") for s in ((rows, terms), (terms, columns), (rows, columns)))
    found = matmul.choose(Product.of(*map(TensorMeta.of, metas)))
    assert found == replace(tile, parts=parts) or (
        isinstance(found, matmul.Slices) and (found.kind, found.parts) == (tile, parts) and found.one
    )


def test_the_gate_reaches_every_tile_of_teams_by_the_samples_of_its_own():
    spec = next(spec for spec in nxcore_ops() if spec.name == "matmul")
    samples = {sample.name: sample for sample in spec.samples}
    for tile, names in matmul.PROOFS.items():
        for name in names:
            args = samples[name].build(spec, "cpu", torch.float32)
            own, asked = matmul.choose(product_of(args)), matmul.proofs(Problem.of(spec, args))
            assert own.kind == tile, name
            assert name in asked, "a verdict of its own problem"
            assert own.whole != name.endswith("_edge")
            assert own.alone != name.endswith(("_edge", "_shared"))
            if name.endswith("_shared"):
                assert own.parts > 1
                assert matmul.proofs(Problem.of(spec, args)) == (name,)
            if name.endswith(("_around", "_shared")):
                terms = args[0].shape[-1] // own.parts
                assert terms // (own.run * own.slices) > own.stages, "terms go around all stages"
    assert set(matmul.PROOFS) == {*matmul.TEAMS, matmul.KEPT}
    assert matmul.proofs(Problem.of(spec, samples["few"].build(spec, "cpu", torch.float32))) == ()


def test_a_device_of_less_shared_memory_has_another_tile():
    metas = (torch.empty(512, 512, device="meta") for _ in range(3))
    product = Product.of(*map(TensorMeta.of, metas))
    for most in (232448, 101376, 65536, 49152):
        assert matmul.choose(product, most).shared <= max(most, matmul.DEEP.shared)
        teams = [t for t in matmul.candidates(product, most) if isinstance(t, matmul.Slices)]
        assert all(tile.shared <= most for tile in teams)
    least = min(tile.shared for tile in matmul.TEAMS)
    assert isinstance(matmul.choose(product, least), matmul.Slices)
    assert matmul.choose(product, least - 1) == matmul.DEEP


def test_the_shared_memory_of_a_block_is_the_devices(cuda_answers):
    assert matmul.memory(torch.device("cpu")) >= max(tile.shared for tile in matmul.TEAMS)
    for facts, most in (({"shared_memory_per_block_optin": 101376}, 101376), ({}, 0)):
        found = types.SimpleNamespace(**facts)
        cuda_answers(get_device_properties=lambda _, found=found: found)
        assert matmul.memory(torch.device("cuda", 0)) == most


@needs_nvcc
@pytest.mark.slow
@for_each("name", TILES)
def test_machine_code_has_no_tensor_core_and_keeps_sums_in_registers(name, tmp_path):
    tile = TILES[name]
    if tile in matmul.TEAMS and matmul.TEAMS[tile].whole:
        tile = replace(tile, whole=True)  # as products have it
    for inner in (False, True):
        instance = tile.instance(matmul.Way(True, True), matmul.Way(inner, True))
        (tmp_path / "image.cubin").write_bytes(compiled(instance.text, (9, 0), instance.symbol))
        code = subprocess.run(
            [cuobjdump(), "-sass", tmp_path / "image.cubin"], capture_output=True, text=True, check=True
        ).stdout
        found = re.findall(r"^\s+/\*[0-9a-f]{4,5}\*/\s+(?:@!?U?P\d+ )?([A-Z][A-Z0-9]*)", code, re.MULTILINE)
        assert "FFMA" in found
        assert not {"HMMA", "HGMMA", "QGMMA", "IMMA", "DMMA"} & set(found)
        assert found.count("FFMA") >= TILES[name].depth // TILES[name].slices * 64
        spilled = found.count("LDL") + found.count("STL")
        assert spilled <= (32 if name == "large" else 0), "more than addresses spilled to memory"


@needs_nvcc
@pytest.mark.slow
def test_split_factors_go_through_tensor_cores(tmp_path):
    for tile, count in ((matmul_split.SMALL, 96), (matmul_split.LARGE, 192)):
        instance = tile.instance(matmul.Way(True, True), matmul.Way(False, True))
        (tmp_path / "image.cubin").write_bytes(compiled(instance.text, (9, 0), instance.symbol))
        code = subprocess.run(
            [cuobjdump(), "-sass", tmp_path / "image.cubin"], capture_output=True, text=True, check=True
        ).stdout
        assert len(re.findall(r"HMMA\.1688\.F32\.TF32", code)) == count
        assert not re.search(r"\b(LDL|STL)\b", code), "registers spilled to memory"
