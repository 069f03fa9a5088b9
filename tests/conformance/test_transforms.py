"""Operators under torch's transforms, on torch and on each backend that runs compiled here.

A transform sees the kinds of an operator's arguments and its gradient, and no kernel: of the operators that
are alike in these, the first stands for all. ``tests/null/interop/test_autograd.py`` has every operator.
"""

from itertools import groupby
from typing import Any

import pytest

from nxcore.spec.spec import OpSpec
from nxcore.testing.cell import Inapplicable, cells, installed
from nxcore.testing.transforms import UNDER
from tests.null import fakes
from tests.paths import PATHS
from tests.table import for_each

REGISTRY = installed()
CELLS = [c for c in (*cells(REGISTRY, backends=["torch"]), *cells(REGISTRY)) if c.leads]


def signature(spec: OpSpec) -> tuple[Any, ...]:
    """Return what a transform sees: kinds of arguments, each alone or several in a row, and the gradient."""
    runs = groupby(p.kind for p in spec.params if p.kind != "static")
    return tuple((kind, len([*run]) > 1) for kind, run in runs), bool(spec.gradient), bool(spec.autocast)


ASKED = [
    c
    for c in CELLS
    if c.machine
    and not (c.machine.simulated or c.backend.on_request)
    and not (c.backend.name == "torch" and c.kernel.variant)
]
FIRST = {(c.label, signature(c.spec)): c for c in reversed(ASKED)}.values()
# A kernel of another backend is called in the same way, so Python's path calls torch's alone.
BY_PATH = [
    pytest.param(path, cell, id=f"{path}-{cell.name}")
    for path in PATHS
    for cell in FIRST
    if path == PATHS[-1] or cell.backend.name == "torch"
]


def test_every_operator_is_like_one_that_is_transformed():
    transformed = {signature(c.spec) for c in FIRST if c.backend.name == "torch"}
    assert {signature(spec) for spec in fakes.SPECS.values()} == transformed
    assert 10 < len(transformed) < len(fakes.SPECS)


@pytest.mark.slow
@pytest.mark.parametrize(("path", "cell"), BY_PATH, indirect=["path"])
@for_each("rule", UNDER)
def test_a_transform_of_an_operator_is_that_of_its_reference(path, cell, rule):
    try:
        rule(cell)
    except Inapplicable as error:
        pytest.skip(error.reason)
