"""Every operator under torch's transforms, on torch and on each backend that runs compiled here."""

from __future__ import annotations

import pytest

from nxcore.testing.cell import Inapplicable, cells, installed
from nxcore.testing.transforms import UNDER

REGISTRY = installed()
CELLS = [c for c in (*cells(REGISTRY, backends=["torch"]), *cells(REGISTRY)) if c.leads]
ASKED = [
    c
    for c in CELLS
    if c.machine
    and not (c.machine.simulated or c.backend.on_request)
    and not (c.backend.name == "torch" and c.kernel.variant)
]


@pytest.mark.slow
@pytest.mark.parametrize("rule", UNDER, ids=lambda rule: rule.__name__)
@pytest.mark.parametrize("cell", ASKED, ids=lambda cell: cell.name)
def test_a_transform_of_an_operator_is_that_of_its_reference(rule, cell):
    try:
        rule(cell)
    except Inapplicable as error:
        pytest.skip(error.reason)
