"""The ways to divide a call that a spec declares: the parts' results, side by side, are the call's."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from tests.null import fakes
from tests.table import for_each

DIVIDED = {
    *("add", "all", "amax", "amax_backward", "amin", "amin_backward", "any", "argmax", "argmin"),
    *("conv2d", "depthwise_conv2d", "entropy", "entropy_backward", "global_avg_pool2d", "global_max_pool2d"),
    *("matmul", "max", "max_pool2d", "mean", "min", "pointwise_conv2d", "sep_conv2d", "softmax_sum", "sum"),
    *("avg_pool2d", "weighted_sum", "cumsum", "cumsum_backward"),
    *("softmax", "softmax_backward", "log_softmax", "log_softmax_backward", "scaled_dot_product_attention"),
}
ENDLESS = frozenset({"bench", "huge", "degenerate"})


def cases() -> list[Any]:
    return [
        pytest.param(name, sample.name, id=f"{name}-{sample.name}")
        for name, spec in fakes.SPECS.items()
        for sample in spec.samples
        if name in DIVIDED and not sample.tags & ENDLESS
    ]


def part(value: Any, dims: Iterator[int | None], which: int) -> Any:
    """Return the first two thirds, or the rest, of every tensor of an argument."""
    if isinstance(value, tuple) and value and isinstance(value[0], torch.Tensor):
        return tuple(part(v, dims, which) for v in value)
    if not isinstance(value, torch.Tensor):
        return value
    dim = next(dims)
    if dim is None:
        return value
    size = value.shape[dim]
    first = size - size // 3 if size > 2 else 1
    return value.split([first, size - first], dim)[which]


def test_these_operators_divide_and_no_other() -> None:
    found = {
        name
        for name, spec in fakes.SPECS.items()
        if any(spec.ways(*s.build(spec, "cpu", torch.float32)) for s in spec.tagged("smoke"))
    }
    assert found == DIVIDED


@for_each(("name", "sample"), cases())
def test_the_results_of_the_parts_are_the_calls(name: str, sample: str) -> None:
    spec, args = fakes.SPECS[name], fakes.build(name, sample, torch.float64)
    tensors = fakes.leaves(list(args))
    whole = fakes.leaves(spec.reference(*args))
    for way in spec.ways(*args):
        cut = zip(tensors, way.tensors, strict=True)
        if any(dim is not None and t.shape[dim] < 2 for t, dim in cut):
            continue
        dims = (iter(way.tensors) for _ in range(2))
        parts = [
            fakes.leaves(spec.reference(*(part(a, of, which) for a in args))) for which, of in enumerate(dims)
        ]
        joined = [torch.cat(pair, way.result) for pair in zip(*parts, strict=True)]
        for one, other in zip(joined, whole, strict=True):
            torch.testing.assert_close(one, other, equal_nan=True)
