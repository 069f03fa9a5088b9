"""Every operator under torch's transforms, on torch and on each backend that runs compiled here."""

from __future__ import annotations

import pytest

from nxcore.testing.cell import Inapplicable, cells, installed
from nxcore.testing.transforms import UNDER
from tests.paths import PATHS

REGISTRY = installed()
CELLS = [c for c in (*cells(REGISTRY, backends=["torch"]), *cells(REGISTRY)) if c.leads]
ASKED = [
    c
    for c in CELLS
    if c.machine
    and not (c.machine.simulated or c.backend.on_request)
    and not (c.backend.name == "torch" and c.kernel.variant)
]
# A kernel of another backend is called in the same way, so Python's path calls torch's alone.
BY_PATH = [
    pytest.param(path, cell, id=f"{path}-{cell.name}")
    for path in PATHS
    for cell in ASKED
    if path == PATHS[-1] or cell.backend.name == "torch"
]


@pytest.mark.slow
@pytest.mark.parametrize("rule", UNDER, ids=lambda rule: rule.__name__)
@pytest.mark.parametrize(("path", "cell"), BY_PATH, indirect=["path"])
def test_a_transform_of_an_operator_is_that_of_its_reference(path, cell, rule):
    try:
        rule(cell)
    except Inapplicable as error:
        pytest.skip(error.reason)
