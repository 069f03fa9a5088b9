"""Samples of an expression's operators: layouts, broadcasting, dtypes and special values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from nxcore.expression.tree import Expression
from nxcore.spec.sample import DEGENERATE, ErrorCase, Layout, Sample, Sketch, Values, rand

SMOKE = frozenset({"smoke"})
BENCH = frozenset({"bench"})
EDGE = frozenset({"edge"})

POSITIVE = {"low": 0.25, "high": 2.0}
"""The range in which logarithms and roots are numbers."""

ROOTS = frozenset({"log", "log1p", "sqrt", "rsqrt"})
"""The functions that are NaN for negative numbers."""

VARYING = frozenset({"gelu", "gelu_tanh"})
"""The functions whose value at infinity depends on the dtype and the device in torch itself."""


class Samples:
    """Makes the samples of one expression.

    Parameters
    ----------
    expression : Expression
    """

    def __init__(self, expression: Expression) -> None:
        self.expression = expression
        self.masks = expression.masks
        self.names = expression.tensors
        self.functions = frozenset(node.op for node in expression.nodes)
        self.usual: dict[str, Any] = dict(POSITIVE) if self.functions & ROOTS else {}

    def tensors(self, *shape: int, **how: Any) -> tuple[Any, ...]:
        """Describe all tensors alike."""
        return tuple(self.tensor(name, *shape, **how) for name in self.names)

    def tensor(self, name: str, *shape: int, **how: Any) -> Sketch:
        """Describe one tensor."""
        if name not in self.masks:
            return rand(*shape, **({} if how.get("values") else self.usual), **how)
        how = {key: value for key, value in how.items() if key == "layout"}
        return rand(*shape, low=0, high=1.9, dtype=torch.bool, **how)

    def one_of(self, other: Sketch, *shape: int, **how: Any) -> tuple[Any, ...]:
        """Describe all tensors alike but the last, which is ``other``."""
        last = self.tensor(self.names[-1], *other.shape, layout=other.layout)
        if other.dtype is not None and self.names[-1] not in self.masks:
            last = replace(last, dtype=other.dtype)
        return (*self.tensors(*shape, **how)[:-1], last)

    def sample(self, name: str, args: tuple[Any, ...], tags: frozenset[str] = EDGE, **kwargs: Any) -> Sample:
        """Return a sample."""
        return Sample(name, args, kwargs, tags)

    def numbers(self) -> Mapping[str, float]:
        """Return numbers that are not the defaults."""
        return {name: default * 1.5 + 0.25 for name, default in self.expression.numbers}


def samples(expression: Expression) -> tuple[Sample, ...]:
    """Return the samples of an expression, each named after the bug that it catches."""
    make = Samples(expression)
    layouts: tuple[tuple[str, Layout, tuple[int, ...]], ...] = (
        ("transposed", "transposed", (31, 17)),
        ("channels_last", "channels_last", (2, 3, 4, 5)),
        ("odd_storage_offset", "sliced", (257,)),
        ("gaps_in_memory", "strided", (17, 9)),
        ("expanded", "expanded", (6, 8)),
    )
    odd: tuple[Values, ...] = ("nan",) if make.functions & VARYING else ("nan", "inf")
    found = [
        make.sample("last_block_partly_filled", make.tensors(1025), SMOKE),
        make.sample("out_ignored", make.tensors(6, 70), SMOKE, out=rand(6, 70)),
        *(make.sample(value, make.tensors(64, values=value), SMOKE) for value in odd),
        make.sample("power_of_two", make.tensors(4096)),
        make.sample("prime", make.tensors(10007)),
        make.sample("one_element", make.tensors(1)),
        make.sample("zero_dimensions", make.tensors()),
        make.sample("no_elements", make.tensors(0, 3), DEGENERATE),
        make.sample("denormal", make.tensors(64, values="denormal"), DEGENERATE),
        *(make.sample(name, make.tensors(*shape, layout=layout)) for name, layout, shape in layouts),
        make.sample("out_with_gaps", make.tensors(17, 9), out=rand(17, 9, layout="strided")),
    ]
    if make.usual:
        normal = (make.tensor(name, 6, 70, values="normal") for name in make.names)
        found.append(make.sample("negative_roots", tuple(normal), SMOKE))
    if numbers := make.numbers():
        found.append(make.sample("number_dropped", make.tensors(6, 70), SMOKE, **numbers))
    if len(expression.tensors) > 1:
        found += [
            make.sample("row_broadcast", make.one_of(rand(33), 5, 33), SMOKE),
            make.sample("channel_broadcast", make.one_of(rand(3, 1, 1), 2, 3, 4, 5), SMOKE),
            make.sample("both_broadcast", make.one_of(rand(1, 6, 5), 7, 1, 5)),
            make.sample("scalar_tensor", make.one_of(rand(), 3, 40)),
            make.sample("one_transposed", make.one_of(rand(31, 17, layout="transposed"), 31, 17)),
            make.sample("promotion", make.one_of(rand(50, dtype=torch.float32), 50)),
        ]
    found += [
        make.sample("small", make.tensors(1024), BENCH),
        make.sample("medium", make.tensors(102_400), BENCH),
        make.sample("large", make.tensors(4_194_304), BENCH),
    ]
    return tuple(found)


def errors(expression: Expression) -> tuple[ErrorCase, ...]:
    """Return calls that must raise."""
    make = Samples(expression)
    first, last = expression.tensors[0], expression.tensors[-1]
    plain = make.tensors(4)
    found = [
        ErrorCase("not_a_tensor", ("a", *plain[1:]), match=f"{first} must be a tensor, got str"),
        ErrorCase(
            "out_of_wrong_shape",
            plain,
            match=r"out must have shape \(4,\), got \(5,\)",
            kwargs={"out": rand(5)},
        ),
        ErrorCase("out_not_a_tensor", plain, match="out must be a tensor", kwargs={"out": 3}),
    ]
    if len(plain) > 1:
        wrong = (*make.tensors(3)[:-1], plain[-1])
        found.append(ErrorCase("shapes", wrong, match=rf"{last} must broadcast .* \(3,\), got shape \(4,\)"))
    return tuple(found)
