"""The tables of operators are drawn; docs/operators.md's example is a plugin that keeps every rule."""

import importlib.util
import re
import types
from pathlib import Path

import pytest
import torch

from nxcore.registry.discovery import discover
from nxcore.testing import examine
from tests.null import fakes

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "operators.md").read_text(encoding="utf-8")
X = torch.tensor([1.0, -2.0, 3.0])


@pytest.fixture(scope="module")
def tables():
    """The module ``docs/tables.py``, and its pages as they should be."""
    spec = importlib.util.spec_from_file_location("tables", ROOT / "docs" / "tables.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module, module.pages(discover(strict=True))


def test_the_tables_of_operators_are_as_drawn(tables):
    _, pages = tables
    assert {path.parent.name for path in pages} == {"docs", "cuda", "jax", "numba", "triton"}
    for path, text in pages.items():
        assert path.read_text(encoding="utf-8") == text, f"run python docs/tables.py: {path.name} is older"


def test_the_table_of_size_classes_is_as_drawn():
    spec = importlib.util.spec_from_file_location("classes", ROOT / "docs" / "classes.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    text = module.PAGE.read_text(encoding="utf-8")
    assert text == module.page(), "run python docs/classes.py: the page is older than a record"
    assert text.count("| `add` |") == 6, "a row a shape"
    assert "aim met" in text or "minimum met" in text or "missed" in text


def test_a_gradient_stands_behind_its_operator(tables):
    module, pages = tables
    names = re.findall(r"^\| `(\w+)` \| `\(", pages[module.CATALOGUE], re.MULTILINE)
    at = names.index("max_pool2d")
    assert names[at : at + 3] == ["max_pool2d", "max_pool2d_with_offsets", "max_pool2d_backward"]
    assert set(names) == set(fakes.SPECS)


@pytest.fixture(scope="module")
def example():
    module = types.ModuleType("nxcore_square")
    (code,) = re.findall(r'^```python title="nxcore_square.py"\n(.*?)^```$', PAGE, re.MULTILINE | re.DOTALL)
    exec(compile(code, "nxcore_square.py", "exec"), vars(module))
    return module


@pytest.fixture(scope="module")
def specs(example):
    found = discover(found=[fakes.Entry("square", example)], strict=True)
    return [found.spec("square"), found.spec("square_backward")]


def kernels(specs, **planned):
    made = [
        fakes.kernel(spec.name, planned.get(spec.name, fakes.Counter(spec.reference)), dtypes=spec.dtypes)
        for spec in specs
    ]
    return fakes.backend("other", *made)


def test_the_gradient_is_computed_by_its_operator(specs):
    backward = fakes.Counter(specs[1].reference)
    session = fakes.session(kernels(specs, square_backward=backward), specs=specs)
    x = X.clone().requires_grad_()
    y = session.op("square", backend="other")(x)
    before = backward.count
    y.backward(torch.tensor([1.0, 1.0, 0.5]))
    assert backward.count > before
    torch.testing.assert_close(x.grad, torch.tensor([2.0, -4.0, 3.0]))
    torch.autograd.gradcheck(session.op("square"), X.double().requires_grad_())


def test_a_kernel_of_each_keeps_every_rule_and_a_wrong_one_does_not(specs):
    rows = examine(fakes.registry(kernels(specs), specs=specs), backends=["other"])
    assert {(row.op, row.outcome) for row in rows} == {(spec.name, "verified") for spec in specs}
    for wrong in (lambda grad, x: grad * x, lambda grad, x: torch.zeros_like(x)):
        broken = fakes.registry(kernels(specs, square_backward=wrong), specs=specs)
        (row,) = examine(broken, backends=["other"], ops=["square_backward"], dtypes=["float32"])
        assert (row.outcome, "agrees_with_float64" in row.rules) == ("wrong", True)


def test_its_error_cases_are_refused_in_their_words(specs):
    session = fakes.session(specs=specs)
    for spec in specs:
        for case in spec.errors:
            with pytest.raises(ValueError, match=case.match):
                fakes.called(session.op(spec.name), case.build(spec))
