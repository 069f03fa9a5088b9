"""Every module, and the operators themselves, are exported as torch's own are."""

from collections import Counter
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram, export

import nxcore
from nxcore.nn import activations
from nxcore.nn.swap import OURS
from tests.nn.programs import MAKE

X = torch.linspace(-2, 2, 4 * 4 * 16 * 16).view(4, 4, 16, 16)
OTHER = torch.linspace(-1, 3, 3 * 4 * 12 * 16).view(3, 4, 12, 16)
BATCH = ({0: Dim("b", min=2)},)
ROWS = ({0: Dim.DYNAMIC, 2: Dim.DYNAMIC},)
QUICK = (nn.Conv2d, nn.BatchNorm2d)
WAYS = [
    pytest.param(None, False, False, id="as it is, evaluation, loose"),
    pytest.param(BATCH, True, False, id="batch, training, loose"),
    pytest.param(ROWS, True, False, id="rows, training, loose"),
    pytest.param(None, True, True, marks=pytest.mark.slow, id="as it is, training, strict"),
    pytest.param(BATCH, False, True, marks=pytest.mark.slow, id="batch, evaluation, strict"),
    pytest.param(ROWS, False, True, marks=pytest.mark.slow, id="rows, evaluation, strict"),
]
"""Of sizes, modes and ways to export, each goes with each other once."""

ALIKE = {ours.__bases__[0] for ours in activations.FUNCTIONS} - {nn.ReLU, nn.GELU}
"""One function makes these modules and those two, which have all ways: each size, mode and way is enough."""
CASES = [
    pytest.param(
        cls,
        *way.values,
        marks=way.marks if cls in QUICK else pytest.mark.slow,
        id=f"{way.id}-{cls.__name__}",
    )
    for way, cls in product(WAYS, OURS)
    if cls not in ALIKE or way in (WAYS[2], WAYS[3], WAYS[4])
]

pytestmark = pytest.mark.filterwarnings(
    "ignore:`isinstance.treespec, LeafSpec:FutureWarning"
)  # torch.export's own


def exported(cls: type[nn.Module], *, fast: bool, train: bool, **options: Any) -> ExportedProgram:
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = nn.Sequential(MAKE.get(cls, cls)()).train(train)
    if fast:
        nxcore.accelerate(model)
    return export(model, (X,), **options)


def called(program: ExportedProgram) -> Any:
    return Counter(str(n.target) for n in program.graph.nodes if n.op == "call_function")


@pytest.mark.parametrize(("cls", "shapes", "train", "strict"), CASES)
def test_a_module_becomes_torchs_operators(
    cls: type[nn.Module], shapes: Any, train: bool, strict: bool
) -> None:
    options: Any = {"dynamic_shapes": shapes, "strict": strict}
    wanted, found = (exported(cls, fast=fast, train=train, **options) for fast in (False, True))
    assert called(found) == called(wanted)
    assert str(found.range_constraints) == str(wanted.range_constraints)
    x = X if shapes is None else torch.cat([X, X]) if shapes is BATCH else OTHER
    torch.testing.assert_close(found.module()(x), wanted.module()(x))
    assert called(found.run_decompositions()) == called(wanted.run_decompositions())


class Direct(nn.Module):
    """Calls operators itself."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.gain = nn.Parameter(torch.ones(4, 1, 3, 3)), nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        y = nxcore.ops.depthwise_conv2d(x, self.weight, 1, 1)
        z, _, _ = nxcore.ops.batch_norm(y, self.gain, self.gain)
        pooled = nxcore.ops.max_pool2d(z, 3, 1, 1) + nxcore.ops.avg_pool2d(z, 3, 1, 1)
        return nxcore.ops.global_avg_pool2d(pooled)


@pytest.mark.parametrize("shapes", [None, BATCH, ROWS], ids=["as it is", "batch", "rows"])
@pytest.mark.parametrize("strict", [True, False], ids=["strict", "loose"])
def test_an_operator_is_one_node_for_all_sizes(shapes: Any, strict: bool) -> None:
    torch._dynamo.reset()
    model = Direct()
    program = export(model, (X,), dynamic_shapes=shapes, strict=strict)
    assert sum(str(target).startswith("nxcore.") for target in called(program)) >= 4
    x = X if shapes is None else torch.cat([X, X]) if shapes is BATCH else OTHER
    for one in (program, program.run_decompositions()):
        torch.testing.assert_close(one.module()(x), model(x), rtol=1e-4, atol=1e-5)
