"""Results are described as torch lays them out, and torch's compiler isn't imported for it."""

import itertools
import subprocess
import sys

import pytest
import torch

from nxcore.spec.pointwise import Pointwise
from nxcore.spec.problem import Problem, TensorMeta
from nxcore.spec.sample import rand
from tests.null.fakes import SPECS
from tests.table import for_each

LAYOUTS = ("contiguous", "transposed", "sliced", "strided", "expanded", "channels_last")
SHAPES = ((2, 3, 4, 5), (1, 3, 4, 5), (2, 1, 4, 1), (3, 1, 1), (5,), ())
TENSORS = [(s, n) for s in SHAPES for n in LAYOUTS if len(s) == 4 or n in ("contiguous", "sliced")]
FUNCTIONS = {"mul": torch.mul, "where": lambda x, y: torch.where(x > y, x, y)}

DESCRIBES = """
import sys, torch, nxcore
from nxcore.session import default
from nxcore.spec.problem import Problem
part = torch.zeros(2, 8, 4, 4)[:, :4]
weights = torch.zeros(3)
calls = {
    "add": (torch.zeros(2, 4, 8, 8), torch.zeros(4, 1, 1), 1, None),
    "weighted_sum_backward": (part, [torch.zeros(2, 4, 4, 4)] * 3, weights, (True,) * 4),
    "softmax_sum": ([part] * 3, weights),
}
for name, args in calls.items():
    Problem.of(default().op(name).spec, args).outputs
of_a_pool = torch.zeros(2, 4, 1, 1).expand(2, 4, 4, 4)
args = of_a_pool, [part] * 3, weights, (True,) * 4
Problem.of(default().op("weighted_sum_backward").spec, args).outputs
print(*(name for name in ("torch._dynamo", "sympy") if name in sys.modules))
"""


def built(shape, layout, dtype):
    return rand(*shape, layout=layout).build(torch.device("cpu"), dtype, 0)


def as_meta(x):
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta")


@pytest.mark.parametrize("function", FUNCTIONS)
def test_results_are_laid_out_as_torch_lays_them_out(function):
    run = FUNCTIONS[function]
    for first, second in itertools.product(TENSORS, TENSORS):
        x, y = built(*first, torch.float32), built(*second, torch.float64)
        try:
            real = run(x, y)
        except RuntimeError:  # shapes that don't fit
            continue
        with Pointwise():
            found = run(as_meta(x), as_meta(y))
        known, told = TensorMeta.of(real), TensorMeta.of(found)
        assert (told.shape, told.dtype) == (known.shape, known.dtype)
        # Torch's own description has other strides where a size is 1 and a layout is unusual.
        if 1 not in real.shape or first[1] == second[1] == "contiguous":
            assert told.strides == known.strides, (first, second)


def test_what_writes_into_an_argument_is_torchs():
    x = torch.empty(2, 3, device="meta")
    with Pointwise():
        assert x.mul_(2) is x
        assert torch.mul(x, x, out=x) is x


@for_each(
    ("spec", "sample"),
    [
        pytest.param(spec, s, id=f"{spec.name}-{s.name}")
        for spec in SPECS.values()
        for s in spec.samples
        if "smoke" in s.tags
    ],
)
def test_parts_of_tensors_are_described_as_torch_lays_out_their_results(spec, sample):
    def part(value):
        if isinstance(value, list | tuple) and any(isinstance(v, torch.Tensor) for v in value):
            return type(value)(map(part, value))
        if not isinstance(value, torch.Tensor) or value.ndim < 2:
            return value
        wide = torch.cat([value, value], 1)  # of channels
        return wide[:, : value.shape[1]]

    args = tuple(map(part, sample.build(spec, "cpu", torch.float32)))
    problem = Problem.of(spec, args)
    if problem.view or any(p.kind == "out" and a is not None for p, a in zip(spec.params, args, strict=True)):
        return
    real = spec.reference(*(None if p.kind == "out" else a for p, a in zip(spec.params, args, strict=True)))

    def compare(found, known):
        if isinstance(known, list | tuple):
            assert len(found) == len(known)
            list(map(compare, found, known))
        else:
            assert found == (None if known is None else TensorMeta.of(known))

    compare(problem.outputs, real)


def test_torchs_compiler_is_not_imported_to_describe_plain_calls():
    done = subprocess.run(
        [sys.executable, "-c", DESCRIBES], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.strip() == ""
